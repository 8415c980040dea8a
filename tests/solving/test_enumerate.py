from __future__ import annotations

from random import Random

import pytest

from pearl.solvers.enumerate import Enumerate
from pearl.solving.evaluate import evaluate
from pearl.solving.protocol import Limits, SolveStatus
from pearl.solving.random_problems import random_problem

from .brute import best_values


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_brute_force(seed: int) -> None:
    rng = Random(seed)
    for _ in range(25):
        problem = random_problem(rng, max_workers=5)
        wanted = best_values(problem)
        found = Enumerate().solve(problem, limits=Limits())
        if wanted is None:
            assert found.status is SolveStatus.INFEASIBLE, problem
            continue
        assert found.assignment is not None, problem
        judged = evaluate(problem, found.assignment)
        assert judged.feasible, (judged.broken, judged.faults, problem)
        assert judged.tier_values == found.tier_values, problem
        assert found.tier_values == wanted, problem
