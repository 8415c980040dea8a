"""Makespan predictors: (workload, engine, counts) to seconds. Each predictor is one file, known by name."""
