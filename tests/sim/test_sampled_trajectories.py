from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.distribution import Distribution
from pearl.sim.trajectories import context_tokens, sample
from tests.sim.sim_samples import workload


@given(seed=st.integers(0, 10**6), limit=st.integers(2, 3000))
def test_every_trajectory_keeps_to_the_limits(seed, limit):
    for trajectory in sample(workload(trajectories=8, max_context_tokens=limit), Random(seed)):
        assert 1 <= len(trajectory) <= 8
        assert context_tokens(trajectory) <= limit
        assert all(t.new_prompt_tokens >= 1 and t.output_tokens >= 1 and t.environment_s >= 0 for t in trajectory)


def test_a_larger_batch_begins_with_the_smaller_one():
    small = sample(workload(trajectories=5), Random(3))
    assert sample(workload(trajectories=9), Random(3))[:5] == small
    assert sample(workload(trajectories=5), Random(4)) != small


def test_constant_profile_gives_the_constants_until_the_context_is_full():
    fixed = workload(
        trajectories=1,
        turns=Distribution.constant(10),
        first_prompt_tokens=Distribution.constant(1000),
        new_prompt_tokens=Distribution.constant(300),
        output_tokens=Distribution.constant(200),
        environment_s=Distribution.constant(2.0),
        max_context_tokens=2600,
    )
    (trajectory,) = sample(fixed, Random(0))
    assert [(t.new_prompt_tokens, t.output_tokens) for t in trajectory] == [
        (1000, 200),
        (300, 200),
        (300, 200),
        (300, 100),
    ]


def test_means_are_those_of_the_profile():
    trajectories = sample(workload(trajectories=1500, max_context_tokens=10**6), Random(1))
    later = [t for trajectory in trajectories for t in trajectory[1:]]
    assert sum(t.new_prompt_tokens for t in later) / len(later) == pytest.approx(800, rel=0.05)
    assert sum(t.environment_s for t in later) / len(later) == pytest.approx(1.5, rel=0.05)
