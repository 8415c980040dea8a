from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.tracking.robust import equal_mass, weighted_quantile, without_outliers
from pearl.tracking.survival import combined, count_turns, turn_distribution

numbers = st.floats(0.0, 1e6)
weighted = st.lists(st.tuples(numbers, st.floats(1e-3, 10.0)), min_size=1, max_size=60)


@given(weighted, st.integers(1, 50))
def test_values_of_equal_mass_keep_the_mean_and_the_range(pairs: list[tuple[float, float]], points: int) -> None:
    values = equal_mass(pairs, points)
    mean = math.fsum(v * w for v, w in pairs) / math.fsum(w for _, w in pairs)
    assert len(values) <= points
    assert math.fsum(values) / len(values) == pytest.approx(mean, rel=1e-6, abs=1e-6)
    slack = 1e-6 * (1 + max(v for v, _ in pairs))
    assert min(v for v, _ in pairs) - slack <= min(values)
    assert max(values) <= max(v for v, _ in pairs) + slack


@given(weighted, st.floats(0.01, 1.0))
def test_a_weighted_quantile_has_its_share_at_or_below(pairs: list[tuple[float, float]], share: float) -> None:
    value = weighted_quantile(pairs, share)
    total = math.fsum(w for _, w in pairs)
    assert math.fsum(w for v, w in pairs if v <= value) >= share * total * (1 - 1e-9)
    assert math.fsum(w for v, w in pairs if v < value) < share * total * (1 + 1e-9)


@given(st.lists(numbers, max_size=60), st.randoms(use_true_random=False))
def test_at_most_the_rare_high_values_are_dropped(values: list[float], random: Random) -> None:
    kept = without_outliers(values)
    dropped = Counter(values) - Counter(kept)
    assert dropped.total() <= 1
    assert all(value > max(kept) for value in dropped)
    shuffled = list(values)
    random.shuffle(shuffled)
    assert without_outliers(shuffled) == kept


def test_log_normal_values_have_no_outliers() -> None:
    rng = Random(0)
    values = [rng.lognormvariate(5.0, 1.0) for _ in range(5000)]
    assert without_outliers(values) == sorted(values)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=50))
def test_without_censoring_the_distribution_is_that_of_the_sample(lengths: list[int]) -> None:
    counts = count_turns((k, k == n - 1) for n in lengths for k in range(n))
    found = dict(turn_distribution(counts))
    expected = {float(n): count / len(lengths) for n, count in Counter(lengths).items()}
    assert found == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=50))
def test_with_censoring_it_is_a_distribution(lives: list[tuple[int, int]]) -> None:
    counts = count_turns((k, k == n - 1) for n, seen in lives for k in range(min(n, seen)))
    found = turn_distribution(counts)
    if counts.reached:
        assert math.fsum(p for _, p in found) == pytest.approx(1.0)
        assert all(0 < p <= 1 + 1e-12 for _, p in found)
    else:
        assert found == []


@given(st.sets(st.integers(0, 10**15), min_size=1, max_size=9))
def test_turns_that_nobody_completed_take_neither_probability_nor_time(turns: set[int]) -> None:
    """A garbled index is one turn more, however large."""
    found = turn_distribution(count_turns((turn, True) for turn in turns))
    assert found == [(float(min(turns) + 1), 1.0)]
    found = turn_distribution(count_turns((turn, False) for turn in turns))
    assert found == [(float(max(turns) + 1), 1.0)]


def test_weights_add_up() -> None:
    one, two = count_turns([(0, False), (1, True)]), count_turns([(0, True)])
    both = combined([(one, 1.0), (two, 0.5)])
    assert both.reached == {0: 1.5, 1: 1.0}
    assert both.hazard(0) == pytest.approx(1 / 3)
