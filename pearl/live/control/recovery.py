"""Where a controller begins: on nothing, or on what the one before it left. Looks at the workers, then `reconcile`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from pearl.core.cluster import Status, Worker
from pearl.core.event import Event, EventKind
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge
from pearl.errors import PearlError
from pearl.live.control.bootstrap import first_record
from pearl.live.control.documents import Document, record_from_text
from pearl.live.control.fleet import Fleet, WorkerHandle
from pearl.live.control.ledger import Record
from pearl.live.control.log import log
from pearl.live.control.progress import Phase
from pearl.live.control.progress_log import OVER
from pearl.live.control.reconcile import reconcile
from pearl.live.control.store import AddDecision, AddEvent, AddPlan, AddProgress, ControlStore, Fact, understood
from pearl.live.engine.engine import EngineReport
from pearl.live.weights import WeightRef

LOOK_S = 30.0
"""A worker says what it is within this; a transition that it was left in has come to its end by then."""
LOOK_EVERY_S = 0.25
RECENT_PLANS = 16
"""Plans in which a group may still be starting: starts outlive the plans that follow."""
RECENT_EVENTS = 10_000
"""Among so many a notice is found whose grace is not over."""
RECENT_DECISIONS = 1000
"""A change that is further back is outside of any cooldown."""


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """The record to begin with, and the events that are to be raised then."""

    record: Record
    events: tuple[Event, ...] = ()
    resumed: bool = False
    """Whether a controller was here before."""


async def begin(
    store: ControlStore,
    fleet: Fleet,
    *,
    offered: Collection[Worker],
    orphans: Iterable[str] = (),
    weights: WeightRef | None = None,
    epoch: int = 0,
    unix_s: Callable[[], float] = time.time,
) -> Beginning:
    """Look around, stop what must not go on, and say where to begin.

    `offered` are the workers for which the nodes have room; `orphans` the ids of living workers of this cluster, known
    or not; `weights` the newest ones; `epoch` is that of the router's pool, which the record's must exceed.
    """
    text = store.fact(Fact.RECORD)
    if text is None:
        await _stop(fleet, orphans)
        record = first_record(offered, weights)
        return Beginning(record=_above(record, epoch))
    notices = store.events(after=max(0, store.last("events") - RECENT_EVENTS), limit=RECENT_EVENTS)
    remembered = shortened(record_from_text(text), notices, now_unix_s=unix_s())
    ids = {*orphans, *(worker.id for worker in remembered.state.workers)}
    found = await look(fleet, ids)
    outcome = reconcile(
        remembered,
        found=found,
        nodes={node.name for node in await fleet.nodes()},
        groups=_starting_groups(store),
        offered=offered,
    )
    for worker, why in outcome.because.items():
        log("reconciled", worker=worker, because=why, stop=worker in outcome.stop)
    await _stop(fleet, outcome.stop)
    return Beginning(record=_above(outcome.record, epoch), events=outcome.events, resumed=True)


def shortened(record: Record, notices: Iterable[AddEvent], *, now_unix_s: float) -> Record:
    """The record with what is left of each reclaim's grace: the notice counts, not the restart."""
    deadlines = {
        name: notice.at_unix_s + _within_s(notice)
        for notice in notices
        if notice.kind == EventKind.RECLAIM_NOTICE and "within_s" in notice.data
        for name in notice.workers
    }
    workers = tuple(
        replace(worker, leave_within_s=max(0.0, min(worker.leave_within_s, deadlines[worker.id] - now_unix_s)))
        if worker.must_leave and worker.leave_within_s is not None and worker.id in deadlines
        else worker
        for worker in record.state.workers
    )
    return replace(record, state=replace(record.state, workers=workers))


def change_ages(store: ControlStore, *, now_unix_s: float) -> dict[Change, ChangeAge]:
    """How long ago each kind of change was decided, as cooldowns count it."""
    newest = {kind: decision for decision in store.decisions(limit=RECENT_DECISIONS) for kind in _changes(decision)}
    return {
        kind: ChangeAge(
            steps=store.count_events(EventKind.BATCH_STARTED.value, after=decision.event or 0),
            seconds=max(0.0, now_unix_s - decision.at_unix_s),
        )
        for kind, decision in newest.items()
    }


def _within_s(notice: AddEvent) -> float:
    with understood(f"event {notice.number}"):
        return float(notice.data["within_s"])


def _changes(decision: AddDecision) -> list[Change]:
    with understood(f"decision {decision.number}"):
        return [Change(kind) for kind in decision.document.get("changes", ())]


async def look(fleet: Fleet, ids: Iterable[str]) -> dict[str, EngineReport | None]:
    """What each living worker says of itself; None where it says nothing within `LOOK_S`."""
    handles = {name: handle for name in ids if (handle := fleet.find(name)) is not None}
    reports = await asyncio.gather(*(_settled_report(handle) for handle in handles.values()))
    return dict(zip(handles, reports, strict=True))


async def _settled_report(handle: WorkerHandle) -> EngineReport | None:
    """The report once no transition is under way; the last one where that lasts."""
    report: EngineReport | None = None
    try:
        async with asyncio.timeout(LOOK_S):
            while report is None or report.status is Status.TRANSITIONING:
                if report is not None:
                    await asyncio.sleep(LOOK_EVERY_S)
                report = await handle.report()
    except (PearlError, TimeoutError):
        pass
    return report


async def _stop(fleet: Fleet, ids: Iterable[str]) -> None:
    handles = [handle for name in ids if (handle := fleet.find(name)) is not None]
    results = await asyncio.gather(*(handle.stop() for handle in handles), return_exceptions=True)
    for handle, result in zip(handles, results, strict=True):
        if isinstance(result, BaseException):
            log("stop_failed", level=logging.ERROR, worker=handle.name, error=str(result))


def _above(record: Record, epoch: int) -> Record:
    return replace(record, state=replace(record.state, epoch=max(record.state.epoch, epoch + 1)))


def _starting_groups(store: ControlStore) -> list[tuple[str, ...]]:
    """The groups that were to be admitted and were not."""
    groups = []
    for plan in store.plans(limit=RECENT_PLANS):
        over = _over(store, plan)
        steps: list[Document] = plan.document["steps"]
        groups += [
            tuple(step["workers"])
            for index, step in enumerate(steps)
            if step["kind"] == "admit_group" and index not in over
        ]
    return groups


def close_plans(store: ControlStore, *, at_unix_s: float) -> None:
    """Say of every step that the controller before did not come to that it is dropped: the next plan stands for it."""
    for plan in store.plans(limit=RECENT_PLANS):
        over = _over(store, plan)
        store.write(
            *(
                AddProgress(
                    plan=plan.number,
                    step=index,
                    phase=Phase.DROPPED.value,
                    at_unix_s=at_unix_s,
                    seconds=0.0,
                    because="the controller restarted; its first decision stands for what was left",
                )
                for index in range(len(plan.document["steps"]))
                if index not in over
            )
        )


def _over(store: ControlStore, plan: AddPlan) -> set[int]:
    with understood(f"progress of plan {plan.number}"):
        return {entry.step for entry in store.progress(plan.number) if Phase(entry.phase) in OVER}
