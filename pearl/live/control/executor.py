"""The live executor: carries plans out on Ray workers as the simulator does on simulated ones.

Each step is judged again when it begins, so that a state that moved on since the decision needs no lock: a worker that
is gone, must leave, or is in no state for it has its step dropped, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pearl.core.cluster import ClusterState, Status
from pearl.core.plan import AdmitGroup, Borrow, ChangeRole, Drain, Start, Step, Stop
from pearl.core.telemetry import TransitionKind, TransitionRecord
from pearl.live.control.canaries import Canaries
from pearl.live.control.crew import Crew
from pearl.live.control.departures import Departures, RaiseEvent
from pearl.live.control.fleet import Dispatch, Fleet, WorkerHandle
from pearl.live.control.ledger import Ledger, Record
from pearl.live.control.limits import ControlLimits
from pearl.live.control.progress import Phase, Progress, Tell
from pearl.live.control.rebuilder import Rebuilder
from pearl.live.control.seat import ENDED, Job, Outcome, Seat
from pearl.live.control.steps import Steps, WorkerStep
from pearl.live.control.toggle import Released, ToggleManager
from pearl.live.control.weights import Published, Weights
from pearl.live.weights import WeightRef
from pearl.planning.kinds import same_effect, transition_of
from pearl.planning.program import Program

SUPERSEDED = "superseded by a newer plan"


@dataclass(slots=True, eq=False, kw_only=True)
class Order:
    """A step of a plan on its way."""

    step: Step
    plan: str | None = None
    """Id of the plan; None for what no plan asked for, of which nobody is told."""
    index: int = 0
    began_s: float | None = None
    awaited: bool = False
    """Whether the steps of the next phase wait for it."""
    background: bool = False
    """That none wait for it, since it is of a plan before theirs."""


class LiveExecutor:
    """`pearl.scheduler.PlanExecutor`, and the transitions that no plan asks for. Made and called on the event loop."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        fleet: Fleet,
        dispatch: Dispatch,
        limits: ControlLimits,
        now_s: Callable[[], float],
        raise_event: RaiseEvent,
        tell: Tell = lambda _: None,
        telemetry: Callable[[TransitionRecord], None] = lambda _: None,
        weights: WeightRef | None = None,
        max_staleness: int = 0,
    ) -> None:
        self._ledger = ledger
        self._now_s = now_s
        self._tell = tell
        self._telemetry = telemetry
        self._plan, self._index = "", 0
        self._borrowing = ledger.state.counts.borrowed > 0
        """Whether overlap workers served, or were about to, since the batch began."""
        self._closed = False
        self._seen = ledger.state
        self._program: Program[Order] = Program(self._begin, lambda order: order.step)
        self._joining: list[Order] = []
        """Groups whose admission is under way, and waited for."""
        crew = self._crew = Crew(ledger=ledger, fleet=fleet, limits=limits, now_s=now_s)
        self._departures = Departures(crew=crew, raise_event=raise_event)
        expel = self._departures.expel
        canaries = Canaries(crew)
        self._weights = Weights(
            crew=crew, newest=weights, max_staleness=max_staleness, measured=self._measured, expel=expel
        )
        self._rebuilder = Rebuilder(
            crew=crew, weights=self._weights, canaries=canaries, expel=expel, planned=self._planned_groups
        )
        self._toggle = ToggleManager(
            crew=crew,
            weights=self._weights,
            canaries=canaries,
            raise_event=raise_event,
            submit=self._submit,
            resume=self._resume,
        )
        self._steps = Steps(
            crew=crew,
            dispatch=dispatch,
            weights=self._weights,
            canaries=canaries,
            rebuilder=self._rebuilder,
            toggle=self._toggle,
            departures=self._departures,
        )
        ledger.listen(self._heard)
        self._departures.follow(ClusterState(workers=()), ledger.state)

    # Plans

    def observe(self) -> ClusterState:
        """The state as it is now; workers that a step is changing are in transition."""
        return self._ledger.state

    def begin_plan(self, plan_id: str) -> None:
        """The steps that `apply` brings from now on are those of this plan, in order."""
        self._plan, self._index = plan_id, 0

    def apply(self, step: Step) -> None:
        """Carry out one step after those given before; doing it twice changes nothing the second time."""
        order = Order(plan=self._plan, index=self._index, step=step)
        self._index += 1
        self._program.append(order)

    @property
    def busy(self) -> bool:
        """Whether steps of a plan are still being carried out, starts in the background apart."""
        return not self._program.idle

    def cancel_pending(self) -> None:
        """Drop the steps that have not begun, as a newer plan supersedes them.

        Groups whose engines are starting are still admitted, and the newer plan does not wait for them: that may take
        minutes. Workers that were drained for a dropped step serve on.
        """
        dropped = self._program.cancel(self._is_starting_group)
        for order in self._program.pending:
            order.background = True
        for order in tuple(self._joining):
            self._joined(order)
        for order in dropped:
            self._dropped(order, SUPERSEDED)
            if isinstance(order.step, AdmitGroup):
                self._rebuilder.roll_back(order.step.workers, SUPERSEDED)
            elif seat := self._crew.seats.get(order.step.worker):
                self._resume(seat, SUPERSEDED)
        for seat, worker in self._crew.pairs():
            if not worker.must_leave and any(job.step for job in seat.waiting):
                seat.drop_waiting(SUPERSEDED, lambda job: job.step is not None)
                self._resume(seat, SUPERSEDED)

    def batch_began(self) -> None:
        """A rollout step began: costs are kept apart by whether it borrows."""
        self._borrowing = self._ledger.state.counts.borrowed > 0

    @property
    def engines(self) -> Mapping[str, WorkerHandle]:
        """The workers whose engines are up, those that sleep included, and their handles."""
        return {seat.id: seat.handle for seat, _ in self._crew.pairs() if seat.up and seat.handle is not None}

    async def settle(self) -> None:
        """Wait until nothing is under way, starts and admissions in the background included."""
        await self._crew.settle()

    async def aclose(self) -> None:
        """Let go of every worker as it is: whoever comes next reconciles. Engines that are ending end first."""
        self._closed = True
        await self._crew.aclose()

    # What no plan asks for

    async def release_overlap(self, *, deadline_s: float, force: bool) -> Released:
        """The training barrier: see `ToggleManager.release_overlap`."""
        return await self._toggle.release_overlap(deadline_s=deadline_s, force=force)

    async def publish(self, ref: WeightRef) -> Published:
        """Make these weights the newest: see `Weights.publish`."""
        return await self._weights.publish(ref)

    async def lose(self, worker_ids: Collection[str]) -> None:
        """Workers died unannounced: see `Departures.lose`."""
        await self._departures.lose(worker_ids)

    # Steps

    def _begin(self, order: Order) -> bool:
        """Begin a step of the program; whether the next phase waits for it."""
        step = order.step
        if isinstance(step, AdmitGroup):
            order.awaited = self._begin_group(order, step)
        elif (seat := self._crew.seats.get(step.worker)) is None:
            self._dropped(order, "the worker is gone")
        elif seat.last is not None and seat.last.step is not None and same_effect(seat.last.step, step):
            self._dropped(order, "the same is under way")
        elif isinstance(step, Drain) and self._has_no_legs(seat):
            self._dropped(order, f"no leg is left on it: {seat.current.what if seat.current else ''}")
        else:
            order.awaited = self._give(seat, step, order) and not isinstance(step, Start)
        return order.awaited

    def _has_no_legs(self, seat: Seat) -> bool:
        """Whether a worker that must leave is in the midst of something that ended its legs: leaving need not wait."""
        worker = self._crew.worker(seat.id)
        busy = seat.current is not None and not isinstance(seat.current.step, Drain)
        return busy and worker is not None and worker.must_leave

    def _give(self, seat: Seat, step: WorkerStep, order: Order) -> bool:
        """Have the seat do the step in its turn; whether it is still to be over."""
        if (
            isinstance(step, Stop)
            and seat.current
            and not isinstance(seat.current.step, Drain)
            and not seat.current.ends
        ):
            seat.interrupt("its engine is to end")
        return seat.submit(self._job(seat, step, order))

    def _submit(self, seat: Seat, step: Step) -> None:
        last = seat.last.step if seat.last else None
        if not isinstance(step, AdmitGroup) and not (last and same_effect(last, step)):
            self._give(seat, step, Order(step=step))

    def _job(self, seat: Seat, step: WorkerStep, order: Order) -> Job:
        def begin() -> str | None:
            why_not = self._steps.begin(seat, step)
            if why_not is None:
                self._borrowing |= isinstance(step, Borrow)
                self._began(order)
            return why_not

        return Job(
            what=type(step).__name__,
            begin=begin,
            work=None if isinstance(step, ChangeRole) else lambda: self._steps.work(seat, step),
            over=lambda outcome: self._over(order, seat, outcome),
            step=step,
            ends=isinstance(step, Stop),
        )

    def _over(self, order: Order, seat: Seat, outcome: Outcome) -> None:
        if outcome.phase is Phase.DROPPED:
            self._dropped(order, outcome.because)
        else:
            self._ended(order, outcome, (seat.id,))
        try:
            self._consider(order, seat, outcome)
        finally:
            if order.awaited:
                self._program.ended()

    def _consider(self, order: Order, seat: Seat, outcome: Outcome) -> None:
        """What it means for a worker, and for its group, how a step came out."""
        match order.step, outcome.phase:
            case Start(), Phase.ENDED:
                self._rebuilder.start_ended(seat)
            case Start(), Phase.FAILED if outcome.failure is not None:
                self._rebuilder.start_failed(seat, outcome)
            case _ if outcome.failure is not None:
                self._departures.expel(seat.id, outcome.because)
            case _:
                pass

    def _begin_group(self, order: Order, step: AdmitGroup) -> bool:
        def over(outcome: Outcome, seconds: float) -> None:
            order.began_s = self._now_s() - seconds
            self._ended(order, outcome, step.workers)
            self._joined(order)

        why_not = self._rebuilder.begin_group(step.workers, over)
        if why_not is not None:
            self._dropped(order, why_not)
            return False
        self._began(order)
        if not order.background:
            self._joining.append(order)
        return not order.background

    def _joined(self, order: Order) -> None:
        """A group is in the pool, or nobody waits for it any more."""
        if order in self._joining:
            self._joining.remove(order)
            self._program.ended()

    def _resume(self, seat: Seat, why: str) -> None:
        """A worker that drains, or has drained, for nothing serves on in its role."""
        worker = self._crew.worker(seat.id)
        if worker is None or not worker.serving or worker.status is not Status.TRANSITIONING:
            return
        if not seat.up or seat.joining:
            return
        if seat.current is None:
            self._crew.change(seat.id, status=Status.ACTIVE)
        elif isinstance(seat.current.step, Drain):
            seat.interrupt(why)
            self._crew.change(seat.id, status=Status.ACTIVE)
        else:
            seat.serve_on = True

    def _is_starting_group(self, order: Order) -> bool:
        return isinstance(order.step, AdmitGroup) and self._rebuilder.starting(order.step.workers)

    def _planned_groups(self) -> Iterable[AdmitGroup]:
        return [order.step for order in self._program.pending if isinstance(order.step, AdmitGroup)]

    # The ledger

    def _heard(self, record: Record) -> None:
        """Follow the ledger; what changes it again waits until every listener has heard of this change."""
        if self._closed:
            return
        before, self._seen = self._seen, record.state
        gone = self._crew.follow(record.state)
        asyncio.get_running_loop().call_soon(self._react, before, record.state, gone)

    def _react(self, before: ClusterState, after: ClusterState, gone: Iterable[Seat]) -> None:
        self._departures.follow(before, after)
        for seat in gone:
            self._rebuilder.member_leaves(seat, f"{seat.id} is gone")
        for worker in before.workers:
            now, here = after.by_id.get(worker.id), self._crew.seats.get(worker.id)
            if now is None or here is None or now.must_leave == worker.must_leave:
                continue
            if now.must_leave:
                self._rebuilder.member_leaves(here, f"{worker.id} must leave")
            else:
                self._weights.catch_up(here)

    # Telling

    def _began(self, order: Order) -> None:
        order.began_s = self._now_s()
        self._say(order, Phase.BEGAN, 0.0, "")

    def _dropped(self, order: Order, why: str) -> None:
        self._say(order, Phase.DROPPED, 0.0, why)

    def _ended(self, order: Order, outcome: Outcome, workers: tuple[str, ...]) -> None:
        seconds = self._now_s() - order.began_s if order.began_s is not None else 0.0
        self._say(order, outcome.phase, seconds, outcome.because)
        if outcome is ENDED:
            self._measured(transition_of(order.step), seconds, workers)

    def _say(self, order: Order, phase: Phase, seconds: float, because: str) -> None:
        if order.plan is None:
            return
        progress = Progress(
            plan=order.plan,
            index=order.index,
            step=order.step,
            phase=phase,
            at_s=self._now_s(),
            seconds=seconds,
            because=because,
        )
        self._tell(progress)

    def _measured(self, kind: TransitionKind, seconds: float, workers: tuple[str, ...]) -> None:
        record = TransitionRecord(
            kind=kind, seconds=seconds, at_s=self._now_s(), borrowing=self._borrowing, workers=workers
        )
        self._telemetry(record)
