"""The tier that decides against a configuration, held against brute force over every assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from pearl.core.problem import DecisionProblem
from pearl.deciding.standing import loss, optima, told_apart
from pearl.solvers.enumerate import Enumerate
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import Evaluation, evaluate
from pearl.solving.protocol import Limits
from pearl.solving.random_problems import random_problem
from pearl.solving.tiers import held_bound, priced_tiers
from tests.solving.brute import assignments

MOST_POINTS = 3_000
"""Problems with more feasible assignments are left out: brute force in Python."""


def droppers(problem: DecisionProblem, points: Sequence[Evaluation]) -> dict[tuple[int, ...], int | None]:
    """For the tier values of each point, the tier that drops it (None: an optimum), by the definition itself."""
    tiers, found = priced_tiers(problem), dict[tuple[int, ...], int | None]()
    alive = {point.tier_values for point in points}
    for k, tier in enumerate(tiers):
        bound = held_bound(min(v[k] for v in alive), tier.tolerance_ppb if k + 1 < len(tiers) else 0)
        found |= {values: k for values in alive if values[k] > bound}
        alive = {values for values in alive if values[k] <= bound}
    for k in range(len(tiers)):
        least = min(values[k] for values in alive)
        found |= {values: k for values in alive if values[k] > least}
        alive = {values for values in alive if values[k] == least}
    return found | dict.fromkeys(alive)


def tolerant(problem: DecisionProblem, rng: Random) -> DecisionProblem:
    """The same problem with wide tolerances, so that later tiers decide often."""
    shares = [Fraction(0), Fraction(1, 20), Fraction(1, 4), Fraction(1, 2)]
    return replace(problem, tiers=tuple(replace(tier, tolerance=rng.choice(shares)) for tier in problem.tiers))


@pytest.mark.parametrize("seed", range(6))
def test_the_tier_that_is_named_is_the_one_that_drops_the_point(seed):
    rng, judged = Random(4200 + seed), 0
    for _ in range(12):
        problem = tolerant(random_problem(rng), rng)
        answer = solve_problem(problem, Enumerate()).assignment
        if answer is None:
            continue
        points = [p for p in (evaluate(problem, a) for a in assignments(problem)) if p.feasible][: MOST_POINTS + 1]
        if len(points) > MOST_POINTS:
            continue
        winner, optimum = evaluate(problem, answer), optima(problem, Enumerate(), Limits())
        expected = droppers(problem, points)
        for point in {p.tier_values: p for p in points}.values():
            lost = loss(problem, point, winner, optimum)
            assert (None if lost is None else lost.tier.number - 1) == expected[point.tier_values]
            assert lost is None or lost.tier.value > lost.tier.against
            judged += 1
    assert judged > 20


@pytest.mark.parametrize(
    ("pair", "shown"),
    [
        ((14.0, 8.0), ("14", "8")),
        ((229.8123, 118.104), ("229.8", "118.1")),
        ((118.104, 118.11), ("118.10", "118.11")),
        ((0.5, 0.5), ("0.5", "0.5")),
        ((3, 3.25), ("3.0", "3.2")),
    ],
)
def test_two_values_are_shown_so_that_they_can_be_told_apart(pair, shown):
    assert told_apart(*pair) == shown
