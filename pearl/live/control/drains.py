"""An operator's drains: a worker that must leave until the operator takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pearl.core.cluster import Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.errors import UsageError
from pearl.live.control.documents import compact
from pearl.live.control.ledger import Ledger, Record
from pearl.live.control.store import ControlStore, Fact, SetFact


class Drains:
    """Which workers an operator drains; on the event loop alone.

    The mark on a worker is the same as under a reclaim notice; what is kept here tells them apart, so that taking a
    drain back does not undo a reclaim. That training does not undo either is the ledger's to see to.
    """

    def __init__(
        self,
        *,
        store: ControlStore,
        ledger: Ledger,
        raise_event: Callable[[Event], int],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._raise_event = raise_event
        self._moved = asyncio.Event()
        self.workers: frozenset[str] = store.fact_as(Fact.DRAINS, frozenset[str]) or frozenset()
        ledger.listen(self._look)

    def heard(self, _: int, event: Event) -> None:
        """An event was accepted: it may concern a worker that is drained."""
        match event.kind:
            case EventKind.RECLAIM_NOTICE if event.within_s is not None:
                self._become(self.workers - frozenset(event.workers))
            case EventKind.GPUS_LOST:
                self._become(self.workers - frozenset(event.workers))
            case _:
                pass

    async def drain(self, worker_id: str, *, deadline_s: float) -> None:
        """Let a worker leave, and wait until it has: its engine ended, or, in the overlap zone, asleep.

        Raises `UsageError` for an unknown worker, and `TimeoutError` at the deadline; it then still leaves.
        """
        self._worker(worker_id)
        if worker_id not in self._ledger.record.leaving:
            self._become(self.workers | {worker_id})
            self._raise_event(Event(kind=EventKind.RECLAIM_NOTICE, workers=(worker_id,)))
        try:
            async with asyncio.timeout(deadline_s):
                while not _left(self._ledger.state.workers, worker_id):
                    await self._moved.wait()
        except TimeoutError:
            raise TimeoutError(f"{worker_id} has not left after {deadline_s:g} s, and goes on leaving") from None

    def undo(self, worker_id: str) -> bool:
        """Take a drain back; returns whether there was one. Raises `UsageError` for an unknown worker."""
        self._worker(worker_id)
        if worker_id not in self.workers:
            return False
        self._become(self.workers - {worker_id})
        self._ledger.stay(worker_id)
        self._raise_event(Event(kind=EventKind.OPERATOR, workers=(worker_id,)))
        return True

    def _worker(self, worker_id: str) -> Worker:
        worker = self._ledger.state.by_id.get(worker_id)
        if worker is None:
            raise UsageError(f"no worker {worker_id!r} is in the state")
        return worker

    def _become(self, workers: frozenset[str]) -> None:
        if workers != self.workers:
            self._store.write(SetFact(fact=Fact.DRAINS, document=compact(sorted(workers))))
            self.workers = workers

    def _look(self, _: Record) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def _left(workers: Iterable[Worker], worker_id: str) -> bool:
    worker = next((worker for worker in workers if worker.id == worker_id), None)
    if worker is None or not worker.started:
        return True
    return worker.zone is Zone.OVERLAP and worker.status is Status.INACTIVE
