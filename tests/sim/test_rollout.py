from __future__ import annotations

from random import Random

import pytest

from pearl.core.cluster import ClusterState, Counts, Role, Status, Zone
from pearl.core.event import Event, EventKind
from pearl.core.plan import Borrow, Return
from pearl.core.workload import Training
from pearl.errors import UsageError
from pearl.sim.batch import simulate_batch
from pearl.sim.rollout import Rollout, TrainingCost, draw_batches
from tests.sim.churn import assert_nothing_lost
from tests.sim.sim_cluster import COSTS, pool_of, worker
from tests.sim.sim_samples import profile, workload

POOL = pool_of(worker("a"), worker("b"))
BORROWING = pool_of(worker("a"), worker("o", Role.INACTIVE, Zone.OVERLAP))


def rollout(
    state: ClusterState = POOL, *, step_s: float = 20.0, seed: int = 0, listener=None, max_batches=None, **changes
) -> Rollout:
    load = workload(**({"trajectories": 16} | changes))
    return Rollout(
        state=state,
        workload=load,
        engine=profile(),
        costs=COSTS,
        training=TrainingCost(step_s=step_s),
        draw=draw_batches(load, seed),
        listener=listener,
        max_batches=max_batches,
    )


def test_a_batch_takes_as_long_as_on_its_own():
    load = workload(trajectories=16)
    alone = simulate_batch(load, profile(), counts=Counts(colocated=2), seed=0, trajectories=draw_batches(load, 0)(0))
    assert rollout().run(until_s=500).makespans_s[0] == alone.makespan_s


def test_synchronous_rollout_and_training_alternate():
    result = rollout(training=Training.SYNCHRONOUS).run(until_s=600)
    done = [batch for batch in result.batches if batch.training_ended_s is not None]
    assert len(done) > 5
    for batch, following in zip(done, result.batches[1:], strict=False):
        assert batch.staleness == 0
        assert batch.training_ended_s == batch.ended_s + 20.0
        assert following.began_s == batch.training_ended_s


@pytest.mark.parametrize("step_s", [1.0, 20.0, 200.0])
def test_asynchronous_rollout_overlaps_training_within_the_staleness(step_s):
    result = rollout(step_s=step_s, max_staleness=1).run(until_s=3000)
    batches = [batch for batch in result.batches if batch.training_ended_s is not None]
    assert max(batch.staleness for batch in batches) <= 1
    mean_s = sum(batch.makespan_s for batch in batches) / len(batches)
    period_s = (batches[-1].began_s - batches[0].began_s) / (len(batches) - 1)
    assert period_s == pytest.approx(max(mean_s, step_s), rel=0.08)


def test_more_staleness_lets_rollout_run_ahead_of_slow_training():
    result = rollout(step_s=1000.0, max_staleness=3).run(until_s=900)
    assert len(result.batches) == 4
    assert result.batches[3].weights_version == 0


def test_batches_depend_on_the_seed_alone():
    load = workload()
    assert draw_batches(load, 1)(5) == draw_batches(load, 1)(5)
    assert draw_batches(load, 1)(5) != draw_batches(load, 1)(6)
    assert rollout(seed=3).run(until_s=300) == rollout(seed=3).run(until_s=300)


def test_training_waits_until_borrowed_workers_have_returned():
    run = rollout(BORROWING, training=Training.SYNCHRONOUS)
    run.call_at(1.0, lambda: run.executor.apply(Borrow(worker="o", role=Role.COLOCATED, estimated_s=6.0)))
    result = run.run(until_s=400)
    batch = result.batches[0]
    # Nobody plans a return, so the trainer's patience ends first.
    assert batch.training_began_s == pytest.approx(batch.ended_s + 10.0 + COSTS.return_s)
    assert result.borrowed_gpu_s == pytest.approx(batch.ended_s - 7.0 + 10.0)
    assert result.lost == 0


def test_a_listener_that_returns_at_once_trains_sooner():
    heard: list[Event] = []

    def give_back(event: Event) -> None:
        heard.append(event)
        if event.kind is EventKind.TRAINING_STARTED:
            run.executor.apply(Return(worker="o", estimated_s=COSTS.return_s))

    run = rollout(BORROWING, listener=give_back, training=Training.SYNCHRONOUS)
    run.call_at(1.0, lambda: run.executor.apply(Borrow(worker="o", role=Role.COLOCATED, estimated_s=6.0)))
    result = run.run(until_s=200)
    batch = result.batches[0]
    assert batch.training_began_s == pytest.approx(batch.ended_s + COSTS.return_s)
    kinds = [event.kind for event in heard]
    assert kinds[:3] == [EventKind.BATCH_STARTED, EventKind.TRAINING_STARTED, EventKind.TRAINING_FINISHED]
    assert heard[1].at_s == batch.ended_s


def test_borrowing_shortens_the_batch():
    plain = rollout(BORROWING)
    lent = rollout(BORROWING)
    lent.call_at(0.0, lambda: lent.executor.apply(Borrow(worker="o", role=Role.COLOCATED, estimated_s=6.0)))
    assert lent.run(until_s=100).makespans_s[0] < plain.run(until_s=100).makespans_s[0]


def test_events_of_a_trace_happen_at_their_times():
    heard: list[Event] = []
    run = rollout(pool_of(worker("a"), worker("p", zone=Zone.PREEMPTIBLE)), listener=heard.append)
    new = worker("q", Role.INACTIVE, Zone.PREEMPTIBLE, started=False)
    run.schedule(
        [
            Event(kind=EventKind.RECLAIM_NOTICE, workers=("p",), within_s=30.0, at_s=40.0),
            Event(kind=EventKind.GPUS_ADDED, added=(new,), at_s=50.0),
        ]
    )
    result = run.run(until_s=100.0)
    times = {event.kind: event.at_s for event in heard if "gpus" in event.kind or "reclaim" in event.kind}
    assert times == {EventKind.RECLAIM_NOTICE: 40.0, EventKind.GPUS_ADDED: 50.0, EventKind.GPUS_LOST: 70.0}
    assert result.gpu_s[Zone.PREEMPTIBLE, Role.COLOCATED, Status.ACTIVE] == 70.0
    assert result.gpu_s[Zone.PREEMPTIBLE, Role.INACTIVE, Status.INACTIVE] == 50.0


def test_gpu_seconds_cover_the_horizon_and_idle_is_what_engines_did_not_use():
    result = rollout().run(until_s=300.0)
    assert sum(result.gpu_s.values()) == 600.0
    assert 0 < result.serving_idle_gpu_s < 600.0


def test_a_context_beyond_any_memory_is_refused():
    with pytest.raises(UsageError, match="may reach 900000 tokens"):
        rollout(max_context_tokens=900_000)


def test_nothing_is_lost_over_random_schedules():
    results = [assert_nothing_lost(seed) for seed in range(25)]
    assert sum(result.tally.interruptions for result in results) > 25


@pytest.mark.slow
def test_nothing_is_lost_over_a_thousand_random_schedules():
    for seed in Random(1).sample(range(100, 10**6), 1000):
        assert_nothing_lost(seed)


@pytest.mark.parametrize("training", list(Training))
def test_a_number_of_batches_ends_the_run_with_the_last_of_them(training):
    endless = rollout(training=training).run(until_s=600)
    ended_s = endless.batches[2].ended_s
    result = rollout(training=training, max_batches=3).run(until_s=600)
    assert [batch.ended_s for batch in result.batches] == [batch.ended_s for batch in endless.batches[:3]]
    assert result.horizon_s == ended_s
    assert result.throughput_traj_per_h == pytest.approx(3 * 16 * 3600 / ended_s)
    assert (result.finished, result.in_flight, result.lost) == (3 * 16, 0, 0)
    assert sum(result.gpu_s.values()) == pytest.approx(2 * ended_s)
    assert result.log == endless.log[: len(result.log)]
    assert result.log[-1].data == {"batch": 2, "makespan_s": result.makespans_s[-1]}


def test_a_horizon_before_the_last_batch_cuts_the_run_off():
    result = rollout(max_batches=3).run(until_s=1.0)
    assert result.horizon_s == 1.0
    assert result.in_flight == 16


def test_what_follows_the_last_batch_is_for_those_who_run_on():
    run = rollout(max_batches=1)
    first = run.run(until_s=600)
    assert first.batches[0].training_began_s is None
    rest = run.run(until_s=600)
    assert rest.horizon_s == 600
    assert rest.batches[0].training_ended_s == rest.batches[0].ended_s + 20.0
    assert len(rest.batches) == 1
