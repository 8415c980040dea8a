"""The paper's figures beside simulated ones, and the calibration of a workload and an engine to given figures.

`calibration` and `fit` know nothing of the paper: they fit what a file names to what it asks. Everything that the
paper says is in `targets.yaml`; what it leaves open is decided in `setups.py`.
"""
