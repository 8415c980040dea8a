from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.engine import DecodeCost
from pearl.sim.stretch import Stretch

costs = st.builds(
    DecodeCost,
    c0_s=st.floats(1e-4, 1e-1),
    c1_s=st.floats(0, 1e-4),
    c2_s=st.sampled_from([0.0, 3e-8]) | st.floats(0, 1e-6),
)


def started(cost: DecodeCost, batch: int, context: int) -> Stretch:
    stretch = Stretch()
    stretch.restart(cost, batch, context)
    return stretch


@given(cost=costs, batch=st.integers(1, 256), context=st.integers(256, 10**6), steps=st.integers(0, 300))
def test_time_is_the_sum_of_the_steps(cost, batch, context, steps):
    by_hand = sum(cost.seconds(batch, context + i * batch) for i in range(steps))
    assert started(cost, batch, context).seconds(steps) == pytest.approx(by_hand, rel=1e-12)


@given(cost=costs, batch=st.integers(1, 256), context=st.integers(256, 10**6), elapsed=st.floats(0, 500))
def test_boundaries_enclose_the_elapsed_time(cost, batch, context, elapsed):
    stretch = started(cost, batch, context)
    within, until = stretch.steps_within(elapsed), stretch.steps_until(elapsed)
    assert stretch.seconds(within) <= elapsed < stretch.seconds(within + 1)
    assert stretch.seconds(until) >= elapsed
    assert until == 0 or stretch.seconds(until - 1) < elapsed


@given(cost=costs, steps=st.integers(0, 2000))
def test_a_boundary_is_found_exactly(cost, steps):
    stretch = started(cost, 8, 1000)
    assert stretch.steps_within(stretch.seconds(steps)) == stretch.steps_until(stretch.seconds(steps)) == steps
