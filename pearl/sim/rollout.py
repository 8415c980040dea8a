"""Rollout and training over a horizon, on a cluster whose workers come, go and change roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from pearl.core.cluster import ClusterState, Role, Status, Zone
from pearl.core.engine import EngineProfile, TransitionCosts
from pearl.core.event import Event
from pearl.core.telemetry import Life, Telemetry, TransitionRecord
from pearl.core.workload import Workload
from pearl.errors import UsageError
from pearl.sim.cluster import SimCluster
from pearl.sim.events import ARRIVAL, EventQueue
from pearl.sim.executor import SimClock, SimExecutor
from pearl.sim.kvcache import kv_capacity
from pearl.sim.log import Record
from pearl.sim.pipeline import Batch, Pipeline, TrainingCost
from pearl.sim.pool import Pool
from pearl.sim.session import Session
from pearl.sim.tally import Tally
from pearl.sim.telemetry import TurnReporter
from pearl.sim.trajectories import Trajectory, sample
from pearl.sim.usage import UsageKey

SECONDS_PER_HOUR = 3600.0

Draw = Callable[[int], Sequence[Trajectory]]
"""The trajectories of a batch, by its index."""


def draw_batches(workload: Workload, seed: int) -> Draw:
    """Batches sampled from the profile: batch k depends on the seed and k alone, whatever the cluster does."""
    return lambda index: sample(workload, Random(f"{seed}/{index}"))


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """What came of it up to `horizon_s`."""

    horizon_s: float
    """Time simulated: that asked for, or the end of the last batch where their number was given and reached."""
    batches: tuple[Batch, ...]
    """In order; the last may still be under way."""
    finished: int
    """Trajectories that ended."""
    in_flight: int
    lost: int
    """Trajectories that nothing serves, queues or waits for, found by an audit; always 0."""
    gpu_s: Mapping[UsageKey, float]
    """GPU-seconds by zone, role and status."""
    gpus_per_worker: int
    tally: Tally
    log: tuple[Record, ...]

    @property
    def throughput_traj_per_h(self) -> float:
        """Trajectories that ended, per hour."""
        return self.finished * SECONDS_PER_HOUR / self.horizon_s if self.horizon_s else 0.0

    @property
    def makespans_s(self) -> tuple[float, ...]:
        """Makespans of the batches that ended."""
        return tuple(batch.makespan_s for batch in self.batches if batch.makespan_s is not None)

    @property
    def borrowed_gpu_s(self) -> float:
        """GPU-seconds for which training GPUs served rollout."""
        return sum(
            seconds
            for (zone, role, status), seconds in self.gpu_s.items()
            if zone is Zone.OVERLAP and role is not Role.INACTIVE and status is Status.ACTIVE
        )

    @property
    def serving_idle_gpu_s(self) -> float:
        """GPU-seconds in which an active worker computed nothing."""
        active = sum(
            seconds
            for (_, role, status), seconds in self.gpu_s.items()
            if status is Status.ACTIVE and role is not Role.INACTIVE
        )
        return active - sum(self.tally.busy_s.values()) * self.gpus_per_worker


class Rollout:
    """One simulated run.

    `listener` hears of every event after the cluster has applied it; a scheduler answers with steps through
    `executor`. Without one, the cluster keeps its roles, and loses or returns workers at their deadlines.
    `telemetry` gets the records that a live rollout would send, for trackers to learn from.
    """

    def __init__(
        self,
        *,
        state: ClusterState,
        workload: Workload,
        engine: EngineProfile,
        costs: TransitionCosts,
        training: TrainingCost,
        draw: Draw,
        listener: Callable[[Event], None] | None = None,
        telemetry: Callable[[Telemetry], None] | None = None,
        max_batches: int | None = None,
    ) -> None:
        _check_memory(workload, engine)
        self._gpus_per_worker = engine.tensor_parallel
        self._queue = EventQueue()
        self._tally = Tally()
        self._telemetry = telemetry
        self._pool = Pool(
            queue=self._queue,
            routing=workload.routing,
            done=self._ended,
            tally=self._tally,
            observer=TurnReporter(send=telemetry, queue=self._queue, version=self._version) if telemetry else None,
        )
        self.cluster = SimCluster(
            state=state,
            profile=engine,
            costs=costs,
            pool=self._pool,
            queue=self._queue,
            listener=listener or _ignore,
            telemetry=self._transition if telemetry else None,
        )
        self.executor = SimExecutor(self.cluster)
        self.clock = SimClock(self._queue)
        self._pipeline = Pipeline(
            workload=workload,
            cost=training,
            draw=draw,
            pool=self._pool,
            cluster=self.cluster,
            queue=self._queue,
            max_batches=max_batches,
        )
        self._queue.at(0.0, ARRIVAL, lambda _: self._pipeline.begin())

    @property
    def batches(self) -> Sequence[Batch]:
        """The batches so far, in order."""
        return self._pipeline.batches

    def schedule(self, events: Iterable[Event]) -> None:
        """Let `events` happen at their `at_s`: arrivals and notices of an availability trace, failures."""
        for event in events:
            self._queue.at(event.at_s, ARRIVAL, self.cluster.happen, event)

    def call_at(self, at_s: float, action: Callable[[], None]) -> None:
        """Run `action` at a simulated time, for schedulers that tick by the clock."""
        self._queue.at(at_s, ARRIVAL, partial(_call, action))

    def lives(self) -> tuple[Life, ...]:
        """Where every trajectory under way stands now."""
        return tuple(self._pool.lives())

    def run(self, *, until_s: float) -> RolloutResult:
        """Simulate up to `until_s`, or to the end of the last batch where that comes first.

        May be called again: with a later time, or, after the last batch, for what follows it.
        """
        self._queue.run(until_s=until_s)
        return RolloutResult(
            horizon_s=self._queue.now_s,
            batches=tuple(self._pipeline.batches),
            finished=self._pipeline.finished,
            in_flight=len(self._pool.live),
            lost=len(self._pool.lost()),
            gpu_s=self.cluster.usage.read(self._queue.now_s),
            gpus_per_worker=self._gpus_per_worker,
            tally=self._tally,
            log=tuple(self.cluster.log),
        )

    def _transition(self, record: TransitionRecord) -> None:
        if self._telemetry is not None:
            self._telemetry(replace(record, step=max(0, len(self._pipeline.batches) - 1)))

    def _version(self) -> int:
        return self._pipeline.version

    def _ended(self, session: Session) -> None:
        self._pipeline.ended(session)


def _ignore(_: Event) -> None:
    """Nobody schedules."""


def _call(action: Callable[[], None], _: object) -> None:
    action()


def _check_memory(workload: Workload, engine: EngineProfile) -> None:
    memory = min(kv_capacity(engine, role) for role in (Role.COLOCATED, Role.PREFILL, Role.DECODE))
    if workload.max_context_tokens > memory:
        raise UsageError(
            f"a context may reach {workload.max_context_tokens} tokens; the KV memory of {engine.name} holds {memory}"
        )
