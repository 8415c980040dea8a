"""Measured transition costs, and how far predictions lie from measured makespans: exponential moving averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pearl.core.engine import TransitionCosts
from pearl.core.telemetry import BatchRecord, Telemetry, TransitionKind, TransitionRecord

COST_WEIGHT = 0.3
"""Weight of a new measurement in an average cost: two thirds of a lasting change show after three transitions."""
ERROR_WEIGHT = 0.3
"""Weight of a new batch in the average error."""

_Key = tuple[TransitionKind, bool]


@dataclass(frozen=True, kw_only=True)
class Average:
    """An exponential moving average; a value from offline counts as one measurement."""

    value: float
    count: int = 1

    def after(self, measured: float, weight: float) -> Average:
        """The average once `measured` is in; the first few weigh alike."""
        share = max(weight, 1 / (self.count + 1))
        return Average(value=self.value + share * (measured - self.value), count=self.count + 1)


@dataclass(frozen=True, kw_only=True)
class CostTracker:
    """Averages of every kind of transition, kept apart for rollout steps with and without borrowing."""

    prior: TransitionCosts = field(default_factory=TransitionCosts)
    averages: Mapping[_Key, Average] = field(default_factory=dict)

    def update(self, records: Iterable[Telemetry]) -> CostTracker:
        """The tracker that has also seen `records`; only transitions matter here."""
        averages = dict(self.averages)
        for record in sorted((r for r in records if isinstance(r, TransitionRecord)), key=_order):
            key = (record.kind, record.borrowing)
            before = averages.get(key, Average(value=getattr(self.prior, _field(record.kind))))
            averages[key] = before.after(record.seconds, COST_WEIGHT)
        return replace(self, averages=averages)

    def costs(self, *, borrowing: bool) -> TransitionCosts:
        """Costs of a step with or without borrowing; the prior's where nothing was measured in such steps."""
        measured = {
            _field(kind): a.value for (kind, with_borrow), a in self.averages.items() if with_borrow == borrowing
        }
        return replace(self.prior, **measured)


@dataclass(frozen=True, kw_only=True)
class CalibrationTracker:
    """Averages of the relative error (predicted - measured) / measured of the batches' makespans."""

    size: Average | None = None
    """Of its magnitude."""
    lean: Average | None = None
    """Of the error with its sign."""

    def update(self, records: Iterable[Telemetry]) -> CalibrationTracker:
        """The tracker that has also seen `records`; only batches matter here."""
        size, lean = self.size, self.lean
        for record in sorted((r for r in records if isinstance(r, BatchRecord)), key=_batch_order):
            error = record.predicted_s / record.measured_s - 1
            size = size.after(abs(error), ERROR_WEIGHT) if size else Average(value=abs(error))
            lean = lean.after(error, ERROR_WEIGHT) if lean else Average(value=error)
        return CalibrationTracker(size=size, lean=lean)

    def error(self) -> float | None:
        """Mean magnitude of the relative error; None where no batch was measured."""
        return self.size.value if self.size else None

    def bias(self) -> float | None:
        """Mean relative error with its sign, positive where predictions are too long; None as above."""
        return self.lean.value if self.lean else None


def _field(kind: TransitionKind) -> str:
    return f"{kind.value}_s"


def _order(record: TransitionRecord) -> tuple[float, float]:
    return record.at_s, record.seconds


def _batch_order(record: BatchRecord) -> tuple[float, float, float]:
    return record.at_s, record.predicted_s, record.measured_s
