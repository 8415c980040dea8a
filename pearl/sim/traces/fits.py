"""From observations to the distributions of a workload profile."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import fmean
from typing import assert_never

from pearl.core.distribution import Distribution, Family

EMPIRICAL_POINTS = 256
"""Values that an empirical distribution keeps: fine enough for the 99th percentile, small enough for a YAML file."""
RANKS = 400
"""Ranks at which distances are taken: steps of 0.25 %, below what a sample of 10,000 can tell."""
SIGMAS = tuple(0.05 * i for i in range(1, 43))
"""Candidates for the standard deviation of the logarithm: from cv 0.05 to cv 9, within what a scenario may hold."""
MEAN_CORRECTIONS = 4
"""Rounds that bring the clipped mean to the sample's; the error falls at least by half in each."""


class Shape(StrEnum):
    """Which family a fit yields."""

    EMPIRICAL = "empirical"
    LOGNORMAL = "lognormal"


def fit(values: Sequence[float], *, shape: Shape, points: int = EMPIRICAL_POINTS) -> Distribution:
    """The distribution of `values` (≥ 0, not empty); constant where they are all the same."""
    if min(values) == max(values):
        return Distribution.constant(float(values[0]))
    match shape:
        case Shape.EMPIRICAL:
            return empirical(values, points=points)
        case Shape.LOGNORMAL:
            return lognormal(values)
    assert_never(shape)


def empirical(values: Sequence[float], *, points: int = EMPIRICAL_POINTS) -> Distribution:
    """At most `points` equally likely values with the mean of `values`.

    The sorted sample is cut into `points` parts of equal mass and each part gives its mean: the overall mean is kept
    exactly, and of the variance all but the part within the slices. Values on a slice's border are shared.
    """
    ordered = sorted(values)
    count = len(ordered)
    if count <= points:
        return Distribution(family=Family.EMPIRICAL, values=tuple(float(v) for v in ordered))
    sums = [0.0]
    for value in ordered:
        sums.append(sums[-1] + value)

    def integral(position: float) -> float:
        whole = min(int(position), count)
        return sums[whole] + (position - whole) * (ordered[whole] if whole < count else 0.0)

    edges = [i * count / points for i in range(points + 1)]
    means = [(integral(right) - integral(left)) * points / count for left, right in pairwise(edges)]
    return Distribution(family=Family.EMPIRICAL, values=tuple(means))


def lognormal(values: Sequence[float]) -> Distribution:
    """The log-normal with the mean of `values` whose Kolmogorov–Smirnov distance to them is the smallest.

    The mean sets the work that a batch brings, so it is kept, also after clipping to the sample's range; the shape is
    what is fitted. (Greatest likelihood follows the logarithms of the smallest values, and missed the mean of the
    public traces by up to a factor of 2.8.)
    """
    target = fmean(values)

    def shaped(sigma: float, mean: float = target) -> Distribution:
        cv = math.sqrt(math.expm1(sigma * sigma))
        low, high = float(min(values)), float(max(values))
        return Distribution(family=Family.LOGNORMAL, mean=mean, cv=cv, low=low, high=high)

    sigma = min(SIGMAS, key=lambda s: distance(shaped(s), values))
    mean = target
    for _ in range(MEAN_CORRECTIONS):
        mean *= target / shaped(sigma, mean).expected
    return shaped(sigma, mean)


def distance(distribution: Distribution, values: Sequence[float]) -> float:
    """Kolmogorov–Smirnov distance, 0 to 1: the largest gap between the sample's quantile ranks and the distribution's.

    Taken at RANKS − 1 evenly spaced quantiles of the distribution.
    """
    ordered = sorted(values)
    count = len(ordered)
    worst = 0.0
    for step in range(1, RANKS):
        rank = step / RANKS
        at = distribution.quantile(rank)
        worst = max(worst, bisect_left(ordered, at) / count - rank, rank - bisect_right(ordered, at) / count)
    return worst
