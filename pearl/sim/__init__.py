"""Discrete-event simulator: engines, KV memory, rollout, trainer, availability. Pure: seeds are arguments."""
