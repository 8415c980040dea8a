"""Quantities with units, as scenarios and engine profiles write them: `2s`, `3.5 usd/h`, `50 GB/s`, `144 KiB`, `25%`.

Each dimension has one base unit, in which every number is held: seconds, bytes, bytes per second, usd per hour, watts;
shares are plain numbers. A number without a unit is refused where a unit says something.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from itertools import chain


class Dimension(StrEnum):
    """What a quantity measures."""

    TIME = "time"
    BYTES = "size in bytes"
    BANDWIDTH = "bandwidth"
    PRICE = "price"
    POWER = "power"
    SHARE = "share"


_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1.0} | {
    prefix + suffix: base ** (power + 1)
    for suffix, base in (("B", 1e3), ("iB", 1024.0))
    for power, prefix in enumerate("KMGT")
}
_BITS = {prefix + "bit": base / 8 for prefix, base in (("K", 1e3), ("M", 1e6), ("G", 1e9))}

UNITS: Mapping[Dimension, Mapping[str, float]] = {
    Dimension.TIME: _TIME,
    Dimension.BYTES: _BYTES,
    Dimension.BANDWIDTH: {f"{name}/s": value for name, value in chain(_BYTES.items(), _BITS.items())},
    Dimension.PRICE: {"usd/h": 1.0, "usd/min": 60.0, "usd/s": 3600.0},
    Dimension.POWER: {"W": 1.0, "kW": 1e3},
    Dimension.SHARE: {"%": 0.01},
}
"""Units of each dimension and their value in its base unit."""

EXAMPLES: Mapping[Dimension, tuple[str, ...]] = {
    Dimension.TIME: ("2s", "150ms", "10min"),
    Dimension.BYTES: ("144 KiB",),
    Dimension.BANDWIDTH: ("50 GB/s",),
    Dimension.PRICE: ("3.5 usd/h",),
    Dimension.POWER: ("700 W",),
    Dimension.SHARE: ("5%", "0.05"),
}
BASE_UNITS: Mapping[Dimension, str] = {
    dimension: next((name for name, value in units.items() if value == 1.0), "") for dimension, units in UNITS.items()
}
"""The unit of each dimension in which numbers are held; none for shares."""

_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ%/]*)\s*\Z")


def parse_quantity(value: object, dimension: Dimension) -> float:
    """The number in base units; raises ValueError that says what was expected."""
    expected = f"expected a {dimension} such as {', '.join(EXAMPLES[dimension])}"
    number, unit = _split(value, expected)
    if not unit:
        if dimension is Dimension.SHARE:
            return number
        raise ValueError(f"a {dimension} needs a unit; {expected}")
    factor = UNITS[dimension].get(unit)
    if factor is None:
        raise ValueError(f"unknown unit {unit!r}{_nearest_unit(unit, dimension)}; {expected}")
    return _finite(number * factor, expected)


def parse_any_quantity(value: object) -> float:
    """A plain number, or a quantity of any dimension, in base units; raises ValueError."""
    expected = "expected a number, or a quantity such as 160s, 25% or 3.5 usd/h"
    number, unit = _split(value, expected)
    if not unit:
        return number
    for units in UNITS.values():
        if unit in units:
            return _finite(number * units[unit], expected)
    raise ValueError(f"unknown unit {unit!r}; {expected}")


def _split(value: object, expected: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(expected)
    if not isinstance(value, str):
        return _finite(float(value), expected), ""
    match = _QUANTITY.match(value)
    try:
        number = float(match.group(1)) if match else math.nan
    except ValueError:
        raise ValueError(expected) from None
    return _finite(number, expected), match.group(2) if match else ""


def _finite(number: float, expected: str) -> float:
    if not math.isfinite(number):
        raise ValueError(expected)
    return number


def _nearest_unit(unit: str, dimension: Dimension) -> str:
    close = difflib.get_close_matches(unit.lower(), UNITS[dimension], n=1, cutoff=0.4)
    return f" (did you mean {close[0]!r}?)" if close else ""
