"""Frozen facts of the scheduler: state, workload, engine, problem, decision and plan. Standard library only."""
