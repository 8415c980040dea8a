"""Who is in the simulated cluster: a seat for every worker, the state they make up, its GPU-seconds and its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pearl.core.cluster import ClusterState, Status, Worker, Zone
from pearl.core.event import Event
from pearl.sim.events import EventQueue
from pearl.sim.log import Happening, Record
from pearl.sim.seat import Seat
from pearl.sim.usage import UsageMeter


class Roster:
    """Keeps the record; what happens on the seats is up to the cluster."""

    def __init__(self, *, epoch: int, queue: EventQueue) -> None:
        self.seats: dict[str, Seat] = {}
        """By worker id, in the order in which they came."""
        self.usage = UsageMeter()
        self.log: list[Record] = []
        self._queue = queue
        self._epoch = epoch
        self._state: ClusterState | None = None

    @property
    def state(self) -> ClusterState:
        """The GPU–worker–role state as it is now."""
        if self._state is None:
            workers = tuple(seat.worker for seat in self.seats.values())
            self._state = ClusterState(workers=workers, epoch=self._epoch)
        return self._state

    @property
    def overlap_is_free(self) -> bool:
        """Whether no overlap worker holds device memory."""
        overlap = (seat for seat in self.seats.values() if seat.worker.zone is Zone.OVERLAP)
        return all(seat.worker.status is Status.INACTIVE for seat in overlap)

    def present(self, worker_ids: Iterable[str]) -> list[Seat]:
        """The seats of those workers that are still here."""
        return [self.seats[worker_id] for worker_id in worker_ids if worker_id in self.seats]

    def named(self, event: Event) -> list[Seat]:
        """The seats that an event touches; one without workers touches the overlap zone."""
        if event.workers:
            return self.present(event.workers)
        return [seat for seat in self.seats.values() if seat.worker.zone is Zone.OVERLAP]

    def add(self, seat: Seat) -> None:
        """A worker joins."""
        self.seats[seat.worker.id] = seat
        self.put(seat, seat.worker)

    def put(self, seat: Seat, worker: Worker) -> None:
        """From now on the seat's worker is as given."""
        seat.worker = worker
        self._changed()
        self.usage.put(self._queue.now_s, worker)
        self.record(
            Happening.WORKER,
            worker=worker.id,
            zone=worker.zone.value,
            role=worker.role.value,
            status=worker.status.value,
            gpus=worker.gpus,
        )

    def remove(self, worker_id: str) -> Seat:
        """A worker is gone."""
        seat = self.seats.pop(worker_id)
        self._changed()
        self.usage.remove(self._queue.now_s, worker_id)
        self.record(Happening.WORKER, worker=worker_id, gone=True)
        return seat

    def record(self, what: Happening, **data: object) -> None:
        """Log what happens now."""
        facts: Mapping[str, object] = data
        self.log.append(Record(at_s=self._queue.now_s, what=what, data=facts))

    def _changed(self) -> None:
        self._epoch += 1
        self._state = None
