"""What every executor asks of a step: which measurement it is, and whether another would do the same."""

from __future__ import annotations

from typing import assert_never

from pearl.core.plan import Activate, AdmitGroup, Borrow, ChangeRole, Deactivate, Drain, Return, Start, Step, Stop
from pearl.core.telemetry import TransitionKind


def transition_of(step: Step) -> TransitionKind:
    """What a step's duration is a sample of."""
    match step:
        case Drain():
            return TransitionKind.DRAIN
        case ChangeRole():
            return TransitionKind.CHANGE_ROLE
        case Activate():
            return TransitionKind.ACTIVATE
        case Borrow():
            return TransitionKind.BORROW
        case Deactivate():
            return TransitionKind.DEACTIVATE
        case Return():
            return TransitionKind.RETURN
        case Start():
            return TransitionKind.START
        case AdmitGroup():
            return TransitionKind.ADMIT
        case Stop():
            return TransitionKind.STOP
    assert_never(step)


def same_effect(one: Step, other: Step) -> bool:
    """Whether two steps of one worker lead to the same state."""
    match one, other:
        case ChangeRole(), ChangeRole():
            return one.after is other.after
        case ((Activate() | Borrow()), (Activate() | Borrow())):
            return one.role is other.role
        case _:
            return type(one) is type(other)
