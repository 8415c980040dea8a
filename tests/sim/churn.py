"""Random schedules of joins, notices, failures, borrows and role changes, against which nothing may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pearl.core.cluster import ClusterState, Role, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.event import Event, EventKind
from pearl.core.grouping import group_workers
from pearl.core.workload import Routing, Training
from pearl.planning import make_plan
from pearl.sim.rollout import Rollout, RolloutResult, TrainingCost, draw_batches
from tests.sim.sim_cluster import worker
from tests.sim.sim_samples import profile, workload

COSTS = TransitionCosts(start_s=8.0, admit_s=3.0)
CHURN_S = 60.0
MODES = ((Role.COLOCATED,), (Role.PREFILL, Role.DECODE), (Role.COLOCATED, Role.PREFILL, Role.DECODE))


@dataclass
class Churn:
    """One seeded schedule; every random choice comes from `rng`."""

    seed: int

    def __post_init__(self) -> None:
        self.rng = rng = Random(self.seed)
        self.batches = 3
        self.workload = workload(
            trajectories=rng.randint(1, 12),
            routing=rng.choice(list(Routing)),
            training=rng.choice(list(Training)),
            max_context_tokens=6000,
        )
        self.draw = draw_batches(self.workload, self.seed)
        self.names = iter(f"new-{i}" for i in range(10_000))
        self.lost_seen = 0
        self.rollout = Rollout(
            state=self._pool(),
            workload=self.workload,
            engine=profile(kv_colocated_tokens=rng.randint(6000, 20_000), kv_decode_tokens=rng.randint(6000, 20_000)),
            costs=COSTS,
            training=TrainingCost(step_s=rng.uniform(0, 15)),
            draw=self.draw,
            max_batches=self.batches,
        )

    def run(self) -> RolloutResult:
        at_s = 0.0
        while at_s < CHURN_S:
            at_s += self.rng.expovariate(0.7)
            self.rollout.call_at(at_s, self.rng.choice([self._event, self._plan, self._plan]))
        self.rollout.call_at(at_s, self._rescue)
        self.rollout.run(until_s=3000.0)
        return self.rollout.run(until_s=3000.0)  # past the end of the last batch, until everything has settled

    def _pool(self) -> ClusterState:
        zones = [self.rng.choice(list(Zone)) for _ in range(self.rng.randint(1, 6))]
        roles = self.rng.choice(MODES)
        return ClusterState(
            workers=tuple(
                worker(f"w{i}", Role.INACTIVE if zone is Zone.OVERLAP else self.rng.choice(roles), zone)
                for i, zone in enumerate(zones)
            )
        )

    def _event(self) -> None:
        cluster = self.rollout.cluster
        ids = [w.id for w in cluster.state.workers if w.zone is not Zone.OVERLAP]
        some = tuple(self.rng.sample(ids, self.rng.randint(0, min(2, len(ids)))))
        match self.rng.randint(0, 2):
            case 0:
                added = tuple(self._new() for _ in range(self.rng.randint(1, 3)))
                cluster.happen(Event(kind=EventKind.GPUS_ADDED, added=added))
            case 1 if some:
                cluster.happen(Event(kind=EventKind.RECLAIM_NOTICE, workers=some, within_s=self.rng.uniform(0, 6)))
            case 2 if some:
                cluster.happen(Event(kind=EventKind.GPUS_LOST, workers=some))
        self._audit()

    def _new(self) -> Worker:
        return worker(next(self.names), Role.INACTIVE, Zone.PREEMPTIBLE, started=False)

    def _plan(self) -> None:
        """Any roles at all, also foolish ones, begun while the plan before may still be under way."""
        executor = self.rollout.executor
        if self.rng.random() < 0.7:
            executor.cancel_pending()
        state = executor.observe()
        groups = group_workers(state, by_node=False, by_risk=False)
        roles = (*self.rng.choice(MODES), Role.INACTIVE)
        assignment: dict[tuple[str, Role], int] = {}
        for entry in groups:
            targets = [role for role in entry.group.targets if role in roles] or list(entry.group.targets)
            for _ in range(entry.group.size):
                key = (entry.group.id, self.rng.choice(targets))
                assignment[key] = assignment.get(key, 0) + 1
        for step in make_plan(state, groups, assignment, COSTS).steps:
            executor.apply(step)
        self._audit()

    def _rescue(self) -> None:
        """At the end somebody serves, so that every trajectory can end."""
        self._audit()
        added = (worker("rescue"), worker("rescue-decode", Role.DECODE))
        self.rollout.cluster.happen(Event(kind=EventKind.GPUS_ADDED, added=added))

    def _audit(self) -> None:
        self.lost_seen += len(self.rollout._pool.lost())


def assert_nothing_lost(seed: int) -> RolloutResult:
    churn = Churn(seed)
    result = churn.run()
    drawn = [trajectory for index in range(churn.batches) for trajectory in churn.draw(index)]
    assert (result.lost, churn.lost_seen, result.in_flight, result.finished) == (0, 0, 0, len(drawn)), seed
    assert result.tally.output_tokens == sum(t.output_tokens for trajectory in drawn for t in trajectory), seed
    assert [batch.training_ended_s is not None for batch in result.batches] == [True] * churn.batches, seed
    assert not churn.rollout.executor.busy, seed
    for seat in churn.rollout.cluster._seats.values():
        cache = seat.engine.cache if seat.engine else None
        assert cache is None or cache.pinned_tokens == 0, seed
    return result
