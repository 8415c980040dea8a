from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from pearl.core.cluster import Role
from pearl.core.problem import BorrowTerms, Change, DecisionProblem, Hurdle, Linear, Rule, Soft
from pearl.errors import SolverError
from pearl.solvers.enumerate import Enumerate
from pearl.solving.evaluate import evaluate
from pearl.solving.protocol import Limits, SolveStatus
from pearl.solving.random_problems import random_problem

from .brute import best_values
from .problems import pool, three_and_one, with_idle_overlap


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


def test_swapping_a_role_change_for_a_removal_and_an_addition_is_considered() -> None:
    # 3P1D and one idle worker; the ratio gate forbids a role change, a resize is free: remove a P, add a D.
    problem = replace(
        with_idle_overlap(three_and_one(), 1, BorrowTerms(max_workers=1)),
        hurdle=Hurdle(stay_ms=7_000, gate=False, forbidden=frozenset({Change.RATIO, Change.MODE})),
    )
    limit = Rule(name="four", expr=Linear(constant=-4, counts=_serving(problem)))
    limited = replace(problem, rules=(limit,))
    found = Enumerate().solve(limited, limits=Limits())
    assert found.assignment is not None
    judged = evaluate(limited, found.assignment)
    assert judged.feasible
    assert (judged.makespan_ms, judged.role_changes, judged.adds, judged.removes) == (4_000, 0, 1, 1)
    assert found.tier_values == best_values(limited)


def _serving(problem: DecisionProblem) -> tuple[tuple[str, Role, int], ...]:
    return tuple(sorted((g.id, r, 1) for g in problem.groups for r in g.targets if r is not Role.INACTIVE))


def test_too_many_points_are_refused_with_their_number() -> None:
    with pytest.raises(
        SolverError, match=r"assignments to enumerate in \w+ mode, more than 2,000,000; use a MIP solver"
    ):
        Enumerate().solve(pool(512), limits=Limits())


def test_numbers_beyond_64_bits_are_refused() -> None:
    rule = Rule(name="huge", expr=Linear(constant=2**61, scale=Fraction(1, 4)), soft=Soft(penalty_ms=1))
    with pytest.raises(SolverError, match=r"rule 'huge' reaches 9\.2e\+18, too large"):
        Enumerate().solve(replace(three_and_one(), rules=(rule,)), limits=Limits())


def test_blocks_leave_few_points_at_64_workers() -> None:
    problem = pool(64)
    found = Enumerate().solve(problem, limits=Limits())
    assert found.assignment is not None
    assert evaluate(problem, found.assignment).tier_values == found.tier_values
    assert found.makespan_ms == min(
        max(problem.tables.prefill_ms[n], problem.tables.decode_ms[64 - n]) for n in range(1, 64)
    )
