from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pearl.makespan.bubble import Bubble
from pearl.makespan.cached import CachedPredictor
from pearl.makespan.memo import Memo
from pearl.makespan.network import Network
from pearl.makespan.product import MOST_ELEMENTS, product
from tests.makespan.cases import DENSE, VARIED

POOLS = (5, 9, 7, 66, 64, 70)
"""Growing, shrinking, and on both sides of the largest pool whose pairs are all computed."""


@pytest.mark.parametrize("predictor", [Network(), Bubble()])
def test_tables_do_not_depend_on_those_before(predictor):
    cached = CachedPredictor(predictor)
    for workers in POOLS:
        assert cached.tables(VARIED, DENSE, workers=workers) == predictor.tables(VARIED, DENSE, workers=workers)


def test_other_profiles_get_tables_of_their_own():
    cached = CachedPredictor(Network())
    for workload in (VARIED, replace(VARIED, trajectories=2 * VARIED.trajectories), VARIED):
        assert cached.tables(workload, DENSE, workers=6) == Network().tables(workload, DENSE, workers=6)


def test_what_is_known_is_not_computed_again():
    asked: list[tuple[list[int], list[int]]] = []

    def ratio(left, right):
        asked.append((left.tolist(), right.tolist()))
        return left / right

    memo = Memo(ratio)
    assert memo(np.array([1, 2, 1]), np.array([2, 2, 2])).tolist() == [0.5, 1.0, 0.5]
    assert memo(np.array([3, 2]), np.array([2, 2])).tolist() == [1.5, 1.0]
    assert memo(np.array([3]), np.array([2])).tolist() == [1.5]
    assert asked == [([1, 2], [2, 2]), ([3], [2])]


@pytest.mark.parametrize("rows", [1, 512, 2 * MOST_ELEMENTS])
def test_a_product_in_blocks_is_the_product(rows):
    columns = np.arange(12.0).reshape(3, 4)
    left = np.linspace(-1.0, 1.0, 3 * rows).reshape(rows, 3)
    assert product(left, columns) == pytest.approx(left @ columns)
