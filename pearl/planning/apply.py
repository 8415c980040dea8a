"""The pure model of what a plan does to a state, which tests, the simulator and every executor's checks share."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pearl.core.cluster import ClusterState, Role, Status, Worker
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
from pearl.errors import PearlError


class StalePlanError(PearlError):
    """The plan was made for another state; a new decision is due."""


def apply_plan(state: ClusterState, plan: Plan) -> ClusterState:
    """The state after every step; one epoch later, unless the plan is empty.

    Raises StalePlanError where the plan was made for another epoch, or names a worker that the state does not have.
    """
    if plan.from_epoch != state.epoch:
        raise StalePlanError(
            f"the plan was made for epoch {plan.from_epoch}, and the state is at epoch {state.epoch}: decide again on"
            " the new state"
        )
    if plan.empty:
        return state
    workers = dict(state.by_id)
    for step in plan.steps:
        for name in touched(step):
            if name not in workers:
                raise StalePlanError(f"the plan names worker {name!r}, which is not in the state: decide again")
            workers[name] = advance(workers[name], step)
    return state.with_workers(workers.values())


def touched(step: Step) -> tuple[str, ...]:
    """Ids of the workers that a step changes."""
    return step.workers if isinstance(step, AdmitGroup) else (step.worker,)


def advance(worker: Worker, step: Step) -> Worker:
    """The worker after a step that touches it; taking the same step again changes nothing."""
    match step:
        case Drain():
            serves = worker.status is Status.ACTIVE and worker.role is not Role.INACTIVE
            return replace(worker, status=Status.TRANSITIONING) if serves else worker
        case ChangeRole():
            return replace(worker, role=step.after, status=Status.ACTIVE)
        case Activate() | Borrow():
            return replace(worker, role=step.role, status=Status.ACTIVE)
        case Deactivate() | Return():
            return replace(worker, role=Role.INACTIVE, status=Status.INACTIVE)
        case Start():
            starting = replace(worker, role=step.role, status=Status.TRANSITIONING, started=True)
            return worker if worker.started else starting
        case AdmitGroup():
            ready = worker.status is Status.TRANSITIONING
            return replace(worker, status=Status.ACTIVE) if ready else worker
        case Stop():
            return replace(worker, role=Role.INACTIVE, status=Status.INACTIVE, started=False)
    assert_never(step)
