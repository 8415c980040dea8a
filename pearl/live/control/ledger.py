"""The ledger: the GPU–worker–role state of a live cluster and the weight version of each worker.

It is written on the event loop alone, so that there is one order of changes. Every change raises the epoch and is told
to the listeners before `put` or `happen` returns: the router stops dispatch to a worker in the same turn of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pearl.core.cluster import ClusterState, Worker, Zone
from pearl.core.event import Event, EventKind, apply_event
from pearl.live.router.pool import Endpoint, Pool
from pearl.live.worker import URL_SCHEME


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the ledger holds: state, weights of each worker, and which weights the job is at."""

    state: ClusterState
    versions: Mapping[str, int] = field(default_factory=dict)
    """Weight version of each worker; 0, the model's own, where absent."""
    latest: int = 0
    """Newest published weight version."""
    oldest: int = 0
    """Oldest weight version that may still generate."""
    training: bool = False
    """Whether the trainer holds the overlap zone, workers that join it later included."""
    leaving: frozenset[str] = frozenset()
    """Workers that must leave whatever the trainer does: they were reclaimed, or an operator drains them."""

    def pool(self) -> Pool:
        """The record as the router takes it."""
        endpoints = {
            worker.id: Endpoint(url=f"{URL_SCHEME}{worker.id}", weight_version=self.versions.get(worker.id, 0))
            for worker in self.state.workers
            if worker.started
        }
        workers = tuple(worker for worker in self.state.workers if worker.started)
        state = ClusterState(workers=workers, epoch=self.state.epoch)
        return Pool(state=state, endpoints=endpoints, oldest_weight_version=self.oldest)


Listener = Callable[[Record], None]
"""Told of every change, in order, within the change."""


class Ledger:
    """The one shared record. Not thread-safe: call it on the event loop."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._listeners: list[Listener] = []

    @property
    def record(self) -> Record:
        """All of it as it is now."""
        return self._record

    @property
    def state(self) -> ClusterState:
        """The GPU–worker–role state."""
        return self._record.state

    def version(self, worker_id: str) -> int:
        """The weight version that a worker holds."""
        return self._record.versions.get(worker_id, 0)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on."""
        self._listeners.append(listener)

    def happen(self, event: Event) -> bool:
        """Apply an event of the outside world; returns whether it changed anything.

        Overlap workers that join while the trainer holds their zone must leave it like the others. Neither beginning
        nor end of training changes what was told to workers that are `leaving`.
        """
        training, leaving = self._training_after(event), self._record.leaving
        added = tuple(
            replace(worker, must_leave=True) if training and worker.zone is Zone.OVERLAP else worker
            for worker in event.added
        )
        state = apply_event(self.state, replace(event, added=added), leaving=leaving)
        if event.kind is EventKind.RECLAIM_NOTICE:
            leaving |= frozenset(event.workers) & state.by_id.keys()
        return self._become(replace(self._record, state=state, training=training, leaving=leaving))

    def stay(self, worker_id: str) -> bool:
        """A worker need not leave any more, unless the trainer has its zone."""
        worker = self.state.by_id[worker_id]
        mine = self._record.training and worker.zone is Zone.OVERLAP
        staying = replace(worker, must_leave=mine, leave_within_s=None)
        workers = tuple(staying if w.id == worker_id else w for w in self.state.workers)
        leaving = self._record.leaving - {worker_id}
        return self._become(replace(self._record, state=replace(self.state, workers=workers), leaving=leaving))

    def put(self, *workers: Worker) -> bool:
        """Replace these workers in one change; those that are gone by now are left out."""
        new = {worker.id: worker for worker in workers}
        return self._become_workers(tuple(new.get(worker.id, worker) for worker in self.state.workers))

    def synced(self, worker_id: str, version: int) -> bool:
        """A worker holds these weights now."""
        return self._become(replace(self._record, versions={**self._record.versions, worker_id: version}))

    def published(self, *, latest: int, oldest: int) -> bool:
        """New weights exist; workers with older ones than `oldest` serve no more. Versions never go back."""
        latest, oldest = max(latest, self._record.latest), max(oldest, self._record.oldest)
        return self._become(replace(self._record, latest=latest, oldest=oldest))

    def _training_after(self, event: Event) -> bool:
        if event.kind is EventKind.TRAINING_FINISHED:
            return self._record.training and bool(event.workers)
        return self._record.training or (event.kind is EventKind.TRAINING_STARTED and not event.workers)

    def _become_workers(self, workers: tuple[Worker, ...]) -> bool:
        if workers == self.state.workers:
            return False
        return self._become(replace(self._record, state=replace(self.state, workers=workers)))

    def _become(self, record: Record) -> bool:
        if record == self._record:
            return False
        here = {worker.id for worker in record.state.workers}
        versions = {worker_id: version for worker_id, version in record.versions.items() if worker_id in here}
        state = replace(record.state, epoch=self.state.epoch + 1)
        leaving = record.leaving & here
        self._record = replace(record, state=state, versions=versions, leaving=leaving)
        for listener in self._listeners:
            listener(self._record)
        return True
