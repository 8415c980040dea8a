"""Step-time formulas fitted to engine steps, with the offline formula as prior.

The mean relative error is minimised, so that single slow steps hardly count; steps whose logarithmic error lies more
than `OUTLIER_MADS` scaled median absolute deviations from the median are then left out, and the rest is fitted again.
That is about a median, and where times scatter widely it lies below their mean. A makespan is a sum of steps, so the
coefficients are then scaled until the steps that were kept take as long in all as was measured.
The prior enters as `PRIOR_SAMPLES` made-up steps over a range of sizes. Their times are those of the prior formula,
scaled by the median ratio of measured to prior times: telemetry sets the level from the first refit on, and the prior
gives the shape only where live steps do not vary enough to show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pearl.core.engine import (
    DecodeCost,
    EngineProfile,
    FitError,
    KvTransfer,
    PrefillCost,
    Saturation,
    SaturationForm,
)
from pearl.core.telemetry import StepRecord
from pearl.scenario.fit import fit_relative
from pearl.tracking.robust import MAD_SCALE, OUTLIER_MADS, weighted_quantile
from pearl.tracking.workload import REFIT_MIN_SAMPLES

PRIOR_SAMPLES = 20.0
"""Steps that the prior counts as: as many as a refit needs at least."""
MIN_LOG_ERROR = 0.05
"""Least scaled deviation of the logarithmic error: a step within e^0.3 = 1.35 of the fit is never an outlier."""
SATURATION_GAIN = 0.2
"""A saturating form is taken without a prior only if it lowers the mean error by this share: it has a coefficient more,
and expert routing shows in errors of tens of per cent."""
_PREFILL_DESIGN = tuple((float(n), float(c)) for n in (256, 1024, 4096, 8192) for c in (0, 4096, 16384))
_DECODE_DESIGN = tuple((float(b), float(b * c)) for b in (1, 8, 32, 128) for c in (1024, 4096, 16384))

Weighed = Sequence[tuple[StepRecord, float]]
"""Engine steps, each with its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows of a linear model: columns, measured seconds, weights."""

    columns: list[list[float]]
    seconds: list[float]
    weights: list[float]

    def joined(self, other: _Rows) -> _Rows:
        return _Rows(
            columns=self.columns + other.columns,
            seconds=self.seconds + other.seconds,
            weights=self.weights + other.weights,
        )

    def only(self, keep: Sequence[bool]) -> _Rows:
        rows = zip(self.columns, self.seconds, self.weights, keep, strict=True)
        kept = [row for row in rows if row[3]]
        return _Rows(columns=[r[0] for r in kept], seconds=[r[1] for r in kept], weights=[r[2] for r in kept])


def fit_prefill(steps: Weighed, prior: PrefillCost | None) -> PrefillCost | None:
    """Prefill cost from prefill steps; the prior where there are fewer than `REFIT_MIN_SAMPLES`.

    A step of m prompts with n new and c cached tokens in all counts as m equal prompts: p0 + p1·n + p2·(n² + 2·n·c)/m.
    """
    if len(steps) < REFIT_MIN_SAMPLES:
        return prior
    live = _rows(steps, prefill_columns)
    made = None
    if prior is not None:
        known = prior
        level = _level([(r.seconds, prefill_seconds(known, r), w) for r, w in steps])
        points = [([1.0, n, n * n + 2 * n * c], level * known.seconds(n, c)) for n, c in _PREFILL_DESIGN]
        made = _made_up(points)
    p0, p1, p2 = _fit(live, made)
    return PrefillCost(p0_s=p0, p1_s=p1, p2_s=p2)


def prefill_columns(step: StepRecord) -> list[float]:
    """What the coefficients p0, p1, p2 multiply."""
    n = float(step.new_tokens)
    return [1.0, n, (n * n + 2.0 * n * step.cached_tokens) / step.prompts]


def prefill_seconds(cost: PrefillCost, step: StepRecord) -> float:
    """Predicted time of a step's prefill part."""
    one, n, pairs = prefill_columns(step)
    return cost.p0_s * one + cost.p1_s * n + cost.p2_s * pairs


def fit_decode(steps: Weighed, prior: DecodeCost | None) -> DecodeCost | None:
    """Decode cost from decode steps; the prior where there are fewer than `REFIT_MIN_SAMPLES`.

    The form is the prior's; without one, linear, or with √b where that fits much better.
    """
    if len(steps) < REFIT_MIN_SAMPLES:
        return prior
    if prior is not None:
        return _decode_form(steps, prior, prior.saturation)
    linear = _decode_form(steps, None, None)
    root = _decode_form(steps, None, Saturation(amplitude_s=1.0, form=SaturationForm.SQRT))
    gained = _decode_error(steps, root) < (1 - SATURATION_GAIN) * _decode_error(steps, linear)
    return root if gained else linear


def _decode_form(steps: Weighed, prior: DecodeCost | None, form: Saturation | None) -> DecodeCost:
    unit = replace(form, amplitude_s=1.0) if form else None

    def columns(batch: float, context: float) -> list[float]:
        return [1.0, batch, context, *([unit.seconds(batch)] if unit else [])]

    live = _rows(steps, lambda r: columns(float(r.batch), float(r.context_tokens)))
    made = None
    if prior is not None:
        level = _level([(r.seconds, prior.seconds(r.batch, r.context_tokens), w) for r, w in steps])
        made = _made_up([(columns(b, c), level * prior.seconds(b, c)) for b, c in _DECODE_DESIGN])
    c0, c1, c2, *amplitude = _fit(live, made)
    saturation = replace(unit, amplitude_s=amplitude[0]) if unit and amplitude[0] else None
    return DecodeCost(c0_s=c0, c1_s=c1, c2_s=c2, saturation=saturation)


def _decode_error(steps: Weighed, cost: DecodeCost) -> float:
    errors = [w * abs(cost.seconds(r.batch, r.context_tokens) / r.seconds - 1) for r, w in steps]
    return math.fsum(errors) / math.fsum(w for _, w in steps)


def fit_mixed(steps: Weighed, profile: EngineProfile) -> float:
    """Time of mixed steps over the sum of their parts alone; the profile's factor where too few were seen."""
    if len(steps) < REFIT_MIN_SAMPLES:
        return profile.mixed_step_factor
    alone = [prefill_seconds(profile.prefill, r) + profile.decode.seconds(r.batch, r.context_tokens) for r, _ in steps]
    keep = _inliers([_log_error(said, r.seconds) for said, (r, _) in zip(alone, steps, strict=True)])
    kept = [(w, r.seconds, said) for said, (r, w), kept in zip(alone, steps, keep, strict=True) if kept]
    return _ratio_of_sums(kept)


def fit_transfer(pairs: Sequence[tuple[tuple[float, float], float]], prior: KvTransfer) -> KvTransfer:
    """Latency and bandwidth from weighted (tokens, seconds) of transfers; the prior where too few were seen."""
    if len(pairs) < REFIT_MIN_SAMPLES:
        return prior
    rows = _Rows(
        columns=[[1.0, tokens * prior.bytes_per_token] for (tokens, _), _ in pairs],
        seconds=[seconds for (_, seconds), _ in pairs],
        weights=[weight for _, weight in pairs],
    )
    latency, per_byte = _fit(rows, None)
    if not per_byte:
        return prior
    return replace(prior, latency_s=latency, bandwidth_bytes_per_s=1 / per_byte)


def fit_error(steps: Weighed, prefill: PrefillCost, decode: DecodeCost) -> FitError | None:
    """Relative error over the steps without their outliers; None where a kind is too rare to have been fitted."""
    p = _typical([_log_error(prefill_seconds(prefill, r), r.seconds) for r, _ in steps if not r.batch])
    d = _typical([_log_error(decode.seconds(r.batch, r.context_tokens), r.seconds) for r, _ in steps if not r.prompts])
    if min(len(p), len(d)) < REFIT_MIN_SAMPLES:
        return None
    return FitError(
        prefill_mean=round(math.fsum(p) / len(p), 6),
        prefill_max=round(max(p), 6),
        decode_mean=round(math.fsum(d) / len(d), 6),
        decode_max=round(max(d), 6),
        points=len(p) + len(d),
        source="telemetry",
    )


def _typical(errors: Sequence[float]) -> list[float]:
    """Relative errors of what is no outlier."""
    keep = _inliers(errors)
    return [abs(math.expm1(e)) for e, kept in zip(errors, keep, strict=True) if kept]


def _fit(live: _Rows, made: _Rows | None) -> list[float]:
    """Coefficients of the live rows and the prior's, fitted, cleaned of outliers, fitted again, and set to the mean."""

    def solve(rows: _Rows) -> list[float]:
        rows = rows.joined(made) if made else rows
        return fit_relative(rows.columns, rows.seconds, rows.weights)

    first = solve(live)
    said = _said(first, live)
    kept = live.only(_inliers([_log_error(t, s) for t, s in zip(said, live.seconds, strict=True)]))
    second = first if len(kept.seconds) == len(live.seconds) else solve(kept)
    level = _ratio_of_sums(list(zip(kept.weights, kept.seconds, _said(second, kept), strict=True)))
    return [level * coefficient for coefficient in second]


def _said(coefficients: Sequence[float], rows: _Rows) -> list[float]:
    return [math.fsum(c * x for c, x in zip(coefficients, row, strict=True)) for row in rows.columns]


def _ratio_of_sums(triples: Sequence[tuple[float, float, float]]) -> float:
    """Weighted measured over weighted predicted seconds, of (weight, measured, predicted)."""
    return math.fsum(w * measured for w, measured, _ in triples) / math.fsum(w * said for w, _, said in triples)


def _log_error(predicted: float, measured: float) -> float:
    return math.log(max(predicted, 1e-12) / measured)


def _inliers(errors: Sequence[float]) -> list[bool]:
    if not errors:
        return []
    middle = median(errors)
    spread = max(MAD_SCALE * median(abs(e - middle) for e in errors), MIN_LOG_ERROR)
    return [abs(e - middle) <= OUTLIER_MADS * spread for e in errors]


def _rows(steps: Weighed, columns: Callable[[StepRecord], list[float]]) -> _Rows:
    return _Rows(
        columns=[columns(r) for r, _ in steps], seconds=[r.seconds for r, _ in steps], weights=[w for _, w in steps]
    )


def _made_up(points: Sequence[tuple[list[float], float]]) -> _Rows:
    share = PRIOR_SAMPLES / len(points)
    return _Rows(columns=[row for row, _ in points], seconds=[s for _, s in points], weights=[share] * len(points))


def _level(triples: Sequence[tuple[float, float, float]]) -> float:
    """Weighted median of measured over predicted seconds."""
    return weighted_quantile([(measured / max(said, 1e-12), weight) for measured, said, weight in triples], 0.5)
