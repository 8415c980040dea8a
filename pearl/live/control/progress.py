"""What the executor tells of a plan under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pearl.core.plan import Step


class Phase(StrEnum):
    """Where a step is."""

    BEGAN = "began"
    ENDED = "ended"
    DROPPED = "dropped"
    """It never began: superseded by a newer plan, or its worker is gone or in no state for it."""
    FAILED = "failed"
    """It began and did not end well; `because` says why, and what was done about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One change of one step."""

    plan: str
    """Id of the plan."""
    index: int
    """Of the step in its plan."""
    step: Step
    phase: Phase
    at_s: float
    """Seconds on the controller's clock."""
    seconds: float = 0.0
    """Since it began; 0 where it never did."""
    because: str = ""


Tell = Callable[[Progress], None]
