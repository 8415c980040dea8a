"""Tables of measured step times, as the profiler writes them, read into plain records.

The file maps a model to `pre` {new: [ms, GiB]}, `pfx` {"cached+new": ms} and `dec` {"context/batch": [ms, GiB]}, where
context is per sequence and GiB is the memory in use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.errors import Fault, InputError

MIN_POINTS = 4
"""The largest number of coefficients that are fitted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPoint:
    """One measured prefill: `new_tokens` after `cached_tokens`."""

    new_tokens: int
    cached_tokens: int
    seconds: float
    memory_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """One measured decode step: `batch` sequences with `context_tokens` in all."""

    batch: int
    context_tokens: int
    seconds: float
    memory_gib: float


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Everything measured of one model on one GPU type."""

    model: str
    source: str
    prefill: tuple[PrefillPoint, ...]
    decode: tuple[DecodePoint, ...]

    @property
    def points(self) -> int:
        """Rows of the table."""
        return len(self.prefill) + len(self.decode)


def read_step_times(path: Path) -> dict[str, StepTimes]:
    """Tables by model; raises InputError where the file is not such a table."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(Fault(message=f"cannot read {path}: {e.strerror or e}", hint="check the path")) from None
    except (ValueError, RecursionError) as e:
        raise InputError(Fault(message=f"{path}: not JSON: {e}")) from None
    if not isinstance(data, dict) or not data:
        raise InputError(Fault(message=f"{path}: no tables", expected="a mapping from model to its step times"))
    return {model: _table(model, table, path) for model, table in data.items()}


def _table(model: str, table: Any, path: Path) -> StepTimes:
    try:
        return _checked(StepTimes(model=model, source=path.name, prefill=_prefill(table), decode=_decode(table)))
    except (KeyError, TypeError, ValueError, IndexError) as e:
        expected = 'pre {new: [ms, GiB]}, pfx {"cached+new": ms}, dec {"context/batch": [ms, GiB]}'
        message = f"{path}: {model}: not a step-time table: {type(e).__name__} {e}"
        raise InputError(Fault(message=message, expected=expected)) from None


def _checked(table: StepTimes) -> StepTimes:
    """The table; ValueError where a formula or a line through its memory has more unknowns than it has points."""
    lengths = {point.new_tokens for point in table.prefill if point.memory_gib is not None}
    contexts = {point.context_tokens for point in table.decode}
    if min(len(table.prefill), len(table.decode)) < MIN_POINTS or min(len(lengths), len(contexts)) < 2:
        raise ValueError(f"too few points; a fit needs {MIN_POINTS} of each kind, at two lengths or more")
    return table


def _prefill(table: Mapping[str, Mapping[str, Any]]) -> tuple[PrefillPoint, ...]:
    points = {
        (0, int(new)): PrefillPoint(
            new_tokens=int(new), cached_tokens=0, seconds=_seconds(row[0]), memory_gib=_gib(row[1])
        )
        for new, row in table["pre"].items()
    }
    for key, ms in table["pfx"].items():
        cached, new = _pair(key, "+")
        points.setdefault((cached, new), PrefillPoint(new_tokens=new, cached_tokens=cached, seconds=_seconds(ms)))
    return tuple(points[key] for key in sorted(points))


def _decode(table: Mapping[str, Mapping[str, Any]]) -> tuple[DecodePoint, ...]:
    points = []
    for key, row in table["dec"].items():
        context, batch = _pair(key, "/")
        points.append(
            DecodePoint(batch=batch, context_tokens=batch * context, seconds=_seconds(row[0]), memory_gib=_gib(row[1]))
        )
    return tuple(sorted(points, key=lambda point: (point.context_tokens, point.batch)))


def _pair(key: str, separator: str) -> tuple[int, int]:
    left, right = key.split(separator)
    return int(left), int(right)


def _seconds(ms: Any) -> float:
    seconds = float(ms) / 1e3
    if not 0 < seconds < 1e6:
        raise ValueError(f"{ms!r} is no step time in milliseconds")
    return seconds


def _gib(value: Any) -> float:
    gib = float(value)
    if not 0 <= gib < 1e6:
        raise ValueError(f"{value!r} is no memory in GiB")
    return gib
