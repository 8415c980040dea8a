from __future__ import annotations

from random import Random

import pytest

from pearl.solvers.cpsat import CpSat
from pearl.solvers.enumerate import Enumerate
from pearl.solving.driver import solve_problem
from pearl.solving.random_problems import random_problem


@pytest.mark.agreement
@pytest.mark.parametrize("seed", range(10))
def test_cpsat_agrees_with_enumeration_tier_by_tier(seed: int) -> None:
    rng = Random(1000 + seed)
    for _ in range(25):
        problem = random_problem(rng)
        wanted = solve_problem(problem, Enumerate())
        found = solve_problem(problem, CpSat())
        assert (found.status, found.tier_values) == (wanted.status, wanted.tier_values), problem
