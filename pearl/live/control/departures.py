"""How workers leave the pool for good: a reclaim whose grace is over, a death, an engine that is of no use any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.live.control.crew import Crew

RaiseEvent = Callable[[Event], None]
"""Tells the controller of an event, which it applies to the ledger before this returns."""


@dataclass(slots=True, kw_only=True)
class Backoff:
    """How long a worker pauses before its next engine: longer each time, until it has behaved for long enough."""

    first_s: float
    longest_s: float
    """Twice this without a failure, and the next pause is the first again."""
    _last: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """The last pause of each worker, and when it began."""

    def pause_s(self, worker_id: str, *, now_s: float) -> float:
        """The pause after a failure now."""
        before_s, since_s = self._last.get(worker_id, (0.0, now_s))
        anew = not before_s or now_s - since_s > 2 * self.longest_s
        pause_s = min(self.first_s if anew else 2 * before_s, self.longest_s)
        self._last[worker_id] = (pause_s, now_s)
        return pause_s


class Departures:
    """Whatever goes on with a worker that leaves is called off, and its engine ends."""

    def __init__(self, *, crew: Crew, raise_event: RaiseEvent) -> None:
        self._crew = crew
        self._raise_event = raise_event
        self._backoff = Backoff(first_s=crew.limits.restart_after_s, longest_s=crew.limits.restart_within_s)
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._deadlines_s: dict[str, float] = {}

    def expel(self, worker_id: str, why: str) -> None:
        """Take a worker out at once; it comes back, without an engine, after a pause, where its node still lives."""
        worker = self._crew.worker(worker_id)
        if worker is None:
            return
        stays_away = worker.id in self._crew.ledger.record.leaving or (
            worker.must_leave and worker.zone is not Zone.OVERLAP
        )
        pause_s = self._backoff.pause_s(worker_id, now_s=self._crew.now_s())
        self._raise_event(Event(kind=EventKind.GPUS_LOST, workers=(worker_id,), at_s=self._crew.now_s()))
        if not stays_away:
            name = f"the return of {worker_id}, which left: {why}"
            self._crew.later(pause_s, lambda: self._crew.spawn(self._come_back(worker), name))

    async def lose(self, worker_ids: Collection[str]) -> None:
        """These workers died unannounced: as a reclaim, with no grace. Returns when nothing of them is left."""
        for worker_id in worker_ids:
            self.expel(worker_id, "it died")
        for worker_id in worker_ids:
            await self._crew.ended(worker_id)

    def follow(self, before: ClusterState, after: ClusterState) -> None:
        """Watch the deadlines of workers that must leave. The trainer's is watched by whoever waits for it."""
        for worker in after.workers:
            known = before.by_id.get(worker.id)
            if known is None or (known.must_leave, known.leave_within_s) != (worker.must_leave, worker.leave_within_s):
                self._notice(worker)
        for worker_id in before.by_id.keys() - after.by_id.keys():
            self._forget(worker_id)

    def left_s(self, worker_id: str) -> float | None:
        """Seconds until a worker must have left; None where no deadline is known."""
        deadline_s = self._deadlines_s.get(worker_id)
        return None if deadline_s is None else max(0.0, deadline_s - self._crew.now_s())

    def _notice(self, worker: Worker) -> None:
        self._forget(worker.id)
        if not worker.must_leave or worker.leave_within_s is None:
            return
        self._deadlines_s[worker.id] = self._crew.now_s() + worker.leave_within_s
        record = self._crew.ledger.record
        if worker.zone is not Zone.OVERLAP or not record.training or worker.id in record.leaving:
            over = partial(self._grace_is_over, worker.id)
            self._graces[worker.id] = self._crew.later(worker.leave_within_s, over)

    def _forget(self, worker_id: str) -> None:
        self._deadlines_s.pop(worker_id, None)
        if grace := self._graces.pop(worker_id, None):
            grace.cancel()

    def _grace_is_over(self, worker_id: str) -> None:
        self._graces.pop(worker_id, None)
        self._raise_event(Event(kind=EventKind.GPUS_LOST, workers=(worker_id,), at_s=self._crew.now_s()))

    async def _come_back(self, worker: Worker) -> None:
        await self._crew.ended(worker.id)
        if worker.node in {node.name for node in await self._crew.fleet.nodes()}:
            fresh = replace(
                worker,
                role=Role.INACTIVE,
                status=Status.INACTIVE,
                started=False,
                must_leave=False,
                leave_within_s=None,
            )
            event = Event(kind=EventKind.GPUS_ADDED, workers=(worker.id,), added=(fresh,), at_s=self._crew.now_s())
            self._raise_event(event)
