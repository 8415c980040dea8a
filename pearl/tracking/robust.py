"""Robust statistics of weighted values: outliers, quantiles, and samples of equal mass. Plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

MAD_SCALE = 1.4826
"""Median absolute deviation times this is the standard deviation of a normal distribution."""
OUTLIER_MADS = 6.0
"""Scaled deviations beyond which a value is suspect: a log-normal has one value in 10^9 beyond."""
MIN_LOG_SPREAD = 0.25
"""Least scaled deviation of the logarithm: where most values are the same, a factor below e^1.5 = 4.5 is no outlier."""
RARE_SHARE = 0.005
"""Suspects that make up more than this are a mode of the distribution (slow tests among quick edits), not outliers."""

Weighted = Sequence[tuple[float, float]]
"""Pairs of value and weight."""


def without_outliers(values: Sequence[float]) -> list[float]:
    """Values in ascending order, without those that are both far above the rest and rare.

    Suspect is what lies more than `OUTLIER_MADS` scaled median absolute deviations above the median, both of the
    logarithm of 1 + value; suspects are dropped if they are at most `RARE_SHARE` of the values (always at least one may
    be dropped). Values far below are kept: near zero they hardly move a mean.
    """
    ordered = sorted(values)
    if len(ordered) < 3:
        return ordered
    logs = [math.log1p(value) for value in ordered]
    middle = median(logs)
    spread = max(MAD_SCALE * median(abs(x - middle) for x in logs), MIN_LOG_SPREAD)
    kept = sum(x <= middle + OUTLIER_MADS * spread for x in logs)
    return ordered[:kept] if len(ordered) - kept <= max(1.0, RARE_SHARE * len(ordered)) else ordered


def weighted_quantile(pairs: Weighted, share: float) -> float:
    """The smallest value at or below which at least `share` of the weight lies; ValueError if there is none."""
    if not pairs:
        raise ValueError("no values")
    ordered = sorted(pairs)
    goal = share * math.fsum(weight for _, weight in ordered)
    sum_ = 0.0
    for value, weight in ordered:
        sum_ += weight
        if sum_ >= goal * (1 - 1e-12):
            return value
    return ordered[-1][0]


def equal_mass(pairs: Weighted, points: int) -> tuple[float, ...]:
    """At most `points` equally likely values, ascending, with the weighted mean of `pairs`.

    The weight is cut into slices of equal mass and each gives its mean, so that the overall mean is exact; of the
    variance, the part within the slices is lost.
    """
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    if not ordered:
        return ()
    if len(ordered) <= points and len({weight for _, weight in ordered}) == 1:
        return tuple(value for value, _ in ordered)
    slice_mass = math.fsum(weight for _, weight in ordered) / points
    means: list[float] = []
    filled, sum_ = 0.0, 0.0
    for value, weight in ordered:
        left = weight
        while left >= slice_mass - filled and len(means) < points - 1:
            part = slice_mass - filled
            means.append((sum_ + part * value) / slice_mass)
            left, filled, sum_ = left - part, 0.0, 0.0
        filled, sum_ = filled + left, sum_ + left * value
    last = sum_ / filled if filled > slice_mass * 1e-9 else ordered[-1][0]
    return (*means, last)
