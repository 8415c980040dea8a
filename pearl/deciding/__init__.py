"""Deciding: policy, state and tables become a problem, its solution a decision, and the decision an explanation."""
