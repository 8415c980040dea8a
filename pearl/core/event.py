"""Events: why a decision is due, and what each does to the state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from pearl.core.cluster import ClusterState, Worker, Zone


class EventKind(StrEnum):
    """What happened."""

    GPUS_ADDED = "gpus_added"
    RECLAIM_NOTICE = "reclaim_notice"
    GPUS_LOST = "gpus_lost"
    TRAINING_STARTED = "training_started"
    TRAINING_FINISHED = "training_finished"
    PROFILE_UPDATED = "profile_updated"
    BATCH_STARTED = "batch_started"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event: the workers it touches, and how long they have (reclaim grace, or training window).

    A training event without workers touches the whole overlap zone.
    """

    kind: EventKind
    workers: tuple[str, ...] = ()
    within_s: float | None = None
    at_s: float = 0.0
    added: tuple[Worker, ...] = ()
    """The workers that `gpus_added` brings: inactive, and not started."""


def apply_event(state: ClusterState, event: Event, *, leaving: Collection[str] = ()) -> ClusterState:
    """The state after `event`, one epoch later; `state` itself where the event changes nothing.

    Applying an event twice is therefore the same as once, and workers that are already gone are no error. `leaving`
    must leave whatever the trainer does: neither begin nor end of training changes what they were told.
    """
    workers = _workers_after(state, event, leaving)
    return state if workers == state.workers else state.with_workers(workers)


def _workers_after(state: ClusterState, event: Event, leaving: Collection[str]) -> tuple[Worker, ...]:
    match event.kind:
        case EventKind.GPUS_ADDED:
            return state.workers + tuple(worker for worker in event.added if worker.id not in state.by_id)
        case EventKind.GPUS_LOST:
            lost = frozenset(event.workers)
            return tuple(worker for worker in state.workers if worker.id not in lost)
        case EventKind.RECLAIM_NOTICE:
            return _marked(state, frozenset(event.workers), must_leave=True, within_s=event.within_s)
        case EventKind.TRAINING_STARTED:
            return _marked(state, _overlap(state, event) - set(leaving), must_leave=True, within_s=event.within_s)
        case EventKind.TRAINING_FINISHED:
            return _marked(state, _overlap(state, event) - set(leaving), must_leave=False, within_s=None)
        case EventKind.PROFILE_UPDATED | EventKind.BATCH_STARTED | EventKind.OPERATOR:
            return state.workers
    assert_never(event.kind)


def _overlap(state: ClusterState, event: Event) -> frozenset[str]:
    named = frozenset(event.workers)
    return frozenset(w.id for w in state.workers if w.zone is Zone.OVERLAP and (not named or w.id in named))


def _marked(
    state: ClusterState, ids: Collection[str], *, must_leave: bool, within_s: float | None
) -> tuple[Worker, ...]:
    return tuple(
        replace(worker, must_leave=must_leave, leave_within_s=within_s) if worker.id in ids else worker
        for worker in state.workers
    )
