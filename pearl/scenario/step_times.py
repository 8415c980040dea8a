"""Tables of measured step times, as the profiler writes them, read into plain records.

The file maps a model to `pre` {new: [ms, GiB]}, `pfx` {"cached+new": ms} and `dec` {"context/batch": [ms, GiB]}, where
context is per sequence and GiB is the memory in use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.core.source import Span
from pearl.errors import Fault, InputError
from pearl.scenario.json_keys import KeyPath, key_places

MIN_POINTS = 4
"""The largest number of coefficients that are fitted together."""

MIN_MS, MAX_MS = 1e-3, 1e9
"""Below a microsecond no kernel starts; above a million seconds no step ends."""
MAX_GIB = 1e6
"""A thousand times the memory of the largest GPU."""
MAX_TOKENS = 10_000_000
"""The longest context of a scenario."""
_FORM = 'pre {new: [ms, GiB]}, pfx {"cached+new": ms}, dec {"context/batch": [ms, GiB]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyForm:
    """How a kind of rows writes its keys."""

    name: str
    pattern: re.Pattern[str]
    least: tuple[int, ...]
    """Smallest value of each number."""
    expected: str


_LENGTH = _KeyForm(
    name="number of tokens", pattern=re.compile("([0-9]{1,8})"), least=(1,), expected='a whole number such as "2048"'
)
_PREFIX = _KeyForm(
    name="prefill after cached tokens",
    pattern=re.compile(r"([0-9]{1,8})\+([0-9]{1,8})"),
    least=(0, 1),
    expected='"cached+new" tokens such as "4096+512"',
)
_DECODE = _KeyForm(
    name="decode step",
    pattern=re.compile("([0-9]{1,8})/([0-9]{1,8})"),
    least=(1, 1),
    expected='"context/batch" such as "1024/64"',
)


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
    """Tables by model; raises InputError with every fault, each at its place, where the file is not such a table."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as e:
        raise InputError(Fault(message=f"cannot read {path}: {e.strerror or e}", hint="check the path")) from None
    except (ValueError, RecursionError) as e:
        raise InputError(Fault(message=f"{path}: not JSON: {e}")) from None
    if not isinstance(data, dict) or not data:
        raise InputError(Fault(message=f"{path}: no tables", expected="a mapping from model to its step times"))
    places, faults = key_places(text, str(path))
    if faults:
        raise InputError(faults)
    readers = {model: _TableReader(model, table, places, faults) for model, table in data.items()}
    tables = {model: reader.table(source=path.name) for model, reader in readers.items()}
    if faults:
        raise InputError(sorted(faults, key=lambda fault: fault.span or Span(file=str(path), line=1)))
    return tables


class _TableReader:
    """Reads one model's table; what is wrong with it joins the faults, with its place."""

    def __init__(self, model: str, table: Any, places: Mapping[KeyPath, Span], faults: list[Fault]) -> None:
        self._model = model
        self._table = table
        self._places = places
        self._faults = faults

    def table(self, *, source: str) -> StepTimes:
        """The points that hold."""
        if not isinstance(self._table, dict):
            self._fault((), f"{self._model}: not a step-time table", expected=_FORM)
            return StepTimes(model=self._model, source=source, prefill=(), decode=())
        before = len(self._faults)
        table = StepTimes(model=self._model, source=source, prefill=self._prefill(), decode=self._decode())
        if len(self._faults) == before and (missing := _missing(table)):
            self._fault((), f"{self._model}: {missing}")
        return table

    def _prefill(self) -> tuple[PrefillPoint, ...]:
        points: dict[tuple[int, int], PrefillPoint] = {}
        for key, row in self._rows("pre"):
            new, timed = self._key("pre", key, _LENGTH), self._timed("pre", key, row)
            if new and timed:
                points[0, new[0]] = PrefillPoint(
                    new_tokens=new[0], cached_tokens=0, seconds=timed[0], memory_gib=timed[1]
                )
        for key, ms in self._rows("pfx"):
            pair, seconds = self._key("pfx", key, _PREFIX), self._seconds("pfx", key, ms)
            if pair and seconds:
                cached, new_tokens = pair
                point = PrefillPoint(new_tokens=new_tokens, cached_tokens=cached, seconds=seconds)
                points.setdefault((cached, new_tokens), point)
        return tuple(points[key] for key in sorted(points))

    def _decode(self) -> tuple[DecodePoint, ...]:
        points = []
        for key, row in self._rows("dec"):
            pair, timed = self._key("dec", key, _DECODE), self._timed("dec", key, row)
            if pair and timed:
                (context, batch), (seconds, gib) = pair, timed
                points.append(DecodePoint(batch=batch, context_tokens=batch * context, seconds=seconds, memory_gib=gib))
        return tuple(sorted(points, key=lambda point: (point.context_tokens, point.batch)))

    def _rows(self, kind: str) -> Iterable[tuple[str, Any]]:
        rows = self._table.get(kind)
        if isinstance(rows, dict):
            return rows.items()
        self._fault((kind,), f"{self._model}: not a step-time table: no mapping {kind!r}", expected=_FORM)
        return ()

    def _key(self, kind: str, key: str, form: _KeyForm) -> tuple[int, ...]:
        """The key's numbers; none where it is not of its form."""
        found = form.pattern.fullmatch(key)
        numbers = tuple(map(int, found.groups())) if found else ()
        if not numbers or not all(least <= n <= MAX_TOKENS for n, least in zip(numbers, form.least, strict=True)):
            self._fault((kind, key), f"{_short(key)} is no {form.name}", expected=form.expected)
            return ()
        return numbers

    def _timed(self, kind: str, key: str, row: Any) -> tuple[float, float] | None:
        if not isinstance(row, list) or len(row) != 2:
            self._fault((kind, key), f"{_short(row)} is no row of {kind}", expected="[ms, GiB]")
            return None
        seconds, gib = self._seconds(kind, key, row[0]), row[1]
        if not _is_number(gib) or not 0 <= gib <= MAX_GIB:
            self._fault((kind, key), f"{_short(gib)} is no memory in GiB", expected=f"a number from 0 to {MAX_GIB:g}")
            return None
        return (seconds, float(gib)) if seconds else None

    def _seconds(self, kind: str, key: str, ms: Any) -> float:
        """The time; 0 where it is none."""
        if _is_number(ms) and MIN_MS <= ms <= MAX_MS:
            return float(ms) / 1e3
        message = f"{_short(ms)} is no step time in milliseconds"
        self._fault((kind, key), message, expected=f"a number from {MIN_MS:g} to {MAX_MS:g}")
        return 0.0

    def _fault(self, below: KeyPath, message: str, *, expected: str | None = None) -> None:
        path = (self._model, *below)
        while path not in self._places and len(path) > 1:
            path = path[:-1]
        self._faults.append(Fault(message=message, span=self._places.get(path), expected=expected))


def _missing(table: StepTimes) -> str | None:
    """What a fit lacks: a formula, or a line through the memory, may not have more unknowns than it has points."""
    lengths = {point.new_tokens for point in table.prefill if point.memory_gib is not None}
    contexts = {point.context_tokens for point in table.decode}
    if min(len(table.prefill), len(table.decode)) < MIN_POINTS or min(len(lengths), len(contexts)) < 2:
        return f"too few points; a fit needs {MIN_POINTS} of each kind, at two lengths or more"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any, limit: int = 40) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
