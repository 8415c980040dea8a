from __future__ import annotations

from dataclasses import replace

import pytest

from pearl.core.engine import PrefillCost
from pearl.makespan.profile import batch_profile, demand_rates, prefill_rate, transfer_s, unloaded_prefill_s
from tests.makespan.cases import DENSE, FIXED, VARIED, constant


def test_means_of_a_fixed_workload_by_hand():
    profile = batch_profile(FIXED)
    assert profile.turns == 6
    assert profile.new_tokens == pytest.approx((2000 + 5 * 1000) / 6)
    assert profile.cached_tokens == pytest.approx((0 + 2300 + 3600 + 4900 + 6200 + 7500) / 6)
    assert profile.output_tokens == 300
    assert profile.environment_s == pytest.approx(2.0 * 5 / 6)
    assert profile.running_tokens == pytest.approx((2000 + 3300 + 4600 + 5900 + 7200 + 8500) / 6 + 150)
    assert profile.final_tokens == profile.longest_tokens == 2000 + 5 * 1000 + 6 * 300
    assert profile.prompt_tokens_total == pytest.approx(64 * 7000)
    assert profile.output_tokens_total == pytest.approx(64 * 1800)


def test_truncation_shortens_the_mean_trajectory():
    short = batch_profile(replace(VARIED, max_context_tokens=8_000))
    assert short.turns < batch_profile(VARIED).turns
    assert short.longest_tokens == 8_000


def test_a_prefill_worker_sustains_more_when_turns_share_its_steps():
    profile = batch_profile(FIXED)
    alone = profile.new_tokens / unloaded_prefill_s(profile, DENSE)
    shared = prefill_rate(profile, DENSE)
    assert shared > alone
    assert prefill_rate(profile, replace(DENSE, chunk_tokens=512)) == pytest.approx(alone)
    assert shared < profile.new_tokens / (unloaded_prefill_s(profile, DENSE) - DENSE.prefill.p0_s)


def test_prefill_rate_of_a_linear_engine_is_its_slope():
    linear = replace(DENSE, prefill=PrefillCost(p0_s=0.0, p1_s=2e-5, p2_s=0.0))
    assert prefill_rate(batch_profile(FIXED), linear) == pytest.approx(50_000)


def test_demand_rises_with_decode_workers_towards_its_limit_by_hand():
    profile = batch_profile(FIXED)
    rates = demand_rates(profile, DENSE, workers=64)
    assert len(rates) == 65
    assert rates[0] == 0
    assert list(rates) == sorted(rates)
    decode = profile.output_tokens * DENSE.decode.seconds(1, profile.running_tokens)
    cycle = profile.environment_s + unloaded_prefill_s(profile, DENSE) + transfer_s(profile, DENSE) + decode
    assert rates[64] == pytest.approx(64 * profile.new_tokens / cycle, rel=1e-6)


def test_demand_is_finite_without_environment_time():
    rates = demand_rates(batch_profile(replace(FIXED, environment_s=constant(0))), DENSE, workers=4)
    assert all(0 < rate < 1e9 for rate in rates[1:])
