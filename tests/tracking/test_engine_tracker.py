from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.distribution import Distribution
from pearl.core.engine import DecodeCost, EngineProfile, PrefillCost, Saturation, SaturationForm
from pearl.core.telemetry import EngineRecord, StepRecord, Telemetry, TransitionKind, TransitionRecord
from pearl.makespan.registry import get_predictor
from pearl.tracking.engine import STEP_RECORDS, WARMUP_SAMPLES, EngineTracker
from pearl.tracking.step_times import fit_prefill, prefill_seconds
from pearl.tracking.workload import REFIT_MIN_SAMPLES
from tests.tracking.worlds import ENGINE, WORKLOAD, engine_steps, turn

SAID = EngineRecord(worker="n/0", model="8B", gpu="any", kv_tokens=500_000, kv_bytes_per_token=147_456, at_s=0.0)
SIZES = [(new, cached) for new in (500, 2000, 8000) for cached in (0, 10_000)]
BATCHES = [(size, size * each) for size in (1, 16, 100) for each in (1000, 10_000)]


def fitted(*updates: list[Telemetry], prior: EngineProfile | None = ENGINE) -> EngineProfile:
    tracker = EngineTracker(prior=prior)
    for records in updates:
        tracker = tracker.update(records)
    profile = tracker.profile()
    assert profile is not None
    return profile


def largest_error(profile: EngineProfile, truth: EngineProfile) -> float:
    prefill = [profile.prefill.seconds(*s) / truth.prefill.seconds(*s) - 1 for s in SIZES]
    decode = [profile.decode.seconds(*b) / truth.decode.seconds(*b) - 1 for b in BATCHES]
    return max(map(abs, prefill + decode))


def scaled(engine: EngineProfile, factor: float) -> EngineProfile:
    p, d = engine.prefill, engine.decode
    return replace(
        engine,
        prefill=PrefillCost(p0_s=p.p0_s * factor, p1_s=p.p1_s * factor, p2_s=p.p2_s * factor),
        decode=DecodeCost(c0_s=d.c0_s * factor, c1_s=d.c1_s * factor, c2_s=d.c2_s * factor),
    )


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.3, 3.0), st.sampled_from([None, ENGINE, scaled(ENGINE, 0.5)]))
def test_recovers_known_step_times_with_a_prior_a_wrong_one_or_none(
    seed: int, factor: float, prior: EngineProfile | None
) -> None:
    truth = scaled(ENGINE, factor)
    steps = list(engine_steps(truth, "n/0", number=300, rng=Random(seed)))
    assert largest_error(fitted([SAID, *steps], prior=prior), truth) < 0.05


def test_live_telemetry_alone_is_enough() -> None:
    steps = list(engine_steps(ENGINE, "n/0", number=100, rng=Random(0)))
    profile = fitted([SAID, *steps], prior=None)
    assert (profile.model, profile.kv_decode_tokens) == ("8B", 500_000)
    assert profile.transfer.bytes_per_token == 147_456
    assert profile.fit is not None
    assert profile.fit.decode_mean < 0.05


def test_without_prior_too_few_steps_or_no_engine_is_no_profile() -> None:
    few = list(engine_steps(ENGINE, "n/0", number=WARMUP_SAMPLES + REFIT_MIN_SAMPLES - 1, rng=Random(0)))
    many = list(engine_steps(ENGINE, "n/0", number=100, rng=Random(0)))
    assert EngineTracker().update([SAID, *few]).profile() is None
    assert EngineTracker().update(many).profile() is None
    assert EngineTracker(prior=ENGINE).update(few).profile() == ENGINE


def test_the_prior_gives_the_shape_and_telemetry_the_level() -> None:
    """Twice as slow as the offline profile, and seen at one size only."""
    rng = Random(3)
    steps: list[Telemetry] = [
        StepRecord(
            worker="n/0",
            seconds=2 * ENGINE.decode.seconds(32, 32 * 4000) * rng.lognormvariate(0, 0.02),
            at_s=float(i),
            batch=32,
            context_tokens=32 * 4000,
        )
        for i in range(100)
    ]
    profile = fitted(steps)
    truth = scaled(ENGINE, 2.0)
    for batch in BATCHES:
        assert profile.decode.seconds(*batch) == pytest.approx(truth.decode.seconds(*batch), rel=0.1)
    assert profile.prefill == ENGINE.prefill


def test_warm_up_is_dropped_for_every_worker_and_after_every_restart() -> None:
    rng = Random(5)
    good = list(engine_steps(ENGINE, "n/0", number=60, rng=rng))
    cold = list(engine_steps(ENGINE, "n/1", number=WARMUP_SAMPLES, rng=rng, slow=5.0))
    restart = TransitionRecord(
        kind=TransitionKind.BORROW, seconds=6.0, at_s=49.0, borrowing=True, workers=("n/0",), step=0
    )
    again = list(engine_steps(ENGINE, "n/0", number=WARMUP_SAMPLES, rng=rng, slow=5.0, start_s=50.0))
    assert fitted([*good, *cold, restart, *again]) == fitted(good)
    unmarked = EngineTracker(prior=ENGINE).update([*good, *again])
    assert sum(map(len, unmarked.steps.values())) == 2 * (60 - WARMUP_SAMPLES) + 2 * WARMUP_SAMPLES


@pytest.mark.parametrize("seed", range(3))
def test_cold_workers_move_the_target_by_at_most_one(seed: int) -> None:
    """20 new workers whose first 10 prefills take 5 times as long, beside 4 warm ones: most samples are cold."""
    rng = Random(seed)
    warm = [s for i in range(4) for s in engine_steps(ENGINE, f"n/{i}", number=40, rng=rng)]
    new = [s for i in range(4, 24) for s in engine_steps(ENGINE, f"n/{i}", number=10, rng=rng, slow=5.0, start_s=10.0)]
    cold = [s for s in new if s.prompts]
    before = best_prefill_workers(ENGINE)
    assert abs(best_prefill_workers(fitted(warm, cold)) - before) <= 1
    poisoned = fit_prefill([(s, 1.0) for s in (*warm, *cold) if s.prompts], ENGINE.prefill)
    assert poisoned is not None
    assert abs(best_prefill_workers(replace(ENGINE, prefill=poisoned)) - before) > 1, "the samples do matter"


PROMPT_HEAVY = replace(WORKLOAD, trajectories=256, new_prompt_tokens=Distribution.constant(4000))


def best_prefill_workers(engine: EngineProfile, workers: int = 24) -> int:
    """The decision's target: the split of a disaggregated pool with the smallest makespan."""
    tables = get_predictor("bubble").tables(PROMPT_HEAVY, engine, workers=workers)
    prefill, decode = np.array(tables.prefill_ms), np.array(tables.decode_ms)
    return 1 + int(np.argmin(np.maximum(prefill[1:workers], decode[workers - 1 : 0 : -1])))


def test_single_slow_steps_hardly_count() -> None:
    rng = Random(7)
    steps = list(engine_steps(ENGINE, "n/0", number=300, rng=rng))
    paused = [replace(s, seconds=s.seconds * (20 if i % 10 == 0 else 1)) for i, s in enumerate(steps)]
    assert largest_error(fitted([SAID, *paused], prior=None), ENGINE) < 0.05


def test_times_that_scatter_widely_are_fitted_by_their_mean() -> None:
    """Workers that share their cores: what a batch takes is the sum of its steps, not a number of median ones."""
    rng, sigma = Random(5), 0.6
    steps = list(engine_steps(ENGINE, "n/0", number=1500, rng=rng, noise=0.0))
    shared = [replace(s, seconds=s.seconds * rng.lognormvariate(-(sigma**2) / 2, sigma)) for s in steps]
    profile = fitted([SAID, *shared], prior=None)
    for prefill in (True, False):
        kind = [step for step in steps if bool(step.prompts) is prefill]
        said = [
            prefill_seconds(profile.prefill, s) if prefill else profile.decode.seconds(s.batch, s.context_tokens)
            for s in kind
        ]
        assert sum(said) == pytest.approx(sum(s.seconds for s in kind), rel=0.05)


def test_old_step_times_are_forgotten() -> None:
    slow = [list(engine_steps(scaled(ENGINE, 3.0), "n/0", number=200, rng=Random(s), step=s)) for s in range(4)]
    fast = [list(engine_steps(ENGINE, "n/0", number=200, rng=Random(s), step=s)) for s in range(4, 10)]
    assert largest_error(fitted(*slow, prior=ENGINE), scaled(ENGINE, 3.0)) < 0.05
    assert largest_error(fitted(*slow, *fast), ENGINE) < 0.05


def test_memory_is_bounded() -> None:
    tracker = EngineTracker(prior=ENGINE)
    for step in range(11):
        tracker = tracker.update(list(engine_steps(ENGINE, "n/0", number=550, rng=Random(step), step=step)))
    assert max(map(len, tracker.steps.values())) <= 2 * STEP_RECORDS
    assert len(tracker.steps) <= 9


def test_experts_show_in_the_form() -> None:
    moe = replace(
        ENGINE,
        decode=DecodeCost(
            c0_s=0.002,
            c1_s=1e-5,
            c2_s=1e-8,
            saturation=Saturation(amplitude_s=0.004, form=SaturationForm.SQRT),
        ),
    )
    steps = list(engine_steps(moe, "n/0", number=300, rng=Random(1), noise=0.01))
    profile = fitted([SAID, *steps], prior=None)
    assert profile.decode.saturation is not None
    assert largest_error(profile, moe) < 0.05
    dense = fitted([SAID, *engine_steps(ENGINE, "n/0", number=300, rng=Random(1), noise=0.01)], prior=None)
    assert dense.decode.saturation is None


def test_mixed_steps_and_transfers_are_fitted() -> None:
    mixed: list[Telemetry] = [
        StepRecord(
            worker="n/0",
            seconds=1.2 * (ENGINE.prefill.seconds(n) + ENGINE.decode.seconds(16, 16_000)),
            at_s=100.0 + i,
            batch=16,
            context_tokens=16_000,
            prompts=1,
            new_tokens=n,
        )
        for i, n in enumerate(range(100, 8000, 100))
    ]
    moved: list[Telemetry] = [
        turn(f"t{i}", 0, prompt_tokens=1000 * i, transfer_s=0.01 + 1000 * i * 147_456 / 10e9) for i in range(1, 40)
    ]
    steps = list(engine_steps(ENGINE, "n/0", number=100, rng=Random(2), noise=0.0))
    profile = fitted([*steps, *mixed, *moved])
    assert profile.mixed_step_factor == pytest.approx(1.2, rel=0.01)
    assert profile.transfer.latency_s == pytest.approx(0.01, rel=0.02)
    assert profile.transfer.bandwidth_bytes_per_s == pytest.approx(10e9, rel=0.02)


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(random: Random) -> None:
    records: list[Telemetry] = [s for i in range(3) for s in engine_steps(ENGINE, f"n/{i}", number=50, rng=Random(i))]
    shuffled = list(records)
    random.shuffle(shuffled)
    assert fitted(shuffled) == fitted(records)
