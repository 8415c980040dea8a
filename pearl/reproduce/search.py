"""A seeded search of the unit cube: a first guess, a Latin hypercube, then a descent by mutations of the best point.

One evaluation takes seconds, and most candidates are bad: so every loss may stop once it exceeds the best one known,
and an evolution strategy that asks no more of a candidate than whether it is better makes the most of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

Point = tuple[float, ...]
Losses = Callable[[Sequence[Point], float], Sequence[float]]
"""Losses of a generation of points. A loss that certainly exceeds the bound given may stop at any value above it."""

EXPLORED = 0.25
"""Share of the budget that goes to the hypercube: less leaves the start to chance, more leaves the descent short."""
MUTATED = 0.6
"""Chance that a mutation touches a parameter: steps in few of them succeed more often than steps in all."""
FIRST_STEP = 0.1
"""Standard deviation of a mutation, as a share of each parameter's range."""
LONGEST_STEP, SHORTEST_STEP = 0.2, 0.002
GROW, SHRINK = 1.5, 0.85
"""Factors on the step after a generation with a better point, and without one: balanced at one success in four."""
GENERATION = 4
"""Points that are asked for together: more would use more processes, and learn less from each."""


def minimise(
    losses: Losses, *, start: Point, budget: int, seed: int, generation: int = GENERATION
) -> tuple[Point, float]:
    """The best point found in `budget` evaluations, and its loss; the same seed finds the same point."""
    rng = Random(seed)
    best, loss = start, losses([start], float("inf"))[0]
    left = budget - 1
    for points in _chunks(_hypercube(rng, round(EXPLORED * left), len(start)), generation):
        best, loss, _ = _better(best, loss, points, losses(points, loss))
        left -= len(points)
    step = FIRST_STEP
    while left > 0:
        points = [_mutant(rng, best, step) for _ in range(min(generation, left))]
        best, loss, success = _better(best, loss, points, losses(points, loss))
        left -= len(points)
        step = min(LONGEST_STEP, step * GROW) if success else max(SHORTEST_STEP, step * SHRINK)
    return best, loss


def _better(best: Point, loss: float, points: Sequence[Point], found: Sequence[float]) -> tuple[Point, float, bool]:
    index = min(range(len(points)), key=found.__getitem__)
    return (points[index], found[index], True) if found[index] < loss else (best, loss, False)


def _mutant(rng: Random, point: Point, step: float) -> Point:
    return tuple(
        min(1.0, max(0.0, value + step * rng.gauss(0.0, 1.0))) if rng.random() < MUTATED else value for value in point
    )


def _hypercube(rng: Random, points: int, dimensions: int) -> list[Point]:
    columns = [[(stratum + rng.random()) / points for stratum in range(points)] for _ in range(dimensions)]
    for column in columns:
        rng.shuffle(column)
    return list(zip(*columns, strict=True))


def _chunks(points: Sequence[Point], size: int) -> Iterator[Sequence[Point]]:
    for start in range(0, len(points), size):
        yield points[start : start + size]
