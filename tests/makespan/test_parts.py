"""Closed forms of the parts that the predictors are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.makespan.cache import affinity_cache, round_robin_cache
from pearl.makespan.completion import expected_last_s, last_weights
from pearl.makespan.costs import decode_step_s, prefill_s
from pearl.makespan.ladder import between_rungs, every_pair, ladder, ladder_pairs
from pearl.makespan.sample import Floats, representative_trajectories
from pearl.makespan.stages import MOST_STAGES, stage_edges, stages_of
from pearl.makespan.station import cyclic_s, fcfs_other_s, hot_spot_s, shared_s
from pearl.makespan.turn import queued_s
from tests.makespan.cases import DENSE, FIXED, SPARSE, VARIED

times = st.floats(1e-4, 100)


def at(value: float) -> Floats:
    return np.array([value])


def test_array_costs_are_those_of_the_engine_profile():
    batches = np.array([1.0, 7.0, 64.0])
    for engine in (DENSE, SPARSE):
        step = decode_step_s(engine.decode, batches, batches * 5000)
        assert step == pytest.approx([engine.decode.seconds(b, b * 5000) for b in batches])
    assert prefill_s(DENSE.prefill, at(700), at(4000))[0] == pytest.approx(DENSE.prefill.seconds(700, 4000))


@given(service=times, think=times)
def test_a_lone_customer_never_waits(service: float, think: float):
    assert queued_s(service, at(1), think)[0] == pytest.approx(service)
    assert shared_s(at(service), at(service), others=at(0), away_s=at(think))[0] == pytest.approx(service)


@given(service=times, customers=st.integers(1, 500))
def test_without_think_time_everybody_waits_for_everybody(service: float, customers: int):
    assert queued_s(service, at(customers), 0.0)[0] == pytest.approx(service * customers)


@given(service=times, think=times)
def test_many_customers_saturate_the_station(service: float, think: float):
    customers = 1e6 * (1 + think / service)
    response = queued_s(service, at(customers), think)[0]
    assert response == pytest.approx(service * customers - think, rel=1e-3)


@given(alone=times, other=times, others=st.floats(0, 300), away=times)
def test_the_shared_station_solves_its_equation(alone: float, other: float, others: float, away: float):
    response = shared_s(at(alone), at(other), others=at(others), away_s=at(away))[0]
    assert response == pytest.approx(alone + other * others * response / (away + response), rel=1e-6)


def test_a_served_customer_adds_its_residual():
    adds = fcfs_other_s(at(2.0), added_s=at(2.0), variation=at(0.0), response_s=at(2.0))[0]
    assert adds == pytest.approx(1.0), "constant service, always in service: half of it remains on average"
    assert fcfs_other_s(at(2.0), added_s=at(2.0), variation=at(1.0), response_s=at(2.0))[0] == pytest.approx(2.0), (
        "memoryless"
    )


def test_exponential_idle_times_hit_as_far_as_memory_reaches():
    idle = -np.log1p(-(np.arange(4096) + 0.5) / 4096)
    cache = affinity_cache(idle)
    for memory in (0.2, 0.5, 0.8):
        hit = cache.hit(memory_tokens=at(memory * 1000), prefix_tokens=at(100), customers=at(20), idle_share=at(0.5))
        assert hit[0] == pytest.approx(memory, abs=0.06), "for exponential idle times Che's curve is the diagonal"


def test_equal_idle_times_make_a_small_cache_useless_and_a_large_one_perfect():
    cache = affinity_cache(np.full(8, 2.0))

    def hit(memory: float) -> float:
        whole = cache.hit(memory_tokens=at(memory), prefix_tokens=at(100), customers=at(20), idle_share=at(0.5))
        return float(whole[0])

    assert hit(600) < 0.01
    assert hit(1000) == pytest.approx(1, abs=0.2)
    assert hit(1400) == 1


def test_round_robin_over_one_worker_is_affinity_and_over_many_finds_little():
    stages = stages_of(representative_trajectories(FIXED, 16))
    cache = round_robin_cache(stages, np.array([1.0, 8.0, 1e6]), keeps_output=True)
    plenty = np.full((stages.turn.shape[0], 3), 1e12)
    found = cache.hit(memory_tokens=plenty, prefix_tokens=plenty / 1e9, customers=at(8), idle_share=at(0.5))
    assert found[1:, 0] == pytest.approx(1)
    assert found[1, 1] == pytest.approx(1 / 8), "the second turn meets the first one's worker once in eight"
    assert (np.diff(found[1:, 1]) > 0).all(), "later turns have more visits behind them"
    assert found[:, 2].max() < 1e-5


def test_under_round_robin_a_copy_has_outlasted_the_load_since_it_was_left():
    stages = stages_of(representative_trajectories(VARIED, 64))
    calm, full = np.full((stages.turn.size, 1), 1.0), np.linspace(8.0, 1.0, stages.turn.size)[:, None]
    one, many = (round_robin_cache(stages, at(workers), keeps_output=True) for workers in (1, 16))
    for cache in (one, many):
        assert cache.exposure.sum(axis=1) == pytest.approx(np.ones_like(cache.exposure[0]))
    assert one.exposure[:, :, 0] == pytest.approx(np.eye(stages.turn.size)), "the last turn was at the same worker"

    def last_hit(customers: Floats) -> float:
        return float(
            many.hit(memory_tokens=at(500), prefix_tokens=at(100), customers=customers, idle_share=at(1))[-1, 0]
        )

    assert last_hit(full) < last_hit(calm), "the load has fallen, but the copies of the time before are gone"


@given(work=times, queued=times, backlog=st.floats(-10, 10), variation=st.floats(0, 3))
def test_turns_that_are_dealt_out_in_turn_wait_less(work: float, queued: float, backlog: float, variation: float):
    def respond(workers: float, varied: float) -> float:
        arrivals = {"backlog_s": at(backlog), "variation": at(varied), "workers": at(workers)}
        return float(cyclic_s(at(work + queued), at(work), **arrivals)[0])

    assert respond(1, variation) == pytest.approx(work + queued), "one worker gets every turn"
    assert respond(1e9, 0) == pytest.approx(work + max(backlog, 0.0), abs=1e-5), (
        "even arrivals and even service: no waiting"
    )
    if queued >= backlog:
        assert respond(8, variation) <= respond(1, variation) + 1e-9


def test_a_hot_spot_begins_where_no_slack_is_left_and_lasts_while_it_is_slower():
    used = np.array([[0.5], [1.0], [0.6], [0.6]])
    slow, cycle = np.array([[9.0], [9.0], [9.0], [3.0]]), np.full((4, 1), 5.0)
    assert hot_spot_s(used, slow, cycle)[:, 0].tolist() == [0.0, 4.0, 4.0, 0.0]
    assert hot_spot_s(0.9 * np.ones((4, 1)), slow, cycle).sum() == 0


def test_a_prefill_worker_lacks_the_outputs():
    stages = stages_of(representative_trajectories(FIXED, 16))
    cache = round_robin_cache(stages, np.array([1.0]), keeps_output=False)
    assert cache.found[1, 0] == pytest.approx(2000 / 2300)


@given(size=st.integers(1, 400), trajectories=st.integers(1, 400))
def test_order_statistic_weights_sum_to_one(size: int, trajectories: int):
    weights = last_weights(size, trajectories)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()


@pytest.mark.parametrize("trajectories", [1, 2, 8, 64, 256])
def test_expected_maximum_of_exponentials_is_the_harmonic_number(trajectories: int):
    completions = -np.log1p(-(np.arange(512) + 0.5) / 512)[:, None]
    harmonic = sum(1 / k for k in range(1, trajectories + 1))
    assert expected_last_s(completions, trajectories)[0] == pytest.approx(harmonic, rel=0.05)


def test_the_tail_beyond_the_sample_goes_on_exponentially():
    completions = -np.log1p(-(np.arange(512) + 0.5) / 512)[:, None]
    harmonic = np.log(4096) + 0.5772
    assert expected_last_s(completions, 4096)[0] == pytest.approx(harmonic, rel=0.05)


def test_stages_partition_the_turns():
    for turns in (1, 2, 9, 10, 11, 75, 300):
        edges = stage_edges(turns)
        assert edges[0] == 0
        assert (np.diff(edges) > 0).all()
        assert edges.size <= MOST_STAGES
        assert edges[-1] < turns
    sample = representative_trajectories(VARIED)
    stages = stages_of(sample)
    assert stages.counts.sum() == sample.turns.sum()
    assert stages.output_by_trajectory.sum() == pytest.approx(sample.output_tokens.sum())
    assert (np.diff(stages.survivors[:, 0]) <= 0).all()
    assert stages.survivors[0, 0] == 1


@pytest.mark.parametrize("workers", [2, 3, 64])
def test_every_pair_is_there_once(workers: int):
    prefill, decode = every_pair(workers)
    pairs = set(zip(prefill.tolist(), decode.tolist(), strict=True))
    assert len(pairs) == prefill.size == workers * (workers - 1) // 2
    assert all(p >= 1 and d >= 1 and p + d <= workers for p, d in pairs)


@pytest.mark.parametrize("workers", [65, 1000, 4096])
def test_the_ladder_is_short_ends_at_the_pool_and_uses_it_whole(workers: int):
    rungs = ladder(workers)
    assert rungs[0] == 1
    assert rungs[-1] == workers
    assert (rungs[1:] <= np.maximum(rungs[:-1] * 1.26, rungs[:-1] + 1)).all()
    prefill, decode = ladder_pairs(rungs, workers)
    assert (prefill + decode).max() == workers
    whole = set(prefill[prefill + decode == workers].tolist())
    assert set(rungs[:-1].tolist()) <= whole
    assert prefill.size < 2500


def test_between_rungs_keeps_the_rungs():
    rungs = ladder(100)
    values = 50 / rungs
    filled = between_rungs(rungs, values, 100)
    assert filled[rungs - 1] == pytest.approx(values)
    assert (np.diff(filled) <= 0).all()
