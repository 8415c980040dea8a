"""Predictions corrected by what batches took: a mode is given up when measurement disagrees."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import Counts, Mode
from pearl.core.problem import UNREACHABLE_MS, MakespanTables, PairRung
from pearl.deciding.correction import corrected
from pearl.tracking.corrections import COMMON_BOUND, STEP, Corrections, Pace


def test_nothing_measured_corrects_nothing():
    assert Corrections().factors() == {}


@given(ratio=st.floats(0.2, 8.0), batches=st.integers(1, 40))
def test_a_steady_error_is_learned_and_lent_within_bounds(ratio, batches):
    corrections = Corrections()
    for _ in range(batches):
        corrections = corrections.after(Mode.DISAGGREGATED, ratio)
    factors = corrections.factors()
    assert factors[Mode.DISAGGREGATED] == pytest.approx(ratio, rel=STEP)
    assert 1 / COMMON_BOUND * (1 - STEP) <= factors[Mode.COLOCATED] <= COMMON_BOUND * (1 + STEP)
    if 1 / COMMON_BOUND < ratio < COMMON_BOUND:
        assert factors[Mode.COLOCATED] == factors[Mode.DISAGGREGATED]


def test_noise_of_a_batch_does_not_move_a_correction_far():
    corrections = Corrections()
    for ratio in [1.0] * 10 + [1.05]:
        corrections = corrections.after(Mode.COLOCATED, ratio)
    assert corrections.factors()[Mode.COLOCATED] <= math.exp(STEP)


@given(makespans=st.lists(st.floats(10.0, 500.0), min_size=1, max_size=6), share=st.floats(0.05, 0.95))
def test_progress_adds_up_to_one_where_predictions_hold(makespans, share):
    pace = Pace(since_s=0.0, makespan_s=makespans[0], modes=frozenset({Mode.COLOCATED}))
    now_s, left = 0.0, 1.0
    for makespan_s in makespans[1:]:
        now_s += left * share * pace.makespan_s
        left *= 1 - share
        pace = pace.changed(now_s, makespan_s=makespan_s, mode=Mode.COLOCATED)
    assert pace.until(now_s + left * pace.makespan_s) == pytest.approx(1.0)
    assert pace.until(now_s + 2 * left * pace.makespan_s) > 1.0


def test_tables_are_multiplied_mode_by_mode():
    tables = MakespanTables(
        colocated_ms=(UNREACHABLE_MS, 100, 60),
        prefill_ms=(UNREACHABLE_MS, 40, 30),
        decode_ms=(UNREACHABLE_MS, 50, 20),
        pairs=(PairRung(prefill=1, decode=1, makespan_ms=55),),
        exact_pairs=True,
    )
    other = corrected(tables, {Mode.COLOCATED: 2.0, Mode.DISAGGREGATED: 0.5})
    assert other.colocated_ms == (UNREACHABLE_MS, 200, 120)
    assert other.makespan_ms(Counts(prefill=1, decode=1)) == 28
    assert corrected(tables, {}) is tables


@pytest.mark.slow
def test_a_mode_that_only_predictions_like_is_given_up():
    """dynamo#3774: the paper's model does not see cache misses, so that it takes 1P27D for the best pool here."""
    import pearl
    from pearl.api import choose_predictor, choose_solver, situation_of
    from pearl.sim.experiment import Experiment, run_experiment
    from pearl.sim.pipeline import TrainingCost

    scenario, policy = pearl.load_scenario("qwen3-8b-swe"), pearl.load_policy("pearl")
    runs = {
        corrects: run_experiment(
            Experiment(
                world=situation_of(scenario),
                policy=policy,
                predictor=choose_predictor(policy, "bubble"),
                solver=choose_solver(policy, None),
                training=TrainingCost(step_s=90.0),
                horizon_s=3600.0,
                corrects=corrects,
            )
        ).rollout.throughput_traj_per_h
        for corrects in (True, False)
    }
    assert runs[True] > 1.5 * runs[False]
