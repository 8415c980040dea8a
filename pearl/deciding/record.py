"""What a record of a decision holds beside its outcome and reasons, for every executor: the same names as in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pearl.core.facts import BoundHysteresis, ForecastValue
from pearl.core.problem import UNREACHABLE_MS
from pearl.deciding.engine import Verdict
from pearl.deciding.facts import NO_WINDOW_S
from pearl.deciding.posing import Posed
from pearl.solving.evaluate import linear_value

PLAIN_FROM = 1e6
"""From here on `g` would write an exponent."""
DECIMALS = 6
"""Seconds to the microsecond: below that the figures are noise of the arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """A forecast as it was read, in `unit`; `text` says it in words, without figures that mean nothing."""

    value: ForecastValue
    unit: str

    def text(self) -> str:
        """`153.2 s (source overlap_window, 8 samples, the newest 40 s old)`; without samples, the policy's default."""
        found = self.value
        amount = f"{found.value:{'.0f' if abs(found.value) >= PLAIN_FROM else 'g'}} {self.unit}".rstrip()
        if found.samples:
            number = f"{found.samples} sample{'s' if found.samples > 1 else ''}"
            stale = ", stale" if found.stale else ""
            return f"{amount} (source {found.source}, {number}, the newest {found.age_s:g} s old{stale})"
        if self.unit == "s" and found.value == NO_WINDOW_S:
            return f"no known limit (source {found.source}, no samples)"
        return f"{amount} (the policy's default; source {found.source}, no samples)"

    def data(self) -> dict[str, Any]:
        """Plain data, `text` included."""
        found = self.value
        return {
            "name": found.name,
            "source": found.source,
            "value": round(found.value, DECIMALS),
            "unit": self.unit,
            "age_s": found.age_s,
            "stale": found.stale,
            "samples": found.samples,
            "text": self.text(),
        }


def forecast_reports(posed: Posed) -> tuple[ForecastReport, ...]:
    """The forecasts of a decision, as they were resolved."""
    units = {spec.name: spec.unit.symbol for spec in posed.policy.forecasts}
    return tuple(ForecastReport(value=found, unit=units[found.name]) for found in posed.bound.forecasts)


def metrics(verdict: Verdict) -> dict[str, float]:
    """The policy's `let` metrics at the chosen configuration, by name, in base units."""
    counts, makespan_ms = verdict.chosen.counts, verdict.chosen.makespan_ms
    return {
        name: round(float(linear_value(expr, verdict.assignment, counts, makespan_ms) / expr.scale), DECIMALS)
        for name, expr in sorted(verdict.posed.bound.metrics.items())
    }


def context(verdict: Verdict) -> dict[str, Any]:
    """Plain data: by which policy it was decided, against what, by which thresholds, and on which forecasts.

    `stay_s` is T_stay, null where staying cannot run; `corrections` are measured over predicted makespans by mode.
    Nothing in it takes another solve.
    """
    posed = verdict.posed
    return {
        "policy": {"name": posed.bound.name, "sha256": posed.bound.sha256},
        "stay_s": None if posed.stay_ms >= UNREACHABLE_MS else posed.stay_ms / 1000,
        "thresholds": _thresholds(posed.bound.hysteresis),
        "corrections": {mode.value: round(by, DECIMALS) for mode, by in sorted(posed.situation.corrections.items())},
        "calibration_error": posed.situation.calibration_error,
        "metrics": metrics(verdict),
        "forecasts": [report.data() for report in forecast_reports(posed)],
    }


def _thresholds(rules: BoundHysteresis) -> dict[str, Any]:
    """Seconds to gain over staying by kind of change; null for a resize that meets no threshold."""
    return {
        "semantics": rules.semantics.value,
        "mode_s": round(rules.mode_s, DECIMALS),
        "ratio_s": round(rules.ratio_s, DECIMALS),
        "resize_s": None if rules.resize_s is None else round(rules.resize_s, DECIMALS),
    }
