"""Weights: every worker comes to the newest published version, and the pool serves while they do.

The order within a worker is the engine's (docs/live-workers.md): legs end with the tokens they have and go on
elsewhere, KV caches of the old weights are given up, then the new version serves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.plan import Activate, Borrow
from pearl.core.telemetry import TransitionKind
from pearl.errors import Fault, PearlError, UsageError
from pearl.live.control.crew import Crew, Expel, Measured
from pearl.live.control.progress import Phase
from pearl.live.control.seat import Job, Outcome, Seat, void
from pearl.live.weights import WeightRef

AWAY_SHARE = 2
"""At most one in this many serving workers of a role updates at a time: the others serve its legs meanwhile."""


class StaleWeightsError(PearlError):
    """A version that is older than the one published: versions never go back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a publication did."""

    version: int
    updated: tuple[str, ...]
    """Workers that serve this version, or a newer one, since."""
    left: tuple[str, ...]
    """Workers that left the pool instead: they failed, took too long, or were lost."""
    seconds: float


class Weights:
    """The newest version, and how workers come to it."""

    def __init__(
        self, *, crew: Crew, newest: WeightRef | None, max_staleness: int, measured: Measured, expel: Expel
    ) -> None:
        latest, given = crew.ledger.record.latest, newest.version if newest else 0
        if latest != given:
            message = f"the ledger is at weights {latest}, and the newest that were given are {given}"
            raise UsageError(Fault(message=message, expected=f"the directory of weights {latest}"))
        self.newest = newest
        self._crew = crew
        self._max_staleness = max_staleness
        self._measured = measured
        self._expel = expel
        self._one_at_a_time = asyncio.Lock()
        self._publications: dict[int, asyncio.Task[Published]] = {}

    def behind(self, seat: Seat) -> bool:
        """Whether a worker holds older weights than the newest."""
        return self.newest is not None and self._crew.ledger.version(seat.id) < self.newest.version

    async def sync(self, seat: Seat) -> None:
        """Bring a worker that is awake to the newest weights, those published meanwhile included.

        For jobs of that seat. Raises what the worker raises, or `EngineFailedError` past the limit.
        """
        crew, limits = self._crew, self._crew.limits
        while (ref := self.newest) is not None and self.behind(seat) and seat.handle is not None:
            began_s = crew.now_s()
            update = seat.handle.update_weights(version=ref.version, directory=ref.directory, limits=limits.transition)
            await crew.ask(seat.id, f"weights {ref.version}", update, limits.transition_s)
            crew.ledger.synced(seat.id, ref.version)
            self._measured(TransitionKind.SYNC_WEIGHTS, crew.now_s() - began_s, (seat.id,))

    async def publish(self, ref: WeightRef) -> Published:
        """Make `ref` the newest weights and update every worker that is started and awake.

        The others take it before they serve. A worker that fails leaves the pool. Publications go one after the other,
        and each brings workers to the newest version of the moment. Publishing the same again changes nothing. A
        cancelled wait leaves the update under way: what is published stays so. Raises `StaleWeightsError`, and
        `UsageError` where the version is published from another directory.
        """
        self._accept(ref)
        task = self._publications.get(ref.version)
        if task is None:
            task = self._crew.spawn(self._publish(ref), f"publication of weights {ref.version}")
            self._publications[ref.version] = task
            task.add_done_callback(lambda _: void(self._publications.pop(ref.version)))
        return await asyncio.shield(task)

    def catch_up(self, seat: Seat) -> None:
        """Update a worker that was left out because it had to leave, and stays after all."""
        if self.behind(seat):
            self._crew.spawn(self._catch_up(seat), f"weights of {seat.id}")

    async def _catch_up(self, seat: Seat) -> None:
        async with self._one_at_a_time:
            worker = self._crew.worker(seat.id)
            if worker is not None and self._due(seat, worker):
                await self._in_turn(seat, worker, self._gates())

    def _accept(self, ref: WeightRef) -> None:
        newest = self.newest
        if newest is not None and ref.version < newest.version:
            raise StaleWeightsError(
                f"weights {ref.version} are older than {newest.version}, which are published: publish a newer version"
            )
        if newest is not None and ref.version == newest.version and ref.directory != newest.directory:
            message = f"weights {ref.version} are published from {newest.directory}, and now sent as {ref.directory}"
            raise UsageError(Fault(message=message, expected="a new version for new weights"))
        self.newest = ref
        self._crew.ledger.published(latest=ref.version, oldest=max(0, ref.version - self._max_staleness))

    async def _publish(self, ref: WeightRef) -> Published:
        began_s = self._crew.now_s()
        async with self._one_at_a_time:
            due = [(seat, worker) for seat, worker in self._crew.pairs() if self._due(seat, worker)]
            gates = self._gates()
            outcomes = await asyncio.gather(*(self._in_turn(seat, worker, gates) for seat, worker in due))
        return Published(
            version=ref.version,
            updated=tuple(seat.id for seat, _ in due if self._crew.ledger.version(seat.id) >= ref.version),
            left=tuple(
                seat.id
                for (seat, _), outcome in zip(due, outcomes, strict=True)
                if outcome.failure or self._crew.seats.get(seat.id) is not seat
            ),
            seconds=self._crew.now_s() - began_s,
        )

    def _due(self, seat: Seat, worker: Worker) -> bool:
        sleeps = worker.zone is Zone.OVERLAP and worker.status is Status.INACTIVE
        comes = seat.joining or (seat.current is not None and isinstance(seat.current.step, (Activate, Borrow)))
        return seat.up and not (sleeps or comes or worker.must_leave) and self.behind(seat)

    def _gates(self) -> dict[Role, asyncio.Semaphore]:
        serving = Counter(worker.role for _, worker in self._crew.pairs() if worker.status is Status.ACTIVE)
        return {role: asyncio.Semaphore(max(1, number // AWAY_SHARE)) for role, number in serving.items()}

    async def _in_turn(self, seat: Seat, worker: Worker, gates: dict[Role, asyncio.Semaphore]) -> Outcome:
        """Update a worker when its role can spare it. One that is too old to serve is spared already."""
        record = self._crew.ledger.record
        serves = worker.status is Status.ACTIVE and self._crew.ledger.version(seat.id) >= record.oldest
        gate: AbstractAsyncContextManager[object] = gates[worker.role] if serves else nullcontext()
        async with gate:
            over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            seat.submit(self._update(seat, lambda outcome: None if over.done() else over.set_result(outcome)))
            outcome = await over
        if outcome.failure is not None:
            self._expel(seat.id, outcome.because)
        return outcome

    def _update(self, seat: Seat, over: Callable[[Outcome], None]) -> Job:
        """Leaving comes first: a worker that must leave, or has left, updates no more."""
        crew = self._crew

        def begin() -> str | None:
            worker = crew.worker(seat.id)
            if worker is None or not self._due(seat, worker):
                return "it leaves, sleeps, or has these weights"
            seat.serve_on = worker.status is Status.ACTIVE
            if seat.serve_on:
                crew.change(seat.id, status=Status.TRANSITIONING)
            return None

        async def work() -> str:
            await self.sync(seat)
            return ""

        def ended(outcome: Outcome) -> None:
            if outcome.phase is Phase.ENDED and seat.serve_on:
                crew.change(seat.id, status=Status.ACTIVE)
            over(outcome)

        return Job(what="weight update", begin=begin, work=work, over=ended)
