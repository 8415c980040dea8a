"""PEARL: a declarative, policy-driven scheduler of prefill and decode for agentic-RL rollout."""
