"""Inter-Scale Cluster Rebuilder: engines start in the background, and join the pool as groups, all or none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from pearl.core.cluster import Role, Status
from pearl.core.plan import AdmitGroup, Start
from pearl.live.control.canaries import Canaries
from pearl.live.control.crew import Crew, Expel, together
from pearl.live.control.progress import Phase
from pearl.live.control.seat import ENDED, Outcome, Seat, describe
from pearl.live.control.weights import Weights

Over = Callable[[Outcome, float], None]
"""Told how an admission came out, and how many seconds it took once every member was up."""


class _MemberError(Exception):
    """A member failed, and its group with it."""

    def __init__(self, seat: Seat, cause: Exception) -> None:
        super().__init__(f"{seat.id}: {describe(cause)}")
        self.seat = seat


class _LeavingError(Exception):
    """A member cannot join, through no fault of its own."""


@dataclass(slots=True, eq=False)
class _Group:
    workers: tuple[str, ...]
    seats: tuple[Seat, ...]
    over: Over
    call_off: Callable[[], object] = lambda: None
    why: str = ""


class Rebuilder:
    """Starts, admissions, and what is left of them when something goes wrong: nothing."""

    def __init__(
        self,
        *,
        crew: Crew,
        weights: Weights,
        canaries: Canaries,
        expel: Expel,
        planned: Callable[[], Iterable[AdmitGroup]],
    ) -> None:
        self._crew = crew
        self._weights = weights
        self._canaries = canaries
        self._expel = expel
        self._planned = planned
        """Groups whose admission is a step to come."""
        self._groups: list[_Group] = []

    # Starting

    def begin_start(self, seat: Seat, step: Start) -> str | None:
        """Claim a worker for an engine; why not, where it has one or must leave."""
        worker = self._crew.worker(seat.id)
        if worker is None or worker.started or worker.must_leave or seat.joining:
            return "it has an engine, or must leave"
        seat.joining = True
        self._crew.change(seat.id, role=step.role, status=Status.TRANSITIONING)
        return None

    async def start(self, seat: Seat) -> str:
        """Start its engine and bring it to the newest weights. Raises what goes wrong."""
        crew = self._crew
        await crew.ended(seat.id)
        worker = crew.worker(seat.id)
        if worker is None:
            return "the worker is gone"
        seat.handle = crew.fleet.launch(worker)
        crew.change(seat.id, started=True)
        report = await crew.ask(seat.id, "start", seat.handle.start(crew.limits.start_s), crew.limits.start_s)
        crew.ledger.synced(seat.id, report.weight_version)
        await self._weights.sync(seat)
        seat.up = True
        return ""

    def start_failed(self, seat: Seat, outcome: Outcome) -> None:
        """An engine did not start: neither does its group join."""
        self.roll_back(self._companions(seat.id), f"{seat.id} did not start: {outcome.because}")
        self._expel(seat.id, outcome.because)

    def start_ended(self, seat: Seat) -> None:
        """An engine is up: where nobody is to admit it any more, it ends again."""
        if seat.joining and not any(seat.id in workers for workers in self._expected()):
            self.roll_back((seat.id,), "no group admits it")

    # Joining

    def starting(self, workers: Collection[str]) -> bool:
        """Whether every one of these starts, or is up and waits for its group."""
        seats = [self._crew.seats.get(worker_id) for worker_id in workers]
        return all(seat is not None and (seat.joining or _to_start(seat)) for seat in seats)

    def begin_group(self, workers: tuple[str, ...], over: Over) -> str | None:
        """Admit these workers together once all are up; why not, where they cannot be."""
        if any(group.workers == workers for group in self._groups):
            return "its admission is under way"
        if not self.starting(workers):
            why = "a member is gone, was never started, or has joined"
            self.roll_back(workers, why)
            return why
        seats = tuple(self._crew.seats[worker_id] for worker_id in workers)
        group = _Group(workers=workers, seats=seats, over=over)
        self._groups.append(group)
        task = self._crew.spawn(self._join(group), f"admission of {', '.join(workers)}")
        group.call_off = task.cancel
        task.add_done_callback(lambda task: self._called_off(group) if task.cancelled() else None)
        return None

    def roll_back(self, workers: Collection[str], why: str) -> None:
        """None of these joins: engines that started for it end, and their GPUs wait for another decision."""
        for group in [group for group in self._groups if not set(workers).isdisjoint(group.workers)]:
            group.why = group.why or why
            group.call_off()
        for worker_id in workers:
            seat = self._crew.seats.get(worker_id)
            if seat is None:
                continue
            seat.drop_waiting(why, lambda job: isinstance(job.step, Start))
            if seat.joining:
                self._clean(seat, why)

    def member_leaves(self, seat: Seat, why: str) -> None:
        """A worker must leave, or is gone: a group that it was to join with is rolled back."""
        for group in [group for group in self._groups if seat in group.seats]:
            self.roll_back(group.workers, why)
        if seat.joining and self._crew.seats.get(seat.id) in (seat, None):
            self.roll_back(self._companions(seat.id), why)

    async def _join(self, group: _Group) -> None:
        seats = group.seats
        try:
            async with AsyncExitStack() as holds:
                for seat in seats:
                    await holds.enter_async_context(seat.held("admission"))
                if not all(seat.joining and seat.up for seat in seats):
                    raise _LeavingError("a member was not started")
                began_s = self._crew.now_s()
                await self._prepare(seats)
                self._admit(group, seats)
        except _MemberError as e:
            self._give_up(group, str(e))
            self._expel(e.seat.id, str(e))
        except _LeavingError as e:
            self._give_up(group, str(e))
        else:
            self._groups.remove(group)
            group.over(ENDED, self._crew.now_s() - began_s)

    async def _prepare(self, seats: tuple[Seat, ...]) -> None:
        """Newest weights, a transfer that works, engines that serve; and, at the very end, the newest weights again."""
        await together(self._blaming(seat, self._weights.sync) for seat in seats)
        await together(self._blaming(seat, lambda seat: self._canaries.transfer(seat, among=seats)) for seat in seats)
        await together(self._blaming(seat, self._crew.admit) for seat in seats)
        while any(self._weights.behind(seat) for seat in seats):
            await together(self._blaming(seat, self._weights.sync) for seat in seats)

    def _admit(self, group: _Group, seats: tuple[Seat, ...]) -> None:
        """One change for all."""
        workers = [worker for worker_id in group.workers if (worker := self._crew.worker(worker_id))]
        if len(workers) < len(seats) or any(worker.must_leave for worker in workers):
            raise _LeavingError("a member must leave, or is gone")
        for seat in seats:
            seat.joining = False
        self._crew.ledger.put(*(replace(worker, status=Status.ACTIVE) for worker in workers))

    async def _blaming(self, seat: Seat, work: Callable[[Seat], Awaitable[None]]) -> None:
        try:
            await work(seat)
        except Exception as e:  # whatever a member raises, its group does not join
            raise _MemberError(seat, e) from e

    def _give_up(self, group: _Group, why: str) -> None:
        self._groups.remove(group)
        self.roll_back(group.workers, why)
        group.over(Outcome(phase=Phase.FAILED, because=f"rolled back: {why}"), 0.0)

    def _called_off(self, group: _Group) -> None:
        if group in self._groups and not self._crew.closed:
            self._give_up(group, group.why or "called off")

    def _companions(self, worker_id: str) -> tuple[str, ...]:
        """The worker and those that it was to join with."""
        return next((workers for workers in self._expected() if worker_id in workers), (worker_id,))

    def _expected(self) -> list[tuple[str, ...]]:
        """Groups that wait for their admission, and those whose admission is a step to come."""
        return [group.workers for group in self._groups] + [step.workers for step in self._planned()]

    def _clean(self, seat: Seat, why: str) -> None:
        seat.joining = False
        self._crew.change(seat.id, role=Role.INACTIVE)
        seat.drop_waiting(why)
        seat.interrupt(why)
        seat.submit(self._crew.end_job(seat))


def _to_start(seat: Seat) -> bool:
    """Whether an engine is to start once what goes on there is over."""
    return any(isinstance(job.step, Start) for job in seat.waiting)
