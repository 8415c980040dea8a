from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.telemetry import Telemetry, TurnRecord
from pearl.core.workload import Workload
from pearl.tracking.workload import (
    MAX_SILENCE_S,
    OPEN_STEPS,
    REFIT_MIN_SAMPLES,
    WorkloadSettings,
    WorkloadTracker,
)
from tests.tracking.worlds import arrival, batch, turn


def profile_of(*updates: list[Telemetry], tracker: WorkloadTracker | None = None) -> Workload:
    tracker = tracker or WorkloadTracker()
    for records in updates:
        tracker = tracker.update(records, max(record.at_s for record in records))
    profile = tracker.profile()
    assert profile is not None
    return profile


def test_recovers_the_world_that_made_the_telemetry() -> None:
    profile = profile_of(*(batch(step, size=64) for step in range(4)))
    assert profile.trajectories == 64
    assert profile.turns.expected == pytest.approx(7.0, rel=0.05)
    assert profile.first_prompt_tokens.expected == pytest.approx(2000, rel=0.08)
    assert profile.new_prompt_tokens.expected == pytest.approx(800, rel=0.05)
    assert profile.output_tokens.expected == pytest.approx(300, rel=0.05)
    assert profile.environment_s.expected == pytest.approx(2.0, rel=0.05)
    cv = profile.output_tokens.variance**0.5 / profile.output_tokens.expected
    assert cv == pytest.approx((2.718281828**0.25 - 1) ** 0.5, rel=0.1)


@pytest.mark.parametrize("number", [0, 1, REFIT_MIN_SAMPLES - 1])
def test_too_little_telemetry_is_no_profile(number: int) -> None:
    turns = [turn(f"t{i}", 0, last=True) for i in range(number)]
    assert WorkloadTracker().update(turns, 1.0).profile() is None


def test_trajectories_that_have_not_ended_leave_the_number_of_turns_unknown() -> None:
    turns = [turn(f"t{i}", k) for i in range(20) for k in range(3)]
    assert WorkloadTracker().update(turns, 1.0).profile() is None


def test_silence_becomes_no_data() -> None:
    records = batch(0)
    last_s = max(record.at_s for record in records)
    tracker = WorkloadTracker().update(records, last_s)
    assert tracker.update([], last_s + MAX_SILENCE_S).profile() is not None
    assert tracker.update([], last_s + MAX_SILENCE_S + 1).profile() is None


def test_a_stale_long_prompt_mean_is_forgotten() -> None:
    long = [batch(step, prompt_scale=10.0) for step in range(8)]
    short = [batch(step) for step in range(8, 18)]
    before = profile_of(*long).new_prompt_tokens.expected
    after = profile_of(*long, *short).new_prompt_tokens.expected
    assert before == pytest.approx(8000, rel=0.1)
    assert after == pytest.approx(profile_of(*short).new_prompt_tokens.expected, rel=0.02)


def test_halved_capacity_at_constant_offered_load_leaves_the_profile_as_it_is() -> None:
    """Half the engines: every turn waits as long again, and half of the turns have not ended when one looks."""
    offered = batch(0, size=256, rng=Random(1))
    cut_s = sorted(r.at_s for r in offered)[len(offered) * 9 // 10]
    fast = [r for r in offered if r.at_s <= cut_s]
    slow = [
        replace(r, queue_s=3.1, at_s=r.at_s + 3.1) if isinstance(r, TurnRecord) else r
        for r in offered
        if not isinstance(r, TurnRecord) or hash_half(r)
    ]
    a, b = profile_of(fast), profile_of([r for r in slow if r.at_s <= cut_s])
    assert b.trajectories == a.trajectories == 256
    assert b.new_prompt_tokens.expected == pytest.approx(a.new_prompt_tokens.expected, rel=0.05)
    assert b.output_tokens.expected == pytest.approx(a.output_tokens.expected, rel=0.05)
    assert b.turns.expected == pytest.approx(a.turns.expected, rel=0.08)


def hash_half(record: TurnRecord) -> bool:
    """Half of the trajectories are served at all."""
    return int(record.trajectory.split("/")[1]) % 2 == 0


def test_the_number_of_turns_does_not_lean_towards_trajectories_that_end_early() -> None:
    """All take 1 to 20 turns; when one looks, nobody has gone past 10."""
    turns = [turn(f"t{i}", k, last=k == i % 20) for i in range(400) for k in range(min(i % 20 + 1, 10))]
    finished_mean = sum(i % 20 + 1 for i in range(400) if i % 20 < 10) / 200
    estimate = profile_of(list(turns)).turns.expected
    assert finished_mean == 5.5
    assert estimate == pytest.approx(sum(min(n, 10) for n in range(1, 21)) / 20, rel=0.01)


def test_one_garbled_value_does_not_move_the_mean() -> None:
    records = batch(0, size=64)
    garbled = [*records, turn("0/0", 99, output_tokens=10**9, environment_s=1e7, step=0)]
    assert profile_of(garbled).output_tokens.expected == pytest.approx(
        profile_of(records).output_tokens.expected, rel=1e-3
    )
    assert profile_of(garbled).environment_s.expected == pytest.approx(
        profile_of(records).environment_s.expected, rel=1e-3
    )


def test_slow_tools_that_are_common_are_no_outliers() -> None:
    turns = [turn(f"t{i}", 1, last=True, environment_s=120.0 if i % 20 == 0 else 0.2) for i in range(400)]
    assert profile_of(list(turns)).environment_s.expected == pytest.approx(0.95 * 0.2 + 0.05 * 120, rel=1e-6)


def test_a_record_that_is_delivered_twice_counts_once() -> None:
    records = batch(0)
    assert profile_of(records, records) == profile_of(records)


def test_late_records_of_a_closed_step_change_nothing() -> None:
    steps = [batch(step) for step in range(OPEN_STEPS + 1)]
    late = [turn("0/late", 0, output_tokens=9000, last=True, step=0)]
    assert profile_of(*steps, late) == profile_of(*steps)


def test_what_telemetry_cannot_show_comes_from_the_settings() -> None:
    settings_ = WorkloadSettings(trajectories=7, max_context_tokens=5000, max_staleness=3)
    profile = profile_of(batch(0), tracker=WorkloadTracker(settings=settings_))
    assert (profile.trajectories, profile.max_context_tokens, profile.max_staleness) == (7, 5000, 3)


def test_an_offered_turn_counts_before_anything_was_completed_of_it() -> None:
    waiting = [arrival(f"0/w{i}", 0, new_prompt_tokens=20_000) for i in range(16)]
    with_waiting = profile_of([*batch(0, size=16), *waiting])
    assert with_waiting.trajectories == 32
    assert with_waiting.first_prompt_tokens.expected > 10_000


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_the_order_of_records_within_an_update_does_not_matter(random: Random, parts: int) -> None:
    records = batch(0) + batch(1)
    shuffled = list(records)
    random.shuffle(shuffled)
    pieces = [shuffled[i::parts] for i in range(parts)]
    assert profile_of(*pieces) == profile_of(records)


@settings(max_examples=25, deadline=None)
@given(st.integers(200, 4000), st.integers(20, 1500), st.floats(0.1, 20.0), st.integers(1, 30))
def test_constants_are_recovered_exactly(prompt: int, output: int, wait_s: float, turns: int) -> None:
    records = [
        turn(
            f"t{i}",
            k,
            new_prompt_tokens=prompt,
            output_tokens=output,
            environment_s=wait_s if k else None,
            last=k == turns - 1,
        )
        for i in range(24)
        for k in range(turns)
    ]
    profile = profile_of(list(records))
    assert profile.turns.expected == turns
    assert profile.first_prompt_tokens.expected == prompt
    assert profile.output_tokens.expected == output
    if turns > 1:
        assert profile.environment_s.expected == pytest.approx(wait_s)
