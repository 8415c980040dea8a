"""Recorded telemetry through the Runtime Tracker and the scheduler: what a policy would have decided, when and why.

Nothing is simulated but the pool: its state is what the policy's plans would have made of it, each step done at once.
The telemetry stays what was measured, on whatever pool there was. Time is that of the records; no clock is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from pearl.core.cluster import ClusterState
from pearl.core.decision import Decision
from pearl.core.event import Event, EventKind, apply_event
from pearl.core.plan import Plan, Step
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.core.telemetry import ArrivalRecord, EngineRecord, Telemetry, TurnRecord
from pearl.makespan.cached import CachedPredictor
from pearl.makespan.protocol import Predictor
from pearl.planning import advance, touched
from pearl.policy.model import Policy
from pearl.scheduler import ElasticScheduler, Tick
from pearl.solving.protocol import Solver
from pearl.solving.remembering import RememberingSolver
from pearl.tracking.costs import CostTracker
from pearl.tracking.engine import EngineTracker
from pearl.tracking.forecasters import Forecaster, Observed, forecast
from pearl.tracking.history import History, Source
from pearl.tracking.tracker import RuntimeTracker

SOLVE_LIMIT_S = 3600.0
"""Limit of a solve in place of the policy's: what is decided must not depend on how busy this machine is."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What was recorded; times on one clock."""

    telemetry: tuple[Telemetry, ...]
    events: tuple[Event, ...] = ()
    """Of the cluster and the trainer, where they were recorded; batches are told by the telemetry."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """One decision that would have been taken."""

    at_s: float
    event: EventKind
    step: int | None
    """The rollout step that begins or has ended; None where it is of neither."""
    decision: Decision
    changes: frozenset[Change]
    plan: Plan
    measured_s: float | None = None
    """Makespan of the step that ended, as measured on the pool there was."""


def replay(
    recording: Recording,
    world: Situation,
    policy: Policy,
    *,
    predictor: Predictor,
    solver: Solver,
    forecaster: Forecaster | None = None,
) -> tuple[Taken, ...]:
    """The decisions in order of time; raises what the scheduler raises.

    A rollout step is decided on when its first turn arrives and, refitted, when its last turn is complete; every event
    of the cluster is decided on when it happens. The workload of `world` stands in until one is known.
    """
    run = _Replay(world, policy, predictor, solver, forecaster or Observed())
    for moment in sorted(_moments(recording), key=lambda moment: (moment.at_s, moment.order, moment.step or 0)):
        run.take(moment)
    return tuple(run.taken)


class _Order(IntEnum):
    """Of moments at the same time: what ends is known before what begins."""

    STEP_ENDED = 0
    EVENT = 1
    STEP_BEGAN = 2


@dataclass(frozen=True, kw_only=True)
class _Moment:
    at_s: float
    order: _Order
    event: Event
    step: int | None = None
    records: tuple[Telemetry, ...] = ()
    """What the tracker learns then."""
    measured_s: float | None = None


def _moments(recording: Recording) -> Iterable[_Moment]:
    spans = _spans(recording.telemetry)
    shares = _shares(recording.telemetry, spans)
    for step, (begin_s, end_s) in spans.items():
        began = Event(kind=EventKind.BATCH_STARTED, at_s=begin_s)
        ended = Event(kind=EventKind.PROFILE_UPDATED, at_s=end_s)
        yield _Moment(at_s=begin_s, order=_Order.STEP_BEGAN, event=began, step=step)
        yield _Moment(
            at_s=end_s,
            order=_Order.STEP_ENDED,
            event=ended,
            step=step,
            records=tuple(shares[step]),
            measured_s=end_s - begin_s,
        )
    told = frozenset({EventKind.BATCH_STARTED, EventKind.PROFILE_UPDATED}) if spans else frozenset()
    for event in recording.events:
        if event.kind not in told:
            yield _Moment(at_s=event.at_s, order=_Order.EVENT, event=event)


def _spans(telemetry: Iterable[Telemetry]) -> dict[int, tuple[float, float]]:
    """Begin and end of each rollout step: its first arrival (or turn), and its last turn."""
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for record in telemetry:
        match record:
            case ArrivalRecord(step=step, at_s=at_s):
                begins[step] = min(begins.get(step, at_s), at_s)
            case TurnRecord(step=step, at_s=at_s):
                took_s = record.queue_s + record.prefill_s + record.transfer_s + record.decode_s
                begins[step] = min(begins.get(step, at_s), at_s - took_s)
                ends[step] = max(ends.get(step, at_s), at_s)
            case _:
                pass
    return {step: (begins[step], ends[step]) for step in sorted(ends)}


def _shares(telemetry: Iterable[Telemetry], spans: Mapping[int, tuple[float, float]]) -> dict[int, list[Telemetry]]:
    """The records that are known when each step ends; one of no step belongs to the next that ends."""
    shares: dict[int, list[Telemetry]] = {step: [] for step in spans}
    by_end = sorted(spans, key=lambda step: spans[step][1])
    for record in telemetry:
        own = None if isinstance(record, EngineRecord) else record.step
        later = (step for step in by_end if spans[step][1] >= record.at_s)
        home = own if own in shares else next(later, by_end[-1] if by_end else None)
        if home is not None:
            shares[home].append(record)
    return shares


@dataclass(slots=True, kw_only=True)
class _Pool:
    """An executor that carries every step out at once, and remembers nothing else."""

    state: ClusterState
    busy: bool = field(default=False, init=False)

    def observe(self) -> ClusterState:
        """The state now."""
        return self.state

    def apply(self, step: Step) -> None:
        """Carry it out."""
        workers = dict(self.state.by_id)
        for worker_id in touched(step):
            workers[worker_id] = advance(workers[worker_id], step)
        if tuple(workers.values()) != self.state.workers:
            self.state = self.state.with_workers(workers.values())

    def cancel_pending(self) -> None:
        """Nothing ever is."""


class _Replay:
    """The loop, and its clock: the time of the moment that is being taken."""

    def __init__(
        self, world: Situation, policy: Policy, predictor: Predictor, solver: Solver, forecaster: Forecaster
    ) -> None:
        self.taken: list[Taken] = []
        self._world = world
        self._sources = tuple(source for source in Source if source.value in policy.sources)
        self._forecaster = forecaster
        self._tracker = RuntimeTracker(engine=EngineTracker(prior=world.engine), costs=CostTracker(prior=world.costs))
        self._history = History()
        self._now_s = 0.0
        self._moment: _Moment | None = None
        self._pool = _Pool(state=world.state)
        self._leaving: frozenset[str] = frozenset()
        self._scheduler = ElasticScheduler(
            policy=policy,
            predictor=CachedPredictor(predictor),
            solver=RememberingSolver(solver),
            executor=self._pool,
            clock=self,
            situate=self._situation,
            note=self._note,
            time_limit_s=SOLVE_LIMIT_S,
        )

    def now_s(self) -> float:
        """Time of the records."""
        return self._now_s

    def take(self, moment: _Moment) -> None:
        """Learn what is known by then, and decide."""
        self._moment, self._now_s = moment, moment.at_s
        if moment.records:
            self._tracker = self._tracker.update(moment.records, moment.at_s)
        self._remember(moment)
        self._happen(moment.event)
        self._scheduler.on_event(moment.event)

    def _happen(self, event: Event) -> None:
        self._pool.state = apply_event(self._pool.state, event, leaving=self._leaving)
        match event.kind:
            case EventKind.RECLAIM_NOTICE:
                self._leaving |= self._pool.state.by_id.keys() & frozenset(event.workers)
            case EventKind.GPUS_LOST:
                self._leaving -= frozenset(event.workers)
            case _:
                pass

    def _remember(self, moment: _Moment) -> None:
        records: Sequence[Telemetry] = moment.records
        known = self._history
        self._history = replace(
            known,
            arrivals=(*known.arrivals, *(r for r in records if isinstance(r, ArrivalRecord))),
            turns=(*known.turns, *(r for r in records if isinstance(r, TurnRecord))),
            events=(*known.events, moment.event),
        )

    def _situation(self, state: ClusterState, now_s: float, changes: Mapping[Change, ChangeAge]) -> Situation:
        samples = forecast(self._forecaster, self._history, now_s, self._sources)
        known = self._tracker.inform(
            replace(self._world, state=state, changes=changes),
            borrowing=state.counts.borrowed > 0,
            samples=samples,
        )
        return known if known.workload else replace(known, workload=self._world.workload)

    def _note(self, event: Event, now_s: float, tick: Tick, changes: frozenset[Change]) -> None:
        assert self._moment is not None
        self.taken.append(
            Taken(
                at_s=now_s,
                event=event.kind,
                step=self._moment.step,
                decision=tick.decision,
                changes=changes,
                plan=tick.plan,
                measured_s=self._moment.measured_s,
            )
        )
