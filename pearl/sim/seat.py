"""What stands behind one worker of the simulated cluster, and which steps it can take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

from pearl.core.cluster import Role, Status, Worker
from pearl.core.engine import TransitionCosts
from pearl.core.plan import Activate, AdmitGroup, Borrow, ChangeRole, Deactivate, Drain, Return, Start, Step, Stop
from pearl.sim.engine import Engine


@dataclass(slots=True, kw_only=True, eq=False)
class Seat:
    """A worker, its engine, and the steps that it takes."""

    worker: Worker
    up: bool
    """Whether an engine runs on the GPUs, whatever its role."""
    engine: Engine | None = None
    """The engine that serves or drains."""
    step: Step | None = None
    """The step under way."""
    began_s: float = 0.0
    """When it began."""
    awaited: bool = False
    """Whether the program waits for it."""
    next: deque[Step] = field(default_factory=deque)
    """Steps of later plans that wait for it."""

    @property
    def in_limbo(self) -> bool:
        """Whether the worker drains, or has drained, and may as well serve on."""
        drains = self.step is None or isinstance(self.step, Drain)
        return drains and self.worker.status is Status.TRANSITIONING and self.worker.serving and self.up


def duration_s(step: Step, costs: TransitionCosts) -> float:
    """How long a step takes, whatever the plan estimated; a drain of a busy engine takes all of its time."""
    match step:
        case Drain():
            return costs.drain_s if step.deadline_s is None else min(costs.drain_s, step.deadline_s)
        case ChangeRole():
            return costs.change_role_s
        case Activate():
            return costs.activate_s + costs.sync_weights_s
        case Borrow():
            return costs.borrow_s
        case Deactivate():
            return costs.deactivate_s
        case Return():
            return costs.return_s
        case Start():
            return costs.start_s
        case AdmitGroup():
            return costs.admit_s
        case Stop():
            return costs.stop_s
    assert_never(step)


def refusal(seat: Seat, step: Step) -> str | None:
    """Why a step has nothing to do on an idle seat; None if it has."""
    worker = seat.worker
    serves = worker.role is not Role.INACTIVE
    match step:
        case Drain():
            done = seat.engine is None or not seat.engine.accepting
        case ChangeRole():
            done = (
                not seat.up
                or worker.must_leave
                or not serves
                or (worker.role is step.after and seat.engine is not None)
            )
        case Activate() | Borrow():
            done = not seat.up or worker.must_leave or serves
        case Deactivate() | Return():
            done = worker.status is Status.INACTIVE
        case Start():
            done = worker.started or worker.must_leave
        case Stop():
            done = not worker.started
        case AdmitGroup():
            done = True
        case _:
            assert_never(step)
    return "it changes nothing, or the worker cannot take it" if done else None
