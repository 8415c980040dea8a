"""Brute force over every assignment, by `evaluate` alone: slow, and plainly right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pearl.core.cluster import Role
from pearl.core.problem import Assignment, DecisionProblem, Group
from pearl.solving.evaluate import Evaluation, evaluate
from pearl.solving.tiers import held_bound, priced_tiers


def assignments(problem: DecisionProblem) -> Iterator[Assignment]:
    for choice in itertools.product(*(list(_splits(group)) for group in problem.groups)):
        yield {key: n for part in choice for key, n in part.items() if n}


def _splits(group: Group) -> Iterator[dict[tuple[str, Role], int]]:
    for numbers in itertools.product(range(group.size + 1), repeat=len(group.targets)):
        if sum(numbers) == group.size:
            yield {(group.id, role): n for role, n in zip(group.targets, numbers, strict=True)}


def best_values(problem: DecisionProblem) -> tuple[int, ...] | None:
    """Tier values of the best assignment; None where none is feasible.

    Tiers are minimised in order and held within their tolerance; then the tiers that had one are minimised again.
    """
    alive: list[Evaluation] = [e for e in map(lambda a: evaluate(problem, a), assignments(problem)) if e.feasible]
    if not alive:
        return None
    tiers = priced_tiers(problem)
    for k, tier in enumerate(tiers):
        ppb = tier.tolerance_ppb if k + 1 < len(tiers) else 0
        bound = held_bound(min(e.tier_values[k] for e in alive), ppb)
        alive = [e for e in alive if e.tier_values[k] <= bound]
    return min(e.tier_values for e in alive)
