"""Telemetry as JSON lines: one record a line, `record` names its kind, the other keys are its fields.

docs/tracking.md lists the fields. Unknown, missing and ill-typed keys are faults at their line; blank lines and lines
that begin with `#` are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, cast, get_args, get_origin, get_type_hints

from pearl.core.source import Span
from pearl.core.telemetry import (
    ArrivalRecord,
    BatchRecord,
    EngineRecord,
    StepRecord,
    Telemetry,
    TransitionRecord,
    TurnRecord,
)
from pearl.documents import nearest
from pearl.errors import Fault, InputError

KINDS: Mapping[str, type[Telemetry]] = {
    "arrival": ArrivalRecord,
    "turn": TurnRecord,
    "step": StepRecord,
    "batch": BatchRecord,
    "transition": TransitionRecord,
    "engine": EngineRecord,
}
"""Kinds of record by the name in `record`."""
MAX_BYTES = 1 << 30
"""Ten million engine steps take 1 GiB; past this the file is something else."""
MAX_FAULTS = 20
"""Faults shown of one file: the rest repeats them."""
MAX_NUMBER = 1e15
"""No count or time comes near; past this a value is garbled."""
_POSITIVE = frozenset({"seconds", "measured_s", "predicted_s", "kv_tokens", "kv_bytes_per_token", "output_tokens"})
"""Fields whose 0 says that nothing was measured; a transition alone may take no time."""


def read_telemetry(path: Path) -> tuple[Telemetry, ...]:
    """Every record of a file, in its order; raises InputError with file and line of up to `MAX_FAULTS` faults."""
    try:
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise InputError(Fault(message=f"{path}: file is larger than {MAX_BYTES} bytes"))
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise InputError(Fault(message=f"cannot read {path}: {e.strerror or e}", hint="check the path")) from None
    except UnicodeDecodeError:
        raise InputError(Fault(message=f"{path}: not UTF-8 text", expected="telemetry as JSON lines")) from None
    return parse_telemetry(text, file=str(path))


def parse_telemetry(text: str, *, file: str) -> tuple[Telemetry, ...]:
    """As `read_telemetry`, from text."""
    records: list[Telemetry] = []
    faults: list[Fault] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            records.append(_record(line))
        except _LineError as e:
            span = Span(file=file, line=number, column=e.column)
            faults.append(Fault(message=str(e), span=span, expected=e.expected, hint=e.hint))
            if len(faults) == MAX_FAULTS:
                break
    if faults:
        raise InputError(faults)
    return tuple(records)


def telemetry_lines(records: Iterable[Telemetry]) -> Iterator[str]:
    """One JSON line for each record, newline included; reading them back gives the same records."""
    names = {cls: name for name, cls in KINDS.items()}
    for record in records:
        data = {"record": names[type(record)], **asdict(record)}
        yield json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"


class _LineError(Exception):
    """A fault of one line."""

    def __init__(self, message: str, *, expected: str | None = None, hint: str | None = None, column: int = 1) -> None:
        super().__init__(message)
        self.expected, self.hint, self.column = expected, hint, column


def _record(line: str) -> Telemetry:
    data = _parsed(line)
    if not isinstance(data, dict):
        raise _LineError("not a record", expected="a JSON object")
    name = data.pop("record", None)
    if not isinstance(name, str) or name not in KINDS:
        hint = nearest(name, KINDS) if isinstance(name, str) else None
        raise _LineError(f"unknown record {_short(name)}", expected=f"one of {', '.join(KINDS)}", hint=hint)
    record = cast(Telemetry, _built(KINDS[name], data, name))
    if isinstance(record, StepRecord) and not (record.batch or record.prompts):
        raise _LineError("step: neither decodes nor prefills", expected="batch or prompts above 0")
    return record


def _parsed(line: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_unique, parse_constant=_not_finite)
    except json.JSONDecodeError as e:
        raise _LineError(f"not valid JSON: {e.msg}", column=e.colno, hint="is the file complete?") from None
    except (RecursionError, ValueError) as e:
        raise _LineError(f"not valid JSON: {e}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise _LineError(f"duplicate key {twice!r}")
    return found


def _not_finite(name: str) -> NoReturn:
    raise _LineError(f"{name} is not a number", expected="a finite number")


@cache
def _types(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _built(cls: type, data: Mapping[str, Any], where: str) -> object:
    known = _types(cls)
    for key in data:
        if key not in known:
            raise _LineError(f"{where}: unknown key {_short(key)}", hint=nearest(key, known))
    assert is_dataclass(cls)
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in needed if name not in data]:
        raise _LineError(f"{where}: {', '.join(missing)} missing")
    return cls(**{key: _value(known[key], value, f"{where}.{key}") for key, value in data.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    """`value` as the field's type; a fault where it is another."""
    if isinstance(kind, UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        return None if value is None else _value(options[0], value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _LineError(f"{where} is {_short(value)}", expected="a list")
        return tuple(_value(get_args(kind)[0], item, where) for item in value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _member(kind, value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise _LineError(f"{where} is {_short(value)}", expected="a JSON object")
        return _built(kind, value, where)
    if kind in (str, bool):
        if not isinstance(value, kind):
            raise _LineError(f"{where} is {_short(value)}", expected="text" if kind is str else "true or false")
        return value
    return _number(kind, value, where)


def _member(kind: type[StrEnum], value: Any, where: str) -> StrEnum:
    names = [str(member) for member in kind]
    if value not in names:
        raise _LineError(f"{where} is {_short(value)}", expected=f"one of {', '.join(names)}")
    return kind(value)


def _number(kind: type, value: Any, where: str) -> Any:
    whole = kind is int
    good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    least = "above 0" if where.rsplit(".", 1)[1] in _POSITIVE and where != "transition.seconds" else "from 0"
    # Also refuses NaN, which compares as false, and compares a whole number of any length without making it a float.
    if not good or not 0 <= value <= MAX_NUMBER or (value == 0 and least != "from 0"):
        raise _LineError(f"{where} is {_short(value)}", expected=f"a {'whole ' if whole else ''}number {least}")
    return kind(value)


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
