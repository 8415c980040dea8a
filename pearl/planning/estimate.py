"""How long a plan takes, where what can run side by side does."""

from __future__ import annotations

from itertools import groupby
from typing import assert_never

from pearl.core.plan import (
    Activate,
    AdmitGroup,
    Borrow,
    ChangeRole,
    Deactivate,
    Drain,
    Plan,
    Return,
    Start,
    Step,
    Stop,
)


def estimate_s(plan: Plan) -> float:
    """Seconds from the first step to the end of the last one.

    Adjacent steps of one phase (drains; role changes; workers that join; workers that let go) touch different workers
    and run side by side, so a phase takes as long as its longest step. Starts run in the background: they delay only
    the admission of their group, which waits for the slowest.
    """
    now = started = 0.0
    for phase, steps in groupby(plan.steps, key=phase_of):
        longest = max(step.estimated_s for step in steps)
        match phase:
            case "start":
                started = now + longest
            case "admit":
                now = max(now, started) + longest
            case _:
                now += longest
    return max(now, started)


def phase_of(step: Step) -> str:
    """The phase that a step belongs to: steps of one phase that follow each other run side by side."""
    match step:
        case Drain():
            return "drain"
        case ChangeRole():
            return "change"
        case Activate() | Borrow():
            return "join"
        case Start():
            return "start"
        case AdmitGroup():
            return "admit"
        case Deactivate() | Return() | Stop():
            return "release"
    assert_never(step)
