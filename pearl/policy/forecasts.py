"""Forecasts: one number from the samples of a source, or what to do when there are none or they are old."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pearl.core.facts import ForecastSamples, ForecastValue
from pearl.errors import Fault, PolicyError
from pearl.policy.formula import Formula
from pearl.policy.model import ForecastSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The forecasts of one decision; `stale` says why borrowing is off, empty if it is not."""

    values: Mapping[str, ForecastValue]
    stale: str = ""


def quantile(samples: tuple[float, ...], share: float) -> float:
    """The value below which a share of the samples lies, linear between neighbours (Hyndman and Fan's type 7)."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def resolve(
    specs: tuple[ForecastSpec, ...],
    samples: Mapping[str, ForecastSamples],
    default: Callable[[Formula], float],
) -> Resolved:
    """Resolve every forecast; raises PolicyError with every one that cannot be.

    A source without samples takes the default; without a default it counts as stale, and then `no_borrow` switches
    borrowing off while the other two are errors, since there is no last value to keep.
    """
    values: dict[str, ForecastValue] = {}
    stale: list[str] = []
    faults: list[Fault] = []
    for spec in specs:
        found = samples.get(spec.source)
        if found is None or not found.values:
            if spec.default is not None:
                values[spec.name] = _value(spec, default(spec.default), ForecastSamples(values=()), stale=False)
            elif spec.on_stale == "no_borrow":
                stale.append(f"forecast {spec.name!r} has no samples of {spec.source}")
            else:
                hint = "give `default:`, or samples of the source in the scenario"
                message = f"forecast {spec.name!r}: no samples of {spec.source}"
                faults.append(Fault(message=message, span=spec.span, hint=hint))
            continue
        value = quantile(found.values, spec.quantile)
        if not math.isfinite(value):
            faults.append(Fault(message=f"forecast {spec.name!r}: samples are not finite", span=spec.span))
            continue
        is_stale = spec.max_age_s is not None and found.age_s > spec.max_age_s
        values[spec.name] = _value(spec, value, found, stale=is_stale)
        if is_stale and spec.on_stale != "keep_last":
            why = f"forecast {spec.name!r} is {found.age_s:g} s old, more than {spec.max_age_s:g} s"
            if spec.on_stale == "no_borrow":
                stale.append(why)
            else:
                faults.append(Fault(message=why, span=spec.span, hint="on_stale: keep_last would use it"))
    if faults:
        raise PolicyError(faults)
    return Resolved(values=values, stale="; ".join(stale))


def _value(spec: ForecastSpec, value: float, samples: ForecastSamples, *, stale: bool) -> ForecastValue:
    return ForecastValue(
        name=spec.name,
        source=spec.source,
        value=value,
        age_s=samples.age_s,
        stale=stale,
        samples=len(samples.values),
    )
