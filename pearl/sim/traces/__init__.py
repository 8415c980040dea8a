"""Recorded and generated traces: which GPUs are there when, and what agents ask turn by turn."""
