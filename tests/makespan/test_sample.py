from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.distribution import Distribution, Family
from pearl.makespan.sample import representative_trajectories, standard_normal_quantile
from tests.makespan.cases import FIXED, VARIED, constant, lognormal


def test_normal_quantiles_match_the_standard_library():
    u = np.array([1e-6, 0.01, 0.02425, 0.3, 0.5, 0.8, 0.999])
    exact = [NormalDist().inv_cdf(float(value)) for value in u]
    assert standard_normal_quantile(u) == pytest.approx(exact, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(
    "distribution",
    [
        constant(12),
        Distribution(family=Family.UNIFORM, low=2, high=30),
        Distribution(family=Family.EXPONENTIAL, mean=40),
        lognormal(60, 0.8),
        Distribution(family=Family.EMPIRICAL, values=(3, 5, 5, 40, 90)),
        Distribution(family=Family.LOGNORMAL, mean=60, cv=0.8, high=100),
    ],
)
def test_every_family_keeps_its_mean(distribution: Distribution):
    workload = replace(FIXED, new_prompt_tokens=distribution, turns=constant(10))
    sample = representative_trajectories(workload)
    assert sample.new_tokens[:, 1:].mean() == pytest.approx(distribution.expected, rel=0.02)


def test_a_fixed_workload_has_one_kind_of_trajectory():
    sample = representative_trajectories(FIXED, 8)
    assert sample.turns.tolist() == [6.0] * 8
    assert sample.context_tokens[0].tolist() == [0, 2300, 3600, 4900, 6200, 7500]
    assert sample.environment_s[0].tolist() == [2, 2, 2, 2, 2, 0]


def test_an_answer_is_cut_where_the_context_is_full_and_a_prompt_that_does_not_fit_ends_the_trajectory():
    sample = representative_trajectories(replace(FIXED, max_context_tokens=3_500), 4)
    assert sample.turns.tolist() == [2.0] * 4
    assert sample.output_tokens[0].tolist() == [300, 200]
    full = representative_trajectories(replace(FIXED, max_context_tokens=3_300), 4)
    assert full.turns.tolist() == [1.0] * 4


@given(
    limit=st.integers(2, 40_000), turns=st.floats(0.2, 80), cv=st.floats(0, 1.5), size=st.sampled_from([16, 64, 256])
)
def test_truncation_holds_for_every_trajectory(limit: int, turns: float, cv: float, size: int):
    workload = replace(VARIED, max_context_tokens=limit, turns=lognormal(turns, cv))
    sample = representative_trajectories(workload, size)
    ends = sample.context_tokens + sample.new_tokens + sample.output_tokens
    assert ends.max() <= limit
    assert sample.turns.min() >= 1
    assert (sample.alive.sum(axis=1) == sample.turns).all()
    assert (sample.output_tokens[sample.alive] >= 1).all()
    assert (sample.new_tokens[~sample.alive] == 0).all()
    assert np.allclose(ends[:, :-1][sample.alive[:, 1:]], sample.context_tokens[:, 1:][sample.alive[:, 1:]])
    assert all(math.isfinite(value) for value in sample.environment_s.ravel())


def test_the_same_workload_gives_the_same_sample():
    first, second = representative_trajectories(VARIED), representative_trajectories(VARIED)
    assert np.array_equal(first.output_tokens, second.output_tokens)


def test_it_stands_for_the_simulators_trajectories():
    trajectories = pytest.importorskip("pearl.sim.trajectories")
    from random import Random

    drawn = trajectories.sample(replace(VARIED, trajectories=1_500), Random(7))
    sample = representative_trajectories(VARIED)
    assert sample.turns.mean() == pytest.approx(np.mean([len(t) for t in drawn]), rel=0.04)
    contexts = [trajectories.context_tokens(t) for t in drawn]
    assert (sample.new_tokens + sample.output_tokens).sum(axis=1).mean() == pytest.approx(np.mean(contexts), rel=0.04)
