"""The Runtime Tracker: telemetry in; workload and engine profiles, costs, calibration error and forecasts out.

Pure: time is an argument, every `update` returns a new tracker, and the order of the records of one update is of no
account. docs/tracking.md derives the estimators.
"""
