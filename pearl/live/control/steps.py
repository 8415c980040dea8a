"""What each step of a plan is on live workers: why it has nothing to do, what it changes at once, what takes time.

The end is that of `pearl.planning.apply.advance`; until then the worker is in transition.
"""

from __future__ import annotations

from typing import assert_never

from pearl.core.cluster import Role, Status, Worker
from pearl.core.plan import Activate, Borrow, ChangeRole, Deactivate, Drain, Return, Start, Stop
from pearl.live.control.canaries import Canaries
from pearl.live.control.crew import Crew
from pearl.live.control.departures import Departures
from pearl.live.control.fleet import Dispatch
from pearl.live.control.rebuilder import Rebuilder
from pearl.live.control.seat import Seat
from pearl.live.control.toggle import ToggleManager
from pearl.live.control.weights import Weights

WorkerStep = Drain | ChangeRole | Activate | Deactivate | Borrow | Return | Start | Stop
"""A step of one worker; a group has parts of its own."""

NOTHING = "it changes nothing, or the worker cannot take it"


class Steps:
    """Carries single steps out."""

    def __init__(
        self,
        *,
        crew: Crew,
        dispatch: Dispatch,
        weights: Weights,
        canaries: Canaries,
        rebuilder: Rebuilder,
        toggle: ToggleManager,
        departures: Departures,
    ) -> None:
        self._crew = crew
        self._dispatch = dispatch
        self._weights = weights
        self._canaries = canaries
        self._rebuilder = rebuilder
        self._toggle = toggle
        self._departures = departures

    def begin(self, seat: Seat, step: WorkerStep) -> str | None:
        """Change the ledger as far as that is done at once; why not, where the step has nothing to do by now."""
        worker = self._crew.worker(seat.id)
        if worker is None:
            return "the worker is gone"
        if isinstance(step, Start):
            return self._rebuilder.begin_start(seat, step)
        if not _possible(seat, worker, step):
            return NOTHING
        match step:
            case Drain():
                self._crew.change(seat.id, status=Status.TRANSITIONING)
            case ChangeRole():
                self._crew.change(seat.id, role=step.after, status=Status.ACTIVE)
            case Activate() | Borrow():
                self._crew.change(seat.id, role=step.role, status=Status.TRANSITIONING)
            case Deactivate() | Return() | Stop():
                self._crew.change(seat.id, role=Role.INACTIVE, status=Status.TRANSITIONING)
            case _:
                assert_never(step)
        return None

    async def work(self, seat: Seat, step: WorkerStep) -> str:
        """The rest of it, as the work of a job: what went wrong and was dealt with; raises where the worker is lost."""
        match step:
            case Drain():
                await self._dispatch.empty(seat.id, deadline_s=self._drain_s(seat, step))
                return ""
            case ChangeRole():
                return ""
            case Activate():
                return await self._activate(seat)
            case Borrow():
                return await self._toggle.borrow(seat)
            case Return():
                return await self._toggle.give_back(seat)
            case Start():
                return await self._rebuilder.start(seat)
            case Deactivate():
                return await self._deactivate(seat)
            case Stop():
                await self._crew.stop(seat)
                self._crew.rest(seat.id, started=False)
                return ""
        assert_never(step)

    def _drain_s(self, seat: Seat, step: Drain) -> float:
        """How long legs may take to finish: whoever must leave keeps some of its time for ending its engine."""
        limits = self._crew.limits
        left_s = self._departures.left_s(seat.id)
        bounds = [bound for bound in (left_s, step.deadline_s) if bound is not None]
        if not bounds:
            return limits.drain_s
        return min(limits.drain_s, max(min(bounds) - limits.hand_back_s, min(bounds) / 2))

    async def _activate(self, seat: Seat) -> str:
        await self._weights.sync(seat)
        await self._canaries.generate(seat)
        await self._crew.admit(seat)
        while self._weights.behind(seat):
            await self._weights.sync(seat)
        self._crew.change(seat.id, status=Status.ACTIVE)
        return ""

    async def _deactivate(self, seat: Seat) -> str:
        if seat.handle is not None:
            await self._crew.ask(seat.id, "drain", seat.handle.drain(0.0), self._crew.limits.call_s)
        self._crew.rest(seat.id)
        return ""


def _possible(
    seat: Seat, worker: Worker, step: Drain | ChangeRole | Activate | Deactivate | Borrow | Return | Stop
) -> bool:
    """Whether a step still has something to do, and the worker is in a state for it."""
    serves = worker.role is not Role.INACTIVE
    match step:
        case Drain():
            return seat.up and serves and worker.status is not Status.INACTIVE
        case ChangeRole():
            changes = worker.role is not step.after or worker.status is not Status.ACTIVE
            return seat.up and serves and not worker.must_leave and changes
        case Activate() | Borrow():
            return seat.up and not serves and not worker.must_leave
        case Deactivate():
            return worker.status is not Status.INACTIVE
        case Return():
            return worker.status is not Status.INACTIVE or not (seat.handle is None or seat.asleep)
        case Stop():
            return worker.started or worker.status is not Status.INACTIVE or seat.handle is not None
    assert_never(step)
