"""What a running rollout lets its observers see: turns as they end, and where every trajectory stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Where a trajectory's current turn is."""

    QUEUED = "queued"
    """Waiting for an engine, for memory, or for KV to arrive."""
    PREFILL = "prefill"
    DECODE = "decode"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSample:
    """A turn whose last token is out: what the Runtime Tracker learns the workload from."""

    at_s: float
    trajectory: int
    turn: int
    """Index, from 0."""
    new_prompt_tokens: int
    output_tokens: int
    environment_s: float | None
    """Time in the environment before this turn; None for the first turn."""
    context_tokens: int
    last: bool
    """Whether the trajectory ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Where one live trajectory stands: what a life-cycle forecast reads. What is still to come is not in it."""

    trajectory: int
    turn: int
    """Index of the current turn, or of the last one while in the environment."""
    stage: Stage
    context_tokens: int
    """Prompts, observations and output so far."""
