"""Reading trace files: text with line numbers, JSON and numbers, each fault with its place."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pearl.core.source import Span
from pearl.errors import Fault, InputError

MAX_BYTES = 256 << 20
"""The largest public trace of these formats takes 60 MiB; past this the file is something else."""
MAX_SECONDS = 10 * 366 * 86_400.0
"""Ten years: a time past this is in another unit, or garbled."""
MAX_TOKENS = 1 << 30
"""No context comes near a billion tokens."""

_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?")
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class TraceText:
    """A file's name and its text."""

    file: str
    text: str

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers from 1; blank ones and those that begin with `#` left out."""
        for number, line in enumerate(self.text.split("\n"), start=1):
            stripped = line.strip()
            if stripped and not stripped.startswith("#"):
                yield number, stripped

    def error(self, line: int, message: str, *, expected: str | None = None, hint: str | None = None) -> InputError:
        """The error of a fault at a line, to be raised."""
        span = Span(file=self.file, line=line)
        return InputError(Fault(message=message, span=span, expected=expected, hint=hint))

    def fields(self, line: int, row: str, columns: tuple[str, ...]) -> list[str]:
        """The row's comma-separated cells, one for each of `columns`; else InputError."""
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) != len(columns):
            raise self.error(
                line, f"{len(cells)} columns: {shown(row)}", expected=f"{len(columns)}: {','.join(columns)}"
            )
        return cells

    def number(self, line: int, name: str, value: object, *, high: float = MAX_SECONDS) -> float:
        """A finite number from 0 to `high`, from a JSON value or a cell's text; else InputError."""
        number = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0 <= number <= high:
            raise self.error(line, f"{name} is {shown(value)}", expected=f"a number from 0 to {high:g}")
        return float(number)

    def whole(self, line: int, name: str, value: object, *, high: int = MAX_TOKENS) -> int:
        """A whole number from 0 to `high`; else InputError."""
        number = self.number(line, name, value, high=high)
        if not number.is_integer():
            raise self.error(line, f"{name} is {shown(value)}", expected="a whole number")
        return int(number)

    def json(self, line: int, text: str) -> Any:
        """Parse JSON that begins at `line`; faults of the syntax, NaN and infinities raise InputError."""
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as e:
            span = Span(file=self.file, line=line + e.lineno - 1, column=e.colno)
            hint = "is the file complete?" if e.pos >= len(text.rstrip()) - 1 else None
            raise InputError(Fault(message=f"not valid JSON: {e.msg}", span=span, hint=hint)) from None
        except RecursionError:
            raise self.error(line, "JSON nested too deeply") from None
        except ValueError as e:
            raise self.error(line, f"not valid JSON: {e}") from None

    def mapping(self, line: int, name: str, value: object) -> Mapping[str, Any]:
        """A JSON object; else InputError."""
        if not isinstance(value, dict):
            raise self.error(line, f"{name} is {shown(value)}", expected="a JSON object")
        return value

    def sequence(self, line: int, name: str, value: object) -> list[Any]:
        """A JSON array; else InputError."""
        if not isinstance(value, list):
            raise self.error(line, f"{name} is {shown(value)}", expected="a JSON array")
        return value


def read_text(path: Path) -> TraceText:
    """Read a trace file; InputError when it cannot be read, is too large or is not UTF-8."""
    name = str(path)
    try:
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise InputError(Fault(message=f"{name}: file is larger than {MAX_BYTES} bytes"))
        raw = path.read_bytes()
    except OSError as e:
        raise InputError(Fault(message=f"cannot read {name}: {e.strerror or e}", hint="check the path")) from None
    except ValueError as e:
        raise InputError(Fault(message=f"cannot read {name!r}: {e}")) from None
    try:
        return TraceText(file=name, text=raw.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        span = Span(file=name, line=raw[: e.start].count(b"\n") + 1)
        raise InputError(Fault(message="not UTF-8 text", span=span, expected="a trace in plain text")) from None


def shown(value: object) -> str:
    """A value as a message shows it: `missing` where absent, cut where long."""
    if value is None:
        return "missing"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "a huge number"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
