"""What must hold of every built-in predictor, and the closed forms of simple cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pearl.core.cluster import Counts
from pearl.core.distribution import Distribution
from pearl.core.engine import EngineProfile
from pearl.core.problem import UNREACHABLE_MS, MakespanTables
from pearl.core.workload import Routing, Workload
from pearl.makespan.protocol import Predictor
from pearl.makespan.registry import get_predictor
from tests.makespan.cases import DENSE, FIXED, SPARSE, VARIED, at_speed, constant, lognormal

BUILT_IN = pytest.mark.parametrize("predictor", [get_predictor("bubble"), get_predictor("network")], ids=lambda p: p.id)

NOISE = 0.05
"""Relative noise of the network predictor: the fixed point is taken after a few steps, and the last trajectories'
path is read from a few of the sample's."""

ROOMY = replace(DENSE, kv_decode_tokens=50_000_000, kv_colocated_tokens=50_000_000)
"""Memory for every prefix. Where memory runs short, hits fall off a cliff, and a little more load on the far side of it
can be a little less time."""


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    cv = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return Workload(
        trajectories=draw(st.sampled_from([1, 8, 40, 128, 300])),
        turns=lognormal(draw(st.sampled_from([1, 5, 14])), cv / 2),
        first_prompt_tokens=lognormal(draw(st.sampled_from([300, 3000])), cv),
        new_prompt_tokens=lognormal(draw(st.sampled_from([60, 1500])), cv),
        output_tokens=lognormal(draw(st.sampled_from([40, 600])), cv),
        environment_s=lognormal(draw(st.sampled_from([0, 1, 10])), cv),
        max_context_tokens=32_768,
        routing=draw(st.sampled_from(list(Routing))),
    )


def engines() -> st.SearchStrategy[EngineProfile]:
    def sized(base: EngineProfile, tokens: int, factor: float) -> EngineProfile:
        return replace(base, kv_decode_tokens=tokens, kv_colocated_tokens=tokens, mixed_step_factor=factor)

    return st.builds(
        sized, st.sampled_from([DENSE, SPARSE]), st.sampled_from([40_000, 200_000, 900_000]), st.sampled_from([1, 1.2])
    )


def every_count(workers: int) -> list[Counts]:
    colocated = [Counts(colocated=n) for n in range(1, workers + 1)]
    pairs = [Counts(prefill=p, decode=d) for p in range(1, workers) for d in range(1, workers - p + 1)]
    return colocated + pairs


def seconds(tables: MakespanTables, workers: int) -> np.ndarray:
    return np.array([tables.makespan_ms(counts) for counts in every_count(workers)]) / 1000


quick = settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@BUILT_IN
@quick
@given(workload=workloads(), engine=engines())
def test_paths_agree_with_tables_to_the_millisecond(predictor: Predictor, workload: Workload, engine: EngineProfile):
    tables = predictor.tables(workload, engine, workers=5)
    for counts in every_count(5):
        assert abs(round(predictor.paths(workload, engine, counts).makespan_s * 1000) - tables.makespan_ms(counts)) <= 1


@BUILT_IN
@quick
@given(workload=workloads(), engine=engines())
def test_figures_are_sane(predictor: Predictor, workload: Workload, engine: EngineProfile):
    for counts in (Counts(colocated=3), Counts(prefill=2, decode=3)):
        paths = predictor.paths(workload, engine, counts)
        assert paths.makespan_s > 0
        assert 0 <= paths.prefix_hit_rate <= 1
        assert 0 <= paths.prefill_utilisation <= 1
        assert 0 <= paths.decode_utilisation <= 1
        assert min(paths.prefill_s, paths.decode_s, paths.environment_s, paths.transfer_s) >= -1e-9
        longest = max(paths.prefill_s + paths.transfer_s, paths.decode_s)
        assert paths.makespan_s >= longest - 1e-6


@BUILT_IN
@quick
@given(workload=workloads(), engine=engines())
def test_a_slower_engine_is_never_faster(predictor: Predictor, workload: Workload, engine: EngineProfile):
    base = seconds(predictor.tables(workload, engine, workers=6), 6)
    slower = seconds(predictor.tables(workload, at_speed(engine, 1.5), workers=6), 6)
    assert (slower >= base * (1 - NOISE)).all()


@BUILT_IN
@quick
@given(workload=workloads())
def test_a_slower_engine_slows_no_more_than_itself(predictor: Predictor, workload: Workload):
    base = seconds(predictor.tables(workload, ROOMY, workers=6), 6)
    slower = seconds(predictor.tables(workload, at_speed(ROOMY, 1.5), workers=6), 6)
    assert (slower <= base * 1.5 * (1 + NOISE)).all(), "times 1.5 in everything but the environment"


@BUILT_IN
@quick
@given(workload=workloads(), engine=engines())
def test_without_environment_the_clock_scales_out(predictor: Predictor, workload: Workload, engine: EngineProfile):
    still = replace(workload, environment_s=constant(0))
    base = seconds(predictor.tables(still, engine, workers=4), 4)
    slower = seconds(predictor.tables(still, at_speed(engine, 3), workers=4), 4)
    assert slower == pytest.approx(3 * base, rel=0.001, abs=0.005)


@BUILT_IN
@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("base", [FIXED, VARIED], ids=["fixed", "varied"])
def test_more_trajectories_never_take_less(predictor: Predictor, base: Workload, routing: Routing):
    previous = np.zeros(1)
    for trajectories in (1, 4, 16, 64, 128, 129, 256, 600, 2000):
        workload = replace(base, trajectories=trajectories, routing=routing)
        current = seconds(predictor.tables(workload, DENSE, workers=6), 6)
        assert (current >= previous * (1 - NOISE) - 0.002).all()
        previous = current


@BUILT_IN
@pytest.mark.parametrize("base", [FIXED, VARIED], ids=["fixed", "varied"])
@pytest.mark.parametrize("trajectories", [1, 8, 64])
def test_environment_time_adds(predictor: Predictor, base: Workload, trajectories: int):
    previous = np.zeros(1)
    for environment in (0.0, 0.5, 4.0, 30.0):
        workload = replace(base, trajectories=trajectories, turns=constant(5), environment_s=constant(environment))
        current = seconds(predictor.tables(workload, ROOMY, workers=5), 5)
        assert (current >= previous * (1 - NOISE)).all()
        previous = current
    still = seconds(predictor.tables(replace(workload, environment_s=constant(0)), ROOMY, workers=5), 5)
    assert (current >= 4 * 30).all(), "the last turn waits for nothing"
    assert (current <= 1.1 * still + 4 * 30).all()


@BUILT_IN
@pytest.mark.parametrize("engine", [DENSE, SPARSE], ids=lambda e: e.name)
def test_more_workers_never_take_longer_under_affinity(predictor: Predictor, engine: EngineProfile):
    for workload in (FIXED, VARIED, replace(VARIED, trajectories=256, environment_s=constant(0))):
        tables = predictor.tables(workload, engine, workers=24)
        for column in (tables.colocated_ms, tables.prefill_ms, tables.decode_ms):
            times = np.array(column[1:])
            assert (np.diff(times) <= NOISE * times[1:]).all()


def by_hand_s(engine: EngineProfile, *, disaggregated: bool) -> float:
    """A lone trajectory of FIXED: every prefill, step, transfer and wait by itself."""
    total, context = 0.0, 0
    for turn in range(6):
        new = 1000 if turn else 2000
        recomputed = 300 if turn and disaggregated else 0
        total += engine.prefill.seconds(new + recomputed, context - recomputed)
        if disaggregated:
            total += engine.transfer.seconds(new)
        context += new
        total += sum(engine.decode.seconds(1, context + i) for i in range(1, 300))
        context += 300
        total += 2.0 if turn < 5 else 0.0
    return total


@pytest.mark.parametrize("disaggregated", [False, True])
def test_one_fixed_trajectory_takes_the_sum_by_hand(disaggregated: bool):
    counts = Counts(prefill=1, decode=1) if disaggregated else Counts(colocated=1)
    predicted = get_predictor("network").paths(replace(FIXED, trajectories=1), DENSE, counts)
    assert predicted.makespan_s == pytest.approx(by_hand_s(DENSE, disaggregated=disaggregated), rel=0.005)


def test_bubble_of_one_trajectory_is_the_mean_turn_times_turns():
    once = replace(FIXED, turns=constant(1), trajectories=1)
    predicted = get_predictor("bubble").paths(once, DENSE, Counts(colocated=1)).makespan_s
    assert predicted == pytest.approx(DENSE.prefill.seconds(2000) + 300 * DENSE.decode.seconds(1, 2150))


@BUILT_IN
def test_unbounded_workers_serve_each_trajectory_alone(predictor: Predictor):
    many = predictor.paths(replace(FIXED, trajectories=40), DENSE, Counts(colocated=4000)).makespan_s
    one = predictor.paths(replace(FIXED, trajectories=1), DENSE, Counts(colocated=1)).makespan_s
    assert many == pytest.approx(one, rel=1e-3)


def test_bubble_reaches_the_throughput_bound_of_decode():
    heavy = replace(FIXED, trajectories=5000, environment_s=constant(0), output_tokens=constant(500))
    wide = replace(DENSE, kv_decode_tokens=10**9, kv_colocated_tokens=10**9, max_sequences=10**6)
    paths = get_predictor("bubble").paths(heavy, wide, Counts(prefill=500, decode=1))
    decoding = 5000 * 6 * 500 * wide.decode.c1_s
    assert paths.makespan_s >= decoding
    assert paths.decode_utilisation == 1.0


def test_bubble_separates_and_network_gives_exact_pairs():
    assert get_predictor("bubble").tables(VARIED, DENSE, workers=8).pairs == ()
    tables = get_predictor("network").tables(VARIED, DENSE, workers=8)
    assert tables.exact_pairs
    assert len(tables.pairs) == 28
    large = get_predictor("network").tables(VARIED, DENSE, workers=100)
    assert not large.exact_pairs
    assert large.workers == 100
    assert large.makespan_ms(Counts(prefill=33, decode=67)) < UNREACHABLE_MS


def test_a_longer_tail_moves_the_network_and_not_the_bubble():
    tailed = replace(VARIED, turns=Distribution(mean=0).constant(10))
    tail = replace(tailed, turns=lognormal(10, 0.8))
    network = get_predictor("network")
    ratio = network.paths(tail, DENSE, Counts(colocated=8)).makespan_s
    ratio /= network.paths(tailed, DENSE, Counts(colocated=8)).makespan_s
    assert ratio > 1.3


def test_kv_pressure_and_routing_lower_the_hit_rate():
    network = get_predictor("network")
    rich = network.paths(VARIED, DENSE, Counts(colocated=4)).prefix_hit_rate
    poor = network.paths(VARIED, replace(DENSE, kv_colocated_tokens=60_000), Counts(colocated=4)).prefix_hit_rate
    robin = network.paths(replace(VARIED, routing=Routing.ROUND_ROBIN), DENSE, Counts(colocated=4)).prefix_hit_rate
    assert rich > 0.85
    assert poor < rich - 0.3
    assert robin < rich - 0.2


@BUILT_IN
def test_a_pool_that_cannot_hold_one_sequence_is_unreachable(predictor: Predictor):
    small = replace(DENSE, kv_colocated_tokens=8_000)
    tables = predictor.tables(FIXED, small, workers=4)
    assert set(tables.colocated_ms) == {UNREACHABLE_MS}
    assert tables.makespan_ms(Counts(prefill=2, decode=2)) == UNREACHABLE_MS
    assert predictor.paths(FIXED, small, Counts(colocated=4)).makespan_s == UNREACHABLE_MS / 1000
    assert predictor.tables(FIXED, DENSE, workers=4).colocated_ms[1] < UNREACHABLE_MS


@BUILT_IN
@pytest.mark.parametrize("counts", [Counts(), Counts(prefill=3), Counts(decode=2), Counts(colocated=1, decode=1)])
def test_what_serves_nothing_or_mixes_modes_is_unreachable(predictor: Predictor, counts: Counts):
    assert predictor.paths(FIXED, DENSE, counts).makespan_s == UNREACHABLE_MS / 1000


@BUILT_IN
def test_the_same_input_gives_the_same_tables(predictor: Predictor):
    assert predictor.tables(VARIED, SPARSE, workers=6) == predictor.tables(VARIED, SPARSE, workers=6)


@st.composite
def least_workloads(draw: st.DrawFn) -> Workload:
    """Down to one trajectory, one turn, one token in and out, and no environment."""
    prompt = constant(draw(st.sampled_from([1, 2000])))
    return Workload(
        trajectories=draw(st.sampled_from([1, 2, 16])),
        turns=constant(draw(st.sampled_from([1, 3]))),
        first_prompt_tokens=prompt,
        new_prompt_tokens=prompt,
        output_tokens=constant(draw(st.sampled_from([1, 2]))),
        environment_s=constant(draw(st.sampled_from([0.0, 0.5]))),
        max_context_tokens=32_768,
        routing=draw(st.sampled_from(list(Routing))),
    )


@BUILT_IN
@given(workload=least_workloads(), engine=engines())
@settings(max_examples=40, deadline=None)
def test_the_least_that_a_workload_may_ask_for_has_a_makespan(
    predictor: Predictor, workload: Workload, engine: EngineProfile
):
    with np.errstate(all="raise", under="ignore"):
        tables = predictor.tables(workload, engine, workers=4)
    for counts in every_count(4):
        assert 0 < tables.makespan_ms(counts) < UNREACHABLE_MS
