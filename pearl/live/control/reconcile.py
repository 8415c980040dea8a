"""After a restart: what the ledger remembers, against what the workers say of themselves. Pure.

The workers are right about themselves, the ledger about intentions: roles, deadlines, what belongs to us. A worker that
serves goes on without a gap. What was in the middle of a change is taken back to a state that the next plan can start
from: the plan of before is not resumed step by step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.live.control.ledger import Record
from pearl.live.engine.engine import EngineReport


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """Where a restarted controller begins."""

    record: Record
    stop: tuple[str, ...]
    """Workers to stop first: unfit, half started, of a group that is rolled back, or unknown."""
    events: tuple[Event, ...]
    """What happened meanwhile: workers lost with their nodes, workers that joined."""
    because: Mapping[str, str]
    """Why a worker is not what the ledger remembered, by worker."""


def reconcile(
    remembered: Record,
    *,
    found: Mapping[str, EngineReport | None],
    nodes: Collection[str],
    groups: Collection[Collection[str]] = (),
    offered: Collection[Worker] = (),
) -> Reconciled:
    """The record to begin with, the workers to stop, and the events to raise.

    `found` has every living worker of this cluster, with None where its engine gives no report; `nodes` are the names
    of those alive; `groups` those that were being started; `offered` the workers for which the nodes have room.
    """
    verdicts = {w.id: _judge(w, remembered, found, nodes) for w in remembered.state.workers}
    for group in groups:
        _roll_back(group, verdicts)
    known = remembered.state.by_id
    orphans = sorted(found.keys() - known.keys())
    lost = tuple(worker.id for worker in remembered.state.workers if worker.node not in nodes)
    added = tuple(worker for worker in offered if worker.id not in known)
    return Reconciled(
        record=_record(remembered, verdicts, found),
        stop=(*(name for name, verdict in verdicts.items() if verdict.stop), *orphans),
        events=tuple(
            event
            for event, due in (
                (Event(kind=EventKind.GPUS_LOST, workers=lost), lost),
                (Event(kind=EventKind.GPUS_ADDED, workers=tuple(w.id for w in added), added=added), added),
            )
            if due
        ),
        because={
            **{name: verdict.because for name, verdict in verdicts.items() if verdict.because},
            **dict.fromkeys(orphans, "a worker of this cluster that the ledger does not know"),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    worker: Worker
    stop: bool = False
    because: str = ""

    @property
    def up(self) -> bool:
        return self.worker.started


def _judge(
    worker: Worker, remembered: Record, found: Mapping[str, EngineReport | None], nodes: Collection[str]
) -> _Verdict:
    lives = worker.id in found
    if worker.node not in nodes:
        return _off(worker, stop=lives, because=f"its node {worker.node} is gone")
    if not lives:
        return _off(worker, because="its process is gone" if worker.started else "")
    if not worker.started:
        return _off(worker, stop=True, because="it was being stopped")
    report = found[worker.id]
    if why := _useless(report):
        return _off(worker, stop=True, because=why)
    assert report is not None
    if report.asleep:
        idle = worker.status is Status.INACTIVE
        return _idle(worker, because="" if idle else "it sleeps")
    stale = report.weight_version < remembered.oldest
    if report.status is Status.ACTIVE and worker.role is not Role.INACTIVE and not stale:
        return _serving(worker)
    if worker.zone is Zone.OVERLAP:
        return _off(worker, stop=True, because="it was being borrowed or returned, and holds the trainer's memory")
    expected = worker.status is Status.INACTIVE
    why = f"its weights, version {report.weight_version}, are too old" if stale else "it was not admitted"
    return _idle(worker, because="" if expected else why)


def _useless(report: EngineReport | None) -> str:
    """Why the process of a worker that should be up must go; empty where it need not."""
    if report is None:
        return "its engine gives no report: it was starting, or hangs"
    if report.unfit is not None:
        return f"it is unfit: {report.unfit}"
    if report.status is Status.TRANSITIONING:
        return "it did not come to the end of a transition"
    return ""


def _serving(worker: Worker) -> _Verdict:
    """It serves. One that must leave keeps its status, and the first plan drains it."""
    if worker.must_leave or worker.status is Status.ACTIVE:
        return _Verdict(worker=worker)
    return _Verdict(worker=replace(worker, status=Status.ACTIVE), because="it serves; its change is taken back")


def _idle(worker: Worker, *, because: str) -> _Verdict:
    return _Verdict(worker=replace(worker, role=Role.INACTIVE, status=Status.INACTIVE), because=because)


def _off(worker: Worker, *, stop: bool = False, because: str) -> _Verdict:
    off = replace(worker, role=Role.INACTIVE, status=Status.INACTIVE, started=False)
    return _Verdict(worker=off, stop=stop, because=because)


def _roll_back(group: Collection[str], verdicts: dict[str, _Verdict]) -> None:
    """All or none: a group with a member that did not come up is stopped. Members that serve already are in."""
    members = [verdicts[name] for name in group if name in verdicts]
    if len(members) == len(group) and all(verdict.up for verdict in members):
        return
    for verdict in members:
        if verdict.up and verdict.worker.status is not Status.ACTIVE:
            worker = verdict.worker
            verdicts[worker.id] = _off(worker, stop=True, because="another worker of its group did not come up")


def _record(remembered: Record, verdicts: Mapping[str, _Verdict], found: Mapping[str, EngineReport | None]) -> Record:
    workers = tuple(verdict.worker for verdict in verdicts.values())
    reports = {worker.id: found.get(worker.id) for worker in workers if worker.started}
    return replace(
        remembered,
        state=replace(remembered.state, workers=workers, epoch=remembered.state.epoch + 1),
        versions={name: report.weight_version for name, report in reports.items() if report is not None},
    )
