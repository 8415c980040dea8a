"""The simulated cluster: the GPU–worker–role state, the engines behind it, and plan steps that take their time.

Steps behave as `pearl.planning.apply.advance` says, once they are over; until then the worker is in transition. A
worker that serves has its engine in the pool. Whatever leaves is evacuated first, so that no trajectory is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.engine import EngineProfile, TransitionCosts
from pearl.core.event import Event, EventKind, apply_event
from pearl.core.plan import Activate, AdmitGroup, Borrow, ChangeRole, Deactivate, Drain, Return, Start, Step, Stop
from pearl.core.telemetry import TransitionRecord
from pearl.planning.apply import advance, touched
from pearl.planning.kinds import same_effect, transition_of
from pearl.planning.program import Program
from pearl.sim.engine import Engine
from pearl.sim.events import ARRIVAL, EventQueue
from pearl.sim.log import Happening
from pearl.sim.pool import Pool
from pearl.sim.roster import Roster
from pearl.sim.seat import Seat, duration_s, refusal


class SimCluster:
    """Takes events from outside and steps from a scheduler; tells `listener` of every event, after applying it."""

    def __init__(
        self,
        *,
        state: ClusterState,
        profile: EngineProfile,
        costs: TransitionCosts,
        pool: Pool,
        queue: EventQueue,
        listener: Callable[[Event], None],
        telemetry: Callable[[TransitionRecord], None] | None = None,
    ) -> None:
        self._roster = Roster(epoch=state.epoch, queue=queue)
        self.usage = self._roster.usage
        self.log = self._roster.log
        self._profile = profile
        self._costs = costs
        self._pool = pool
        self._queue = queue
        self._listener = listener
        self._telemetry = telemetry
        self._seats = self._roster.seats
        self._leaving: set[str] = set()
        self._groups: list[AdmitGroup] = []
        """Groups whose engines are starting, or which are being admitted."""
        self._awaited: list[AdmitGroup] = []
        """Those of the newest plan, which its later steps wait for."""
        self._program: Program[Step] = Program(self._begin, lambda step: step)
        self._overlap_waiter: Callable[[], None] | None = None
        self._borrowing = False
        """Whether overlap workers served, or were about to, since the batch began."""
        for worker in state.workers:
            self._seat(worker)

    # -- what others see -------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The GPU–worker–role state as it is now."""
        return self._roster.state

    @property
    def in_transition(self) -> bool:
        """Whether steps are still being carried out."""
        return not self._program.idle

    def apply(self, step: Step) -> None:
        """Accept a step: it begins when the steps before it allow, and takes the time that the costs say.

        A step that would change nothing ends at once, so that applying it twice does no harm.
        """
        self._program.append(step)

    def cancel_pending(self) -> None:
        """Drop what has not begun, as a newer plan supersedes it.

        Groups whose engines are starting are still admitted, and the newer plan does not wait for them: that may take
        minutes. Workers that were drained for a dropped step serve on.
        """
        dropped = self._program.cancel(lambda _: False)
        for group in self._awaited[:]:
            self._no_longer_awaited(group)
        for step in dropped:
            if isinstance(step, AdmitGroup) and self._starting(step):
                self._expect(step)
                continue
            self._drop(step, "superseded by a newer plan")
            if not isinstance(step, AdmitGroup):
                if step.worker in self._seats:
                    self._resume(self._seats[step.worker])
            elif any(self._starting_or_up(worker_id) for worker_id in step.workers):
                self._roll_back(step, "superseded by a newer plan")

    def when_overlap_is_free(self, action: Callable[[], None]) -> None:
        """Call `action`, once, when no overlap worker holds device memory any more."""
        self._overlap_waiter = action
        self._check_overlap()

    def update_weights(self) -> None:
        """Every serving engine pauses for the sync; prefixes computed with the old weights are dropped."""
        until_s = self._queue.now_s + self._costs.sync_weights_s
        for seat in self._seats.values():
            if seat.engine is not None:
                seat.engine.cache.forget_idle()
                seat.engine.pause(until_s)

    # -- events ----------------------------------------------------------------------------------------------------

    def happen(self, event: Event) -> None:
        """Apply an event of the outside world, then tell the listener.

        GPUs under a reclaim notice are lost when their grace is over, and overlap workers are made to return when the
        trainer's patience is: a scheduler that acts sooner loses less.
        """
        event = replace(event, at_s=self._queue.now_s)
        self._roster.record(Happening.EVENT, kind=event.kind.value, workers=list(event.workers))
        before = self.state
        after = apply_event(before, event, leaving=self._leaving)
        if event.kind is EventKind.RECLAIM_NOTICE:
            self._leaving |= before.by_id.keys() & frozenset(event.workers)
        for worker in before.workers:
            if worker.id not in after.by_id:
                self._lose(worker.id)
        for worker in after.workers:
            if worker.id not in before.by_id:
                self._seat(worker)
            elif worker != before.by_id[worker.id]:
                self._roster.put(self._seats[worker.id], worker)
                self._serve_if_staying(self._seats[worker.id])
        if event.within_s is not None and event.kind in (EventKind.RECLAIM_NOTICE, EventKind.TRAINING_STARTED):
            self._queue.at(self._queue.now_s + event.within_s, ARRIVAL, self._deadline, event)
        if event.kind is EventKind.BATCH_STARTED:
            self._borrowing = self.state.counts.borrowed > 0
        self._listener(event)

    def _deadline(self, event: Event) -> None:
        late = [seat for seat in self._roster.named(event) if seat.worker.must_leave]
        if event.kind is EventKind.RECLAIM_NOTICE and late:
            lost = tuple(seat.worker.id for seat in late)
            self.happen(Event(kind=EventKind.GPUS_LOST, workers=lost))
            return
        for seat in late:
            if seat.worker.status is not Status.INACTIVE:
                self._chain(seat, Return(worker=seat.worker.id, estimated_s=self._costs.return_s))

    def _lose(self, worker_id: str) -> None:
        seat = self._roster.remove(worker_id)
        self._leaving.discard(worker_id)
        self._vacate(seat)
        self._roll_back_groups_of(worker_id)
        self._settle(seat)
        self._check_overlap()

    # -- steps -----------------------------------------------------------------------------------------------------

    def _begin(self, step: Step) -> bool:
        """Begin a step of the program; whether it takes time."""
        if isinstance(step, AdmitGroup):
            return self._begin_group(step)
        seat = self._seats.get(step.worker)
        if seat is None:
            return self._drop(step, "the worker is gone")
        if seat.step is not None:
            return self._chain(seat, step)
        why = refusal(seat, step)
        if why is not None:
            return self._drop(step, why)
        awaited = not isinstance(step, Start)
        self._take(seat, step, awaited=awaited)
        return awaited

    def _chain(self, seat: Seat, step: Step) -> bool:
        """Let a step wait for the one under way on its worker; it is not waited for itself."""
        under_way = seat.next[-1] if seat.next else seat.step
        if under_way is None or not same_effect(under_way, step):
            seat.next.append(step)
            self._take_next(seat)
        return False

    def _take(self, seat: Seat, step: Step, *, awaited: bool) -> None:
        seat.step = step
        seat.awaited = awaited
        seat.began_s = self._queue.now_s
        self._roster.record(Happening.STEP_BEGAN, step=type(step).__name__, workers=[seat.worker.id])
        match step:
            case Drain():
                self._begin_drain(seat, step)
            case ChangeRole():
                self._vacate(seat)
                self._roster.put(seat, replace(seat.worker, role=step.after, status=Status.TRANSITIONING))
            case Activate() | Borrow():
                self._borrowing |= isinstance(step, Borrow)
                self._roster.put(seat, replace(seat.worker, role=step.role, status=Status.TRANSITIONING))
            case Deactivate() | Return() | Stop():
                self._vacate(seat)
                self._roll_back_groups_of(seat.worker.id)
                self._roster.put(seat, replace(seat.worker, role=Role.INACTIVE, status=Status.TRANSITIONING))
            case Start():
                self._roster.put(seat, advance(seat.worker, step))
            case AdmitGroup():
                raise AssertionError("a group has no seat of its own")
            case _:
                assert_never(step)
        idle = seat.engine is None or seat.engine.empty
        seconds = 0.0 if isinstance(step, Drain) and idle else duration_s(step, self._costs)
        self._queue.at(self._queue.now_s + seconds, ARRIVAL, self._end, (seat, step))

    def _begin_drain(self, seat: Seat, step: Drain) -> None:
        """Stop dispatch; turns that end within the time end here, the others go on elsewhere."""
        self._roster.put(seat, advance(seat.worker, step))
        if seat.engine is not None:
            self._pool.remove(seat.engine)

    def _end(self, ended: tuple[Seat, Step]) -> None:
        seat, step = ended
        if seat.step is not step:
            return
        match step:
            case Drain():
                self._vacate(seat)
            case Start():
                seat.up = True
            case Stop():
                seat.up = False
                self._roster.put(seat, advance(seat.worker, step))
            case _:
                self._roster.put(seat, advance(seat.worker, step))
                self._serve_if_staying(seat)
        self._step_ended(step, seat.began_s)
        self._settle(seat)
        self._check_overlap()
        self._take_next(seat)

    def _take_next(self, seat: Seat) -> None:
        while seat.next and seat.step is None:
            step = seat.next.popleft()
            why = refusal(seat, step)
            if why is None:
                self._take(seat, step, awaited=False)
            else:
                self._drop(step, why)

    def _settle(self, seat: Seat) -> None:
        """The seat's step is over, or called off."""
        seat.step = None
        if seat.awaited:
            seat.awaited = False
            self._program.ended()
        self._admit_ready_groups()

    def _resume(self, seat: Seat) -> None:
        """A worker that was drained for nothing serves on in its role."""
        if not seat.in_limbo or any(seat.worker.id in group.workers for group in self._groups):
            return
        self._roster.put(seat, replace(seat.worker, status=Status.ACTIVE))
        if seat.engine is not None:
            self._pool.add(seat.engine)
        self._serve(seat)
        self._settle(seat)

    # -- groups: background expansion, all or none ------------------------------------------------------------------

    def _begin_group(self, group: AdmitGroup) -> bool:
        if any(group.workers == other.workers for other in self._groups):
            return False
        if not self._starting(group):
            self._roll_back(group, "a member is gone or was never started")
            return False
        self._awaited.append(group)
        self._expect(group)
        return True

    def _expect(self, group: AdmitGroup) -> None:
        """Admit the group as soon as all of its engines are up."""
        if all(group.workers != other.workers for other in self._groups):
            self._groups.append(group)
        self._admit_ready_groups()

    def _no_longer_awaited(self, group: AdmitGroup) -> None:
        if group in self._awaited:
            self._awaited.remove(group)
            self._program.ended()

    def _starting(self, group: AdmitGroup) -> bool:
        return all(self._starting_or_up(worker_id) for worker_id in group.workers)

    def _starting_or_up(self, worker_id: str) -> bool:
        seat = self._seats.get(worker_id)
        return seat is not None and (seat.up or isinstance(seat.step, Start))

    def _admit_ready_groups(self) -> None:
        for group in self._groups[:]:
            seats = self._roster.present(group.workers)
            if len(seats) == len(group.workers) and all(seat.up and seat.step is None for seat in seats):
                for seat in seats:
                    seat.step = group
                self._queue.at(self._queue.now_s + duration_s(group, self._costs), ARRIVAL, self._admit, group)

    def _admit(self, group: AdmitGroup) -> None:
        if group not in self._groups:
            return
        self._groups.remove(group)
        for seat in self._roster.present(group.workers):
            seat.step = None
            self._roster.put(seat, advance(seat.worker, group))
            self._serve_if_staying(seat)
        self._step_ended(group, self._queue.now_s - duration_s(group, self._costs))
        self._no_longer_awaited(group)
        self._admit_ready_groups()
        for seat in self._roster.present(group.workers):
            self._take_next(seat)

    def _roll_back(self, group: AdmitGroup, why: str) -> None:
        """No member joins: those that are up stay idle, for a later decision to activate."""
        if group in self._groups:
            self._groups.remove(group)
            self._no_longer_awaited(group)
        for seat in self._roster.present(group.workers):
            if seat.step is group:
                seat.step = None
            if seat.worker.status is Status.TRANSITIONING and seat.engine is None:
                self._roster.put(seat, replace(seat.worker, role=Role.INACTIVE, status=Status.INACTIVE))
                self._take_next(seat)
        self._roster.record(Happening.GROUP_ROLLED_BACK, workers=list(group.workers), because=why)
        self._admit_ready_groups()

    def _roll_back_groups_of(self, worker_id: str) -> None:
        for group in [group for group in self._groups if worker_id in group.workers]:
            self._roll_back(group, f"{worker_id} leaves")

    # -- seats -----------------------------------------------------------------------------------------------------

    def _seat(self, worker: Worker) -> None:
        """Take a worker in; one in transition is taken as settled, one under notice keeps its deadline."""
        if worker.status is Status.TRANSITIONING:
            role = worker.role if worker.started else Role.INACTIVE
            worker = replace(worker, role=role, status=Status.INACTIVE if role is Role.INACTIVE else Status.ACTIVE)
        seat = Seat(worker=worker, up=worker.started)
        self._roster.add(seat)
        self._serve(seat)
        if worker.must_leave and worker.leave_within_s is not None:
            kind = EventKind.TRAINING_STARTED if worker.zone is Zone.OVERLAP else EventKind.RECLAIM_NOTICE
            notice = Event(kind=kind, workers=(worker.id,), within_s=worker.leave_within_s)
            self._queue.at(self._queue.now_s + worker.leave_within_s, ARRIVAL, self._deadline, notice)

    def _serve(self, seat: Seat) -> None:
        """Put a new engine into the pool, if the worker serves by now and has none there."""
        worker = seat.worker
        if seat.engine is not None or worker.status is not Status.ACTIVE or worker.role is Role.INACTIVE:
            return
        seat.engine = Engine(
            role=worker.role,
            profile=self._profile,
            name=worker.id,
            queue=self._queue,
            hooks=self._pool,
            tally=self._pool.tally,
        )
        self._pool.add(seat.engine)
        self._pool.rebalance()

    def _serve_if_staying(self, seat: Seat) -> None:
        if not seat.worker.must_leave:
            self._serve(seat)

    def _vacate(self, seat: Seat) -> None:
        """Interrupt whatever the worker still runs; its trajectories go on elsewhere."""
        if seat.engine is not None:
            engine, seat.engine = seat.engine, None
            self._pool.evacuate(engine)

    def _check_overlap(self) -> None:
        waiter = self._overlap_waiter
        if waiter is not None and self._roster.overlap_is_free:
            self._overlap_waiter = None
            waiter()

    def _drop(self, step: Step, why: str) -> bool:
        self._roster.record(Happening.STEP_DROPPED, step=type(step).__name__, workers=list(touched(step)), because=why)
        return False

    def _step_ended(self, step: Step, began_s: float) -> None:
        now_s, workers = self._queue.now_s, touched(step)
        self._roster.record(Happening.STEP_ENDED, step=type(step).__name__, workers=list(workers))
        if self._telemetry is not None:
            kind = transition_of(step)
            seconds = now_s - began_s
            self._telemetry(
                TransitionRecord(kind=kind, seconds=seconds, at_s=now_s, borrowing=self._borrowing, workers=workers)
            )
