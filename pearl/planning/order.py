"""The order of a plan's steps: mandatory ones first, and someone serves throughout. docs/planning.md argues for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.grouping import WorkerGroup, current_role, natural_key
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
from pearl.core.problem import Assignment
from pearl.planning.moves import Move, find_moves
from pearl.planning.rolling import roll


def make_plan(
    state: ClusterState, groups: Sequence[WorkerGroup], assignment: Assignment, costs: TransitionCosts
) -> Plan:
    """The plan with the fewest role changes that turns `state` into one with the counts of `assignment`.

    `groups` are those of `group_workers(state)`, and `assignment` places every worker of each. The plan of a state's
    own assignment is empty unless a worker must leave. Raises ValueError where the three do not fit together.
    """
    moves = sorted(find_moves(state, groups, assignment), key=lambda move: natural_key(move.worker.id))
    starts = [move for move in moves if not move.worker.started]
    joins = [move for move in moves if move.worker.started and move.before is Role.INACTIVE]
    changes = [move for move in moves if Role.INACTIVE not in (move.before, move.after)]
    leaves = [move for move in moves if move.after is Role.INACTIVE]

    serving = [current_role(worker) for worker in state.workers if _serves_on(worker)]
    before_admission, after_admission = roll(
        [*serving, *(move.after for move in joins)], changes, joining=[move.after for move in starts]
    )
    return Plan(
        from_epoch=state.epoch,
        steps=(
            *_mandatory(state.workers, costs),
            *(Start(worker=move.worker.id, role=move.after, estimated_s=costs.start_s) for move in starts),
            *(_join(move, costs) for move in joins),
            *_role_changes(before_admission, costs),
            *_admission(starts, costs),
            *_role_changes(after_admission, costs),
            *_voluntary(leaves, costs),
        ),
    )


def _serves_on(worker: Worker) -> bool:
    """Whether a worker takes requests now, and may go on doing so."""
    return worker.status is Status.ACTIVE and current_role(worker) is not Role.INACTIVE and not worker.must_leave


def _mandatory(workers: Iterable[Worker], costs: TransitionCosts) -> list[Step]:
    """Hand back the GPUs that must go, soonest deadline first; dispatch to all of them stops before any is awaited."""
    leaving = [worker for worker in workers if worker.must_leave and _holds_gpu_memory(worker)]
    leaving.sort(key=lambda worker: (_deadline_s(worker), natural_key(worker.id)))
    drains = [
        Drain(
            worker=worker.id,
            estimated_s=min(costs.drain_s, _deadline_s(worker)),
            deadline_s=worker.leave_within_s,
        )
        for worker in leaving
        if _runs_requests(worker)
    ]
    return [*drains, *(_hand_back(worker, costs) for worker in leaving)]


def _deadline_s(worker: Worker) -> float:
    return math.inf if worker.leave_within_s is None else worker.leave_within_s


def _holds_gpu_memory(worker: Worker) -> bool:
    """An idle overlap worker sleeps and has freed its memory; any other engine holds it until it stops."""
    if worker.status is Status.TRANSITIONING:
        return True
    return worker.started and not (worker.zone is Zone.OVERLAP and worker.status is Status.INACTIVE)


def _runs_requests(worker: Worker) -> bool:
    return worker.started and (worker.status is Status.TRANSITIONING or current_role(worker) is not Role.INACTIVE)


def _hand_back(worker: Worker, costs: TransitionCosts) -> Step:
    if worker.zone is Zone.OVERLAP:
        return Return(worker=worker.id, estimated_s=costs.return_s)
    return Stop(worker=worker.id, estimated_s=costs.stop_s)


def _join(move: Move, costs: TransitionCosts) -> Step:
    if move.worker.zone is Zone.OVERLAP:
        return Borrow(worker=move.worker.id, role=move.after, estimated_s=costs.borrow_s)
    seconds = costs.activate_s + costs.sync_weights_s
    return Activate(worker=move.worker.id, role=move.after, estimated_s=seconds)


def _role_changes(batches: Iterable[Sequence[Move]], costs: TransitionCosts) -> Iterable[Step]:
    for batch in batches:
        for move in batch:
            yield Drain(worker=move.worker.id, estimated_s=costs.drain_s)
        for move in batch:
            yield ChangeRole(
                worker=move.worker.id, before=move.before, after=move.after, estimated_s=costs.change_role_s
            )


def _admission(starts: Sequence[Move], costs: TransitionCosts) -> Iterable[Step]:
    if starts:
        yield AdmitGroup(workers=tuple(move.worker.id for move in starts), estimated_s=costs.admit_s)


def _voluntary(leaves: Sequence[Move], costs: TransitionCosts) -> list[Step]:
    """Release the workers that the decision can do without: borrowed ones first, then those likely to be reclaimed."""
    workers = sorted(
        (move.worker for move in leaves), key=lambda w: (w.zone is not Zone.OVERLAP, -w.reclaim_probability)
    )
    drains = [Drain(worker=worker.id, estimated_s=costs.drain_s) for worker in workers]
    return [*drains, *(_release(worker, costs) for worker in workers)]


def _release(worker: Worker, costs: TransitionCosts) -> Step:
    if worker.zone is Zone.OVERLAP:
        return Return(worker=worker.id, estimated_s=costs.return_s)
    return Deactivate(worker=worker.id, estimated_s=costs.deactivate_s)
