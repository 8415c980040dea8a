"""Distributions of a workload's quantities, given by their inverse CDF, so that any source of uniforms samples them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from statistics import NormalDist
from typing import assert_never

MOMENT_POINTS = 2048
"""Midpoints of the inverse CDF over which moments are integrated: the mean of a log-normal with cv 1.5 is then within
0.1 % of its closed form."""

_standard_normal_quantile = NormalDist().inv_cdf


class Family(StrEnum):
    """Shape of a distribution."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    EMPIRICAL = "empirical"


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A non-negative quantity: family, location and spread, clipped to [low, high].

    `mean` and `cv` (standard deviation over mean) are those before clipping. UNIFORM uses `low` and `high`; EMPIRICAL
    uses `values` (equally likely, kept sorted).
    """

    family: Family = Family.CONSTANT
    mean: float = 0.0
    cv: float = 0.0
    low: float = 0.0
    high: float = math.inf
    values: tuple[float, ...] = ()

    @classmethod
    def constant(cls, value: float) -> Distribution:
        """The distribution that always gives `value`."""
        return cls(mean=value)

    def quantile(self, u: float) -> float:
        """The value below which a share `u` of the mass lies, 0 < u < 1."""
        value = self._raw_quantile(u)
        if value < self.low:
            return self.low
        return value if value < self.high else self.high

    def _raw_quantile(self, u: float) -> float:
        if self._log_moments is not None:
            mu, sigma = self._log_moments
            return math.exp(mu + sigma * _standard_normal_quantile(u))
        match self.family:
            case Family.CONSTANT | Family.LOGNORMAL:
                return self.mean
            case Family.UNIFORM:
                return self.low + u * (self.high - self.low)
            case Family.EXPONENTIAL:
                return -self.mean * math.log1p(-u)
            case Family.EMPIRICAL:
                return self.values[min(int(u * len(self.values)), len(self.values) - 1)]
        assert_never(self.family)

    @cached_property
    def _log_moments(self) -> tuple[float, float] | None:
        """Mean and deviation of the logarithm of a log-normal that spreads; None for all else."""
        if self.family is not Family.LOGNORMAL or self.mean == 0 or self.cv == 0:
            return None
        sigma2 = math.log1p(self.cv * self.cv)
        return math.log(self.mean) - sigma2 / 2, math.sqrt(sigma2)

    @cached_property
    def _grid(self) -> tuple[float, ...]:
        if self.family is Family.CONSTANT:
            return (self.quantile(0.5),)
        if self.family is Family.EMPIRICAL:
            return tuple(min(max(v, self.low), self.high) for v in self.values)
        return tuple(self.quantile((i + 0.5) / MOMENT_POINTS) for i in range(MOMENT_POINTS))

    @cached_property
    def expected(self) -> float:
        """Mean after clipping."""
        return math.fsum(self._grid) / len(self._grid)

    @cached_property
    def variance(self) -> float:
        """Variance after clipping."""
        return math.fsum((v - self.expected) ** 2 for v in self._grid) / len(self._grid)

    def scaled(self, factor: float) -> Distribution:
        """The same shape, every value times `factor` (> 0)."""
        return Distribution(
            family=self.family,
            mean=self.mean * factor,
            cv=self.cv,
            low=self.low * factor,
            high=self.high * factor,
            values=tuple(v * factor for v in self.values),
        )
