"""Scenarios: YAML to cluster, workload, engine profile, transition costs and prices."""
