"""The crew: a seat for every worker of the ledger, and what all of the executor's parts do with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.telemetry import TransitionKind
from pearl.errors import PearlError
from pearl.live.control.fleet import Fleet, WorkerHandle
from pearl.live.control.ledger import Ledger
from pearl.live.control.limits import ControlLimits
from pearl.live.control.seat import Job, Outcome, Seat, describe
from pearl.live.protocol import EngineFailedError

_log = logging.getLogger("pearl.control")

STOP_TRIES = 3
"""How often an actor that is to end is asked to; what does not end then needs a person."""
STOP_PAUSE_S = 1.0

Answer = TypeVar("Answer")

Measured = Callable[[TransitionKind, float, tuple[str, ...]], None]
"""Told of every transition that ended well: its kind, its seconds, and the workers that it changed."""

Expel = Callable[[str, str], None]
"""Takes a worker out of the pool at once, for a reason; it may come back with a new engine."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ending:
    """A worker that left the ledger, and the task that ends its engine."""

    seat: Seat
    task: asyncio.Task[None]


class NotEndedError(PearlError):
    """A process could not be ended: its GPUs may still be in use."""


class Crew:
    """Made on the event loop. Seats come and go with the workers of the ledger."""

    def __init__(self, *, ledger: Ledger, fleet: Fleet, limits: ControlLimits, now_s: Callable[[], float]) -> None:
        self.ledger = ledger
        self.fleet = fleet
        self.limits = limits
        self.now_s = now_s
        self.closed = False
        """Whether workers are somebody else's from now on."""
        self.seats: dict[str, Seat] = {worker.id: self._adopt(worker) for worker in ledger.state.workers}
        self._endings: dict[str, _Ending] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    # Looking

    def worker(self, worker_id: str) -> Worker | None:
        """The worker as it is now; None for one that is gone."""
        return self.ledger.state.by_id.get(worker_id)

    def pairs(self) -> Iterator[tuple[Seat, Worker]]:
        """Seats and their workers, in the order of the ledger."""
        for worker in self.ledger.state.workers:
            if seat := self.seats.get(worker.id):
                yield seat, worker

    # Changing

    def change(
        self, worker_id: str, *, role: Role | None = None, status: Status | None = None, started: bool | None = None
    ) -> None:
        """Change these fields of a worker; nothing where it is gone."""
        if worker := self.worker(worker_id):
            self.ledger.put(_changed(worker, role=role, status=status, started=started))

    def rest(self, worker_id: str, *, started: bool | None = None) -> None:
        """The worker serves nothing."""
        self.change(worker_id, role=Role.INACTIVE, status=Status.INACTIVE, started=started)

    def follow(self, state: ClusterState) -> tuple[Seat, ...]:
        """Give newcomers a seat; returns those of workers that are gone, whose engines end from now on.

        Changes nothing in the ledger, since it listens to it.
        """
        gone = tuple(seat for seat in self.seats.values() if seat.id not in state.by_id)
        for seat in gone:
            self._let_go(seat)
        for worker in state.workers:
            if worker.id not in self.seats:
                self.seats[worker.id] = self._adopt(worker)
        return gone

    # Background

    def spawn(self, work: Coroutine[Any, Any, Answer], name: str) -> asyncio.Task[Answer]:
        """Do `work` in the background, and remember it until it is done."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)
        return task

    def later(self, delay_s: float, action: Callable[[], object]) -> asyncio.TimerHandle:
        """Do `action` after a while, unless the crew is given up before. Nothing settles by waiting for it."""

        def fire() -> None:
            self._timers.discard(timer)
            action()

        timer = asyncio.get_running_loop().call_later(delay_s, fire)
        self._timers.add(timer)
        return timer

    async def settle(self) -> None:
        """Wait until no seat does anything and nothing goes on in the background."""
        await asyncio.sleep(0)  # what the last change of the ledger leads to has begun by then
        while tasks := self._under_way():
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Wait for engines that are ending, and leave every other worker as it is, as if this process were killed."""
        if endings := [ending.task for ending in self._endings.values()]:
            await asyncio.wait(endings, timeout=self.limits.stop_s)
        self.closed = True
        for timer in self._timers:
            timer.cancel()
        tasks = self._under_way()
        for seat in self.seats.values():
            seat.abandon()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _under_way(self) -> list[asyncio.Task[Any]]:
        return [*self._tasks, *(seat.task for seat in self.seats.values() if seat.task)]

    # Asking workers

    async def ask(self, worker_id: str, what: str, answer: Awaitable[Answer], limit_s: float) -> Answer:
        """The answer of a worker, within a limit; raises `EngineFailedError` where it does not come."""
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            raise EngineFailedError(f"{worker_id}: no answer to {what} in {limit_s:g} s") from None

    async def admit(self, seat: Seat) -> None:
        """Have the engine take legs; the ledger says when it gets some. Raises what the worker raises."""
        if seat.handle is not None:
            await self.ask(seat.id, "admit", seat.handle.admit(), self.limits.call_s)

    async def stop(self, seat: Seat) -> None:
        """End the engine of a seat, and its actor. Raises where that fails."""
        seat.up = False
        if (handle := seat.handle) is not None:
            await self._stop(seat.id, handle)
        seat.handle, seat.asleep = None, False

    def end_job(self, seat: Seat, over: Callable[[Outcome], None] = lambda _: None) -> Job:
        """The job that ends a seat's engine and leaves its GPUs free, the worker not started."""

        def begin() -> str | None:
            seat.joining = False
            self.change(seat.id, role=Role.INACTIVE, status=Status.TRANSITIONING)
            return None

        async def work() -> str:
            await self.stop(seat)
            self.rest(seat.id, started=False)
            return ""

        return Job(what="end", begin=begin, work=work, over=over, ends=True)

    async def ended(self, worker_id: str) -> None:
        """Wait until an actor that had this name has ended, or cannot be."""
        if ending := self._endings.get(worker_id):
            await asyncio.wait({ending.task})

    async def all_ended(self, zone: Zone | None = None) -> None:
        """Wait until every worker that left the ledger has ended. Raises `NotEndedError`; asking again tries again."""
        while endings := [e for e in self._endings.values() if zone in (None, e.seat.zone)]:
            for ending in endings:
                if ending.task.done():
                    self._start_ending(ending.seat)
            await asyncio.gather(*(asyncio.shield(self._endings[e.seat.id].task) for e in endings))

    async def _stop(self, worker_id: str, handle: WorkerHandle) -> None:
        for left in reversed(range(STOP_TRIES)):
            try:
                await self.ask(worker_id, "stop", handle.stop(), self.limits.stop_s)
            except Exception as e:  # whatever it raises, its GPUs have to be free
                _log.error("%s could not be ended: %s", worker_id, describe(e))
                if not left:
                    raise NotEndedError(f"{worker_id} could not be ended: {describe(e)}; its GPUs may be in use") from e
            else:
                return
            await asyncio.sleep(STOP_PAUSE_S)

    # Seats

    def _adopt(self, worker: Worker) -> Seat:
        handle = self.fleet.find(worker.id) if worker.started else None
        return Seat(id=worker.id, zone=worker.zone, handle=handle, up=handle is not None)

    def _let_go(self, seat: Seat) -> None:
        del self.seats[seat.id]
        asyncio.get_running_loop().call_soon(seat.close, "the worker is gone")
        if seat.handle is not None or seat.joining:
            self._start_ending(seat)

    def _start_ending(self, seat: Seat) -> None:
        self._endings[seat.id] = _Ending(seat, self.spawn(self._end(seat), f"the end of {seat.id}"))

    async def _end(self, seat: Seat) -> None:
        await seat.idle()
        await self.stop(seat)
        if (ending := self._endings.get(seat.id)) and ending.seat is seat:
            del self._endings[seat.id]

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("%s failed: %s", task.get_name(), error, exc_info=error)


def _changed(worker: Worker, *, role: Role | None, status: Status | None, started: bool | None) -> Worker:
    return replace(
        worker,
        role=worker.role if role is None else role,
        status=worker.status if status is None else status,
        started=worker.started if started is None else started,
    )


async def together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of `works` at once; the first failure calls the others off and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as e:
        raise e.exceptions[0] from None
