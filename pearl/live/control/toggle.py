"""Intra-Scale Toggle Manager: overlap workers are borrowed while the trainer waits, and returned when it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.core.plan import Drain, Return, Step
from pearl.errors import PearlError
from pearl.live.control.canaries import Canaries
from pearl.live.control.crew import Crew, together
from pearl.live.control.departures import RaiseEvent
from pearl.live.control.seat import Seat, describe
from pearl.live.control.weights import Weights


class StillAwakeError(PearlError):
    """A worker says that it sleeps, and its engine that it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Overlap workers that hold no device memory any more."""

    released: tuple[str, ...]
    """Those that let go in time, or held nothing."""
    forced: tuple[str, ...]
    """Those that were late: their legs were moved at once, or their processes ended."""
    seconds: float


class ToggleManager:
    """Device residency moves; processes stay, unless one will not let go."""

    def __init__(
        self,
        *,
        crew: Crew,
        weights: Weights,
        canaries: Canaries,
        raise_event: RaiseEvent,
        submit: Callable[[Seat, Step], None],
        resume: Callable[[Seat, str], None],
    ) -> None:
        self._crew = crew
        self._weights = weights
        self._canaries = canaries
        self._raise_event = raise_event
        self._submit = submit
        """Has a seat do a step after those before it, unless the last of them does the same."""
        self._resume = resume
        """Has a worker that drains serve on."""
        self._release: asyncio.Task[None] | None = None
        self._waiting = 0

    # One worker

    async def borrow(self, seat: Seat) -> str:
        """Wake a worker, bring it to the newest weights, try it, and let it serve. Raises what goes wrong.

        Where its GPUs are asked for meanwhile, it is left awake and idle, for the return that follows.
        """
        for stage in (
            self._wake,
            self._weights.sync,
            self._canaries.generate,
            self._canaries.transfer,
            self._crew.admit,
        ):
            await stage(seat)
            if self._wanted_back(seat):
                self._crew.rest(seat.id)
                return "its GPUs were asked for"
        while self._weights.behind(seat):
            await self._weights.sync(seat)
        self._crew.change(seat.id, status=Status.ACTIVE)
        return ""

    async def give_back(self, seat: Seat) -> str:
        """Have a worker free its device memory, and confirm it; where that fails, end its process."""
        crew, limits = self._crew, self._crew.limits
        if seat.handle is None:
            crew.rest(seat.id)
            return ""
        try:
            await crew.ask(seat.id, "drain", seat.handle.drain(0.0), limits.call_s)
            await crew.ask(seat.id, "sleep", seat.handle.sleep(limits.transition), limits.transition_s)
            report = await crew.ask(seat.id, "report", seat.handle.report(), limits.call_s)
            if not report.asleep:
                raise StillAwakeError(f"{seat.id} fell asleep, and reports that it is awake")
        except Exception as e:  # whatever it raises, its memory has to be free
            await crew.stop(seat)
            crew.rest(seat.id, started=False)
            return f"{describe(e)}; its process was ended"
        seat.asleep = True
        crew.rest(seat.id)
        return ""

    async def _wake(self, seat: Seat) -> None:
        seat.asleep = False
        if seat.handle is not None:
            limits = self._crew.limits
            await self._crew.ask(seat.id, "wake", seat.handle.wake(limits.transition), limits.transition_s)

    def _wanted_back(self, seat: Seat) -> bool:
        worker = self._crew.worker(seat.id)
        return worker is None or worker.must_leave

    # The training barrier

    async def release_overlap(self, *, deadline_s: float, force: bool) -> Released:
        """Wait until no overlap worker holds device memory: each has confirmed that it sleeps, or has no process.

        At the deadline, in seconds from now, `force` moves the legs that are left at once, and ends processes that do
        not sleep even then. Without it, and where this wait is cancelled, overlap workers serve on, unless another
        caller still waits. Raises TimeoutError, and `NotEndedError` where a process will not end. Asking again, or
        twice at once, is the same as once.
        """
        began_s = self._crew.now_s()
        self._announce(deadline_s)
        work = self._release = self._release or self._crew.spawn(self._release_all(), "release of the overlap zone")
        forced: tuple[str, ...] = ()
        self._waiting += 1
        try:
            await asyncio.wait({work}, timeout=deadline_s)
            if not work.done():
                if not force:
                    late = ", ".join(seat.id for seat, _ in self._holding())
                    raise TimeoutError(f"overlap workers did not let go within {deadline_s:g} s: {late}")
                forced = await self._force()
            await asyncio.shield(work)
        except BaseException:
            if self._waiting == 1:
                self._roll_back(work)
            raise
        finally:
            self._waiting -= 1
            if self._release is work and (work.done() or not self._waiting):
                self._release = None
        overlap = [worker.id for _, worker in self._overlap()]
        released = tuple(worker_id for worker_id in overlap if worker_id not in forced)
        return Released(released=released, forced=forced, seconds=self._crew.now_s() - began_s)

    def _announce(self, deadline_s: float) -> None:
        marked = all(worker.must_leave for _, worker in self._overlap())
        if not (marked and self._crew.ledger.record.training):
            event = Event(kind=EventKind.TRAINING_STARTED, within_s=deadline_s, at_s=self._crew.now_s())
            self._raise_event(event)

    async def _release_all(self) -> None:
        while holding := self._holding():
            for seat, _ in holding:
                self._submit(seat, Drain(worker=seat.id, estimated_s=0.0))
                self._submit(seat, Return(worker=seat.id, estimated_s=0.0))
            await asyncio.gather(*(seat.idle() for seat, _ in holding))
            await asyncio.sleep(0)
        await self._crew.all_ended(Zone.OVERLAP)

    def _overlap(self) -> list[tuple[Seat, Worker]]:
        return [(seat, worker) for seat, worker in self._crew.pairs() if worker.zone is Zone.OVERLAP]

    def _holding(self) -> list[tuple[Seat, Worker]]:
        """Those that have not confirmed that their memory is free."""
        return [(seat, worker) for seat, worker in self._overlap() if not _free(seat)]

    async def _force(self) -> tuple[str, ...]:
        late = [seat for seat, _ in self._holding()]
        await together(self._force_one(seat) for seat in late)
        return tuple(seat.id for seat in late)

    async def _force_one(self, seat: Seat) -> None:
        why = "the trainer's deadline"
        returning = seat.current is not None and isinstance(seat.current.step, Return)
        if not returning:
            seat.drop_waiting(why)
            seat.interrupt(why)
            self._crew.change(seat.id, role=Role.INACTIVE, status=Status.TRANSITIONING)
            self._submit(seat, Return(worker=seat.id, estimated_s=0.0))
        try:
            async with asyncio.timeout(self._crew.limits.force_s):
                await seat.idle()
        except TimeoutError:
            seat.drop_waiting(why)
            seat.interrupt(why)
            seat.submit(self._crew.end_job(seat))
            await seat.idle()

    def _roll_back(self, work: asyncio.Task[None]) -> None:
        """The trainer does not begin: those that still drain serve on, and those asleep wait to be borrowed."""
        work.cancel()
        self._raise_event(Event(kind=EventKind.TRAINING_FINISHED, at_s=self._crew.now_s()))
        leaving = self._crew.ledger.record.leaving
        for seat in (seat for seat, _ in self._overlap() if seat.id not in leaving):
            seat.drop_waiting("the trainer gave up", lambda job: isinstance(job.step, (Drain, Return)))
            self._resume(seat, "the trainer gave up")


def _free(seat: Seat) -> bool:
    quiet = seat.current is None and not seat.waiting
    return quiet and not seat.joining and (seat.handle is None or seat.asleep)
