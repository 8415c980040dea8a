"""Forecasters: from what was seen to the samples that a policy's `forecast:` section reads, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from types import MappingProxyType
from typing import Protocol

from pearl.core.facts import ForecastSamples
from pearl.documents import nearest
from pearl.errors import Fault, InputError
from pearl.tracking.history import History, Series, Source, observe
from pearl.tracking.life_cycle import LifeCycle

WINDOW = 12
"""Observations that a moving average spans: two minutes of intervals of `INTERVAL_S`."""
INTERVAL_S = 10.0
"""Length over which demand is averaged: a few turns of every trajectory."""
COUNT_OVER_S = 600.0
"""Time over which workers' reclaims and arrivals are counted: shorter counts are nearly all 0."""
_COUNTED = frozenset({Source.SPOT_RECLAIMS, Source.SPOT_ARRIVALS})


class Forecaster(Protocol):
    """Forecasts a source over a short horizon. Pure: the same history and time give the same samples."""

    @property
    def id(self) -> str:
        """The name that it is chosen by."""
        ...

    def samples(self, source: Source, history: History, now_s: float) -> ForecastSamples:
        """Equally likely values of the source, base units, whose quantiles the policy takes; empty where unknown.

        One value is a point forecast. The age is that of the newest observation behind it, so that a policy's
        `max_age` sees telemetry that fell silent.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LastValue:
    """The newest observation stays as it is: the forecast to beat."""

    id: str = "last_value"
    interval_s: float = INTERVAL_S
    count_over_s: float = COUNT_OVER_S
    """Time over which reclaims and arrivals of workers are counted."""

    def samples(self, source: Source, history: History, now_s: float) -> ForecastSamples:
        """The last observation."""
        series = _series(self, source, history, now_s)
        return ForecastSamples(values=series.values[-1:], age_s=series.age_s)


@dataclass(frozen=True, kw_only=True)
class MovingAverage:
    """The mean of the last `window` observations."""

    id: str = "moving_average"
    window: int = WINDOW
    interval_s: float = INTERVAL_S
    count_over_s: float = COUNT_OVER_S

    def samples(self, source: Source, history: History, now_s: float) -> ForecastSamples:
        """The mean, as one value."""
        series = _series(self, source, history, now_s)
        recent = series.values[-self.window :]
        return ForecastSamples(values=(fmean(recent),) if recent else (), age_s=series.age_s)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The last `window` observations themselves: the policy's quantile says how cautious to be."""

    id: str = "observed"
    window: int = WINDOW
    interval_s: float = INTERVAL_S
    count_over_s: float = COUNT_OVER_S

    def samples(self, source: Source, history: History, now_s: float) -> ForecastSamples:
        """The observations, newest last."""
        series = _series(self, source, history, now_s)
        return ForecastSamples(values=series.values[-self.window :], age_s=series.age_s)


@dataclass(frozen=True, kw_only=True)
class LifeCycleForecaster:
    """Demand and trajectories left from where every trajectory stands; all else as `observed`."""

    id: str = "life_cycle"
    model: LifeCycle = field(default_factory=LifeCycle)
    otherwise: Observed = field(default_factory=Observed)

    def samples(self, source: Source, history: History, now_s: float) -> ForecastSamples:
        """Quantiles of the predictive distribution; as observed before any turn, or where nobody looked at lives."""
        if source in self.model.sources and history.turns and history.lives_at_s is not None:
            return self.model.samples(source, history, now_s)
        return self.otherwise.samples(source, history, now_s)


FORECASTERS: Mapping[str, Callable[[], Forecaster]] = MappingProxyType(
    {made.id: made for made in (LastValue, MovingAverage, Observed, LifeCycleForecaster)}
)
"""The built-in forecasters, by name."""


def get_forecaster(name: str) -> Forecaster:
    """The forecaster called `name`, with its default settings; raises InputError where there is none."""
    if name not in FORECASTERS:
        known = ", ".join(FORECASTERS)
        fault = Fault(
            message=f"unknown forecaster {name!r}", expected=f"one of {known}", hint=nearest(name, FORECASTERS)
        )
        raise InputError(fault)
    return FORECASTERS[name]()


def forecast(
    forecaster: Forecaster, history: History, now_s: float, sources: Iterable[Source] = tuple(Source)
) -> dict[str, ForecastSamples]:
    """Samples by source, as `Situation.samples` takes them; sources of which nothing is known are left out."""
    found = {source.value: forecaster.samples(source, history, now_s) for source in sources}
    return {source: samples for source, samples in found.items() if samples.values}


class _Paced(Protocol):
    @property
    def interval_s(self) -> float: ...
    @property
    def count_over_s(self) -> float: ...


def _series(forecaster: _Paced, source: Source, history: History, now_s: float) -> Series:
    interval_s = forecaster.count_over_s if source in _COUNTED else forecaster.interval_s
    return observe(source, history, now_s, interval_s=interval_s)
