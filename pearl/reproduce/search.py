"""A seeded search of the unit cube: a first guess and a Latin hypercube, then CMA-ES from the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, ...]
Losses = Callable[[Sequence[Point], float], Sequence[float]]
"""Losses of a generation of points. A loss that certainly exceeds the bound given may stop at any value above it."""

EXPLORED = 0.25
"""Share of the budget that goes to the hypercube: less leaves the start to chance, more leaves the descent short."""
FIRST_SIGMA = 0.15
"""First step of the descent, as a share of each parameter's range."""
GIVE_UP = 3.0
"""A point is abandoned past this multiple of the best loss: the descent uses ranks, and such ranks carry no weight."""

Vector = NDArray[np.float64]


def minimise(losses: Losses, *, start: Point, budget: int, seed: int, generation: int = 8) -> tuple[Point, float]:
    """The best point found in `budget` evaluations, and its loss; the same seed finds the same point."""
    rng = np.random.default_rng(seed)
    best = (start, losses([start], math.inf)[0])
    explored = round(EXPLORED * (budget - 1))
    for points in _chunks(_hypercube(rng, explored, len(start)), generation):
        best = _better(best, points, losses(points, GIVE_UP * best[1]))
    left = budget - 1 - explored
    descent = _Cma(np.array(best[0]), sigma=FIRST_SIGMA, size=generation)
    while left > 0:
        points = descent.ask(rng)[:left]
        left -= len(points)
        found = losses(points, GIVE_UP * best[1])
        best = _better(best, points, found)
        if len(points) == generation:
            descent.tell(points, found)
    return best


def _better(best: tuple[Point, float], points: Sequence[Point], losses: Sequence[float]) -> tuple[Point, float]:
    index = min(range(len(points)), key=losses.__getitem__)
    return (points[index], losses[index]) if losses[index] < best[1] else best


def _hypercube(rng: np.random.Generator, points: int, dimensions: int) -> list[Point]:
    columns = [(rng.permutation(points) + rng.random(points)) / points for _ in range(dimensions)]
    return [tuple(float(column[index]) for column in columns) for index in range(points)]


def _chunks(points: list[Point], size: int) -> list[list[Point]]:
    return [points[start : start + size] for start in range(0, len(points), size)]


class _Cma:
    """Covariance matrix adaptation (Hansen, The CMA Evolution Strategy: A Tutorial, 2016), points clipped to the cube.

    Names follow the tutorial.
    """

    def __init__(self, mean: Vector, *, sigma: float, size: int) -> None:
        n = len(mean)
        mu = size // 2
        weights = math.log(mu + 0.5) - np.log(np.arange(1, mu + 1))
        self._size, self._mean, self._sigma = size, mean, sigma
        self._weights = weights / weights.sum()
        mu_eff = 1 / float((self._weights**2).sum())
        self._mu_eff = mu_eff
        self._cs = (mu_eff + 2) / (n + mu_eff + 5)
        self._ds = 1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + self._cs
        self._cc = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
        self._c1 = 2 / ((n + 1.3) ** 2 + mu_eff)
        self._cmu = min(1 - self._c1, 2 * (mu_eff - 2 + 1 / mu_eff) / ((n + 2) ** 2 + mu_eff))
        self._chi = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        self._ps: Vector = np.zeros(n)
        self._pc: Vector = np.zeros(n)
        self._cov: Vector = np.eye(n)

    def ask(self, rng: np.random.Generator) -> list[Point]:
        """The next generation."""
        root = np.linalg.cholesky(self._cov)
        draws = rng.standard_normal((self._size, len(self._mean)))
        points = np.clip(self._mean + self._sigma * draws @ root.T, 0.0, 1.0)
        return [tuple(float(value) for value in point) for point in points]

    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        """Move towards the better half."""
        order = sorted(range(len(points)), key=losses.__getitem__)[: len(self._weights)]
        steps = (np.array([points[index] for index in order]) - self._mean) / self._sigma
        step = self._weights @ steps
        self._mean = self._mean + self._sigma * step
        whitened = np.linalg.solve(np.linalg.cholesky(self._cov), step)
        self._ps = (1 - self._cs) * self._ps + math.sqrt(self._cs * (2 - self._cs) * self._mu_eff) * whitened
        length = float(np.linalg.norm(self._ps))
        moving = length / self._chi < 1.4 + 2 / (len(step) + 1)
        gain = math.sqrt(self._cc * (2 - self._cc) * self._mu_eff) if moving else 0.0
        self._pc = (1 - self._cc) * self._pc + gain * step
        rank_mu = (steps.T * self._weights) @ steps
        keep = 1 - self._c1 - self._cmu
        self._cov = keep * self._cov + self._c1 * np.outer(self._pc, self._pc) + self._cmu * rank_mu
        self._cov = (self._cov + self._cov.T) / 2 + 1e-12 * np.eye(len(step))
        self._sigma = min(0.5, self._sigma * math.exp(self._cs / self._ds * (length / self._chi - 1)))
