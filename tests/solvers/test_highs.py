"""HiGHS where it contradicts itself."""

from __future__ import annotations

from random import Random

from pearl.solving.driver import solve_problem
from pearl.solving.random_problems import random_problem
from pearl.solving.registry import resolve


def test_an_optimum_against_its_own_bound_is_searched_again_without_presolve() -> None:
    rng = Random(0)
    problem = [random_problem(rng) for _ in range(58)][57]
    found, truth = (solve_problem(problem, resolve(name)) for name in ("highs", "enumerate"))
    assert (found.status, found.tier_values) == (truth.status, truth.tier_values)
