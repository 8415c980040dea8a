"""One policy in the simulated world: the scheduler of `pearl solve`, driven by simulated events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pearl.core.cluster import ClusterState, Mode, Role, Status, Zone
from pearl.core.event import Event, EventKind
from pearl.core.problem import Change
from pearl.core.situation import Situation
from pearl.core.telemetry import Life
from pearl.deciding.record import context
from pearl.makespan.cached import CachedPredictor
from pearl.makespan.protocol import Predictor
from pearl.policy.model import Policy
from pearl.scheduler import ElasticScheduler, Tick
from pearl.sim.arrivals import events_of
from pearl.sim.log import Happening, Record
from pearl.sim.observer import Observer
from pearl.sim.pipeline import TrainingCost
from pearl.sim.rollout import Draw, Rollout, RolloutResult, draw_batches
from pearl.sim.traces.availability import AvailabilityTrace
from pearl.solving.protocol import Solver
from pearl.solving.remembering import RememberingSolver
from pearl.tracking.forecasters import Forecaster, Observed
from pearl.tracking.history import Source

SOLVE_LIMIT_S = 3600.0
"""Limit of a solve in place of the policy's: what is decided must not depend on how busy this machine is."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is simulated: a world, a policy, and how long. All runs with one seed meet the same trajectories."""

    world: Situation
    """State before the first event, profiles, costs and prices."""
    policy: Policy
    predictor: Predictor
    solver: Solver
    training: TrainingCost
    horizon_s: float
    seed: int = 0
    trace: AvailabilityTrace | None = None
    batches: int | None = None
    """Stop at the end of so many batches, if that comes before the horizon."""
    corrects: bool = True
    """Whether predictions are corrected by what earlier batches took."""
    forecaster: Forecaster = field(default_factory=Observed)
    """Source of the policy's forecasts."""
    tick_every_s: float | None = None
    """Also decide so often, whatever happens; None: on events only."""
    draw: Draw | None = None
    """Trajectories of each batch; None samples them from the workload profile."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of an experiment."""

    policy: str
    seed: int
    rollout: RolloutResult
    switches: Mapping[Change, int]
    decisions: int
    log: tuple[Record, ...] = field(repr=False)
    """Everything that happened, decisions included, in order of time."""


def run_experiment(experiment: Experiment) -> Report:
    """Simulate; raises UsageError or PolicyError where the parts do not fit together."""
    return _Run(experiment).report()


class _Run:
    def __init__(self, experiment: Experiment) -> None:
        world, trace = experiment.world, experiment.trace
        workload = world.workload
        assert workload is not None, "a simulated world has a workload"
        events, state = ((), world.state) if trace is None else _opening(world, trace)
        self._experiment = experiment
        self._decisions = 0
        self._cause_ends = 0
        """Length of the log when the event under way, a decision's cause, was in it."""
        self._measured = 0
        self._switches = dict.fromkeys(Change, 0)
        sources = tuple(source for source in Source if source.value in experiment.policy.sources)
        self._observer = Observer(
            world=world,
            forecaster=experiment.forecaster,
            sources=sources,
            lives=self._lives,
            corrects=experiment.corrects,
        )
        self._rollout = Rollout(
            state=state,
            workload=workload,
            engine=world.engine,
            costs=world.costs,
            training=experiment.training,
            draw=experiment.draw or draw_batches(workload, experiment.seed),
            listener=self._on_event,
            telemetry=self._observer.record if self._observer.reads_turns else None,
            max_batches=experiment.batches,
        )
        self._scheduler = ElasticScheduler(
            policy=experiment.policy,
            predictor=CachedPredictor(experiment.predictor),
            solver=RememberingSolver(experiment.solver),
            executor=self._rollout.executor,
            clock=self._rollout.clock,
            situate=self._observer.situation,
            note=self._note,
            explain=False,
            time_limit_s=SOLVE_LIMIT_S,
        )
        self._rollout.schedule(event for event in events if event.at_s > 0)
        if experiment.tick_every_s is not None:
            self._tick_later(experiment.tick_every_s)

    def _lives(self) -> tuple[Life, ...]:
        return self._rollout.lives()

    def _tick_later(self, at_s: float) -> None:
        self._rollout.call_at(at_s, lambda: self._tick(at_s))

    def _tick(self, now_s: float) -> None:
        self._on_event(Event(kind=EventKind.PROFILE_UPDATED, at_s=now_s))
        assert self._experiment.tick_every_s is not None
        if now_s < self._experiment.horizon_s:
            self._tick_later(now_s + self._experiment.tick_every_s)

    def _on_event(self, event: Event) -> None:
        for batch in self._rollout.batches[self._measured :]:
            if batch.ended_s is not None:
                self._observer.batch_ended(batch.ended_s)
                self._measured += 1
        self._observer.hear(event)
        self._cause_ends = len(self._rollout.cluster.log)
        self._scheduler.on_event(event)

    def _note(self, event: Event, now_s: float, tick: Tick, changes: frozenset[Change]) -> None:
        decision = tick.decision
        if event.kind is EventKind.BATCH_STARTED:
            self._observer.batch_began(now_s, decision)
        else:
            self._observer.decided(now_s, decision)
        for kind in changes:
            self._switches[kind] += 1
        self._decisions += 1
        # What superseding the plan before and beginning this one did is in the log by now, and comes after its cause.
        record = Record(at_s=now_s, what=Happening.DECISION, data=_facts(event, tick, changes))
        self._rollout.cluster.log.insert(self._cause_ends, record)

    def report(self) -> Report:
        experiment = self._experiment
        result = self._rollout.run(until_s=experiment.horizon_s)
        return Report(
            policy=experiment.policy.name,
            seed=experiment.seed,
            rollout=replace(result, log=()),
            switches=self._switches,
            decisions=self._decisions,
            log=result.log,
        )


def _facts(event: Event, tick: Tick, changes: frozenset[Change]) -> dict[str, object]:
    """What the log says of a decision."""
    decision = tick.told
    return {
        "event": event.kind.value,
        "outcome": decision.outcome.value,
        "configuration": decision.counts.label(),
        "changes": sorted(kind.value for kind in changes),
        "borrowed": decision.counts.borrowed,
        "predicted_s": decision.chosen.makespan_s if decision.chosen else None,
        "reasons": [{"code": r.code.value, "text": r.text, "data": dict(r.data)} for r in decision.reasons],
        "steps": len(tick.plan.steps),
        **(context(tick.verdict) if tick.verdict else {}),
    }


def _opening(world: Situation, trace: AvailabilityTrace) -> tuple[tuple[Event, ...], ClusterState]:
    """The trace's events, and the state at time 0: its first nodes stand for the scenario's preemptible workers.

    They serve already. Where no worker serves yet they have no role either: the first decision gives each its own.
    """
    state = world.state
    fixed = tuple(worker for worker in state.workers if worker.zone is not Zone.PREEMPTIBLE)
    events = tuple(events_of(trace, tensor_parallel=world.engine.tensor_parallel, beside=fixed))
    begun = state.counts.serving > 0
    role = Role.DECODE if state.counts.mode is Mode.DISAGGREGATED else Role.COLOCATED
    role, status = (role, Status.ACTIVE) if begun else (Role.INACTIVE, Status.INACTIVE)
    first = (worker for event in events if event.at_s <= 0 for worker in event.added)
    serving = (replace(worker, role=role, status=status, started=True) for worker in first)
    return events, ClusterState(workers=(*fixed, *serving), epoch=state.epoch)
