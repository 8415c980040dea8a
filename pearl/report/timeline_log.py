"""The event log as typed facts: every record is understood or refused, in memory and from a file of JSON lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, assert_never

from pearl.core.cluster import Role, Status, Zone
from pearl.core.decision import Outcome
from pearl.core.event import EventKind
from pearl.core.source import Span
from pearl.documents import nearest
from pearl.errors import Fault, InputError
from pearl.report.timeline_data import Because, DecisionMark, Mark, MarkKind, Phase, phase_of
from pearl.sim.log import Happening, Record
from pearl.sim.traces.reading import read_text, shown

EnumT = TypeVar("EnumT", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIs:
    """A worker is in a phase from now on."""

    worker: str
    zone: Zone
    gpus: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker left."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A batch or a training step began."""

    training: bool
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A batch or a training step ended."""

    training: bool
    index: int


Entry = WorkerIs | WorkerGone | Began | Ended | DecisionMark | Mark | None
"""What a picture takes from one record; None where it shows nothing of it."""


def entry_of(record: Record) -> Entry:
    """Read a record; InputError, without a place, where it is not one that the simulator writes."""
    facts = _Facts(record)
    match record.what:
        case Happening.WORKER:
            return _worker(facts)
        case Happening.DECISION:
            return _decision(record.at_s, facts)
        case Happening.BATCH_BEGAN | Happening.TRAINING_BEGAN:
            return Began(training=record.what is Happening.TRAINING_BEGAN, index=facts.count("batch"))
        case Happening.BATCH_ENDED | Happening.TRAINING_ENDED:
            return Ended(training=record.what is Happening.TRAINING_ENDED, index=facts.count("batch"))
        case Happening.EVENT:
            return _event(record.at_s, facts)
        case Happening.GROUP_ROLLED_BACK:
            return Mark(at_s=record.at_s, kind=MarkKind.ROLLED_BACK, workers=facts.texts("workers"))
        case Happening.STEP_BEGAN | Happening.STEP_ENDED | Happening.STEP_DROPPED:
            return None
    assert_never(record.what)


def _worker(facts: _Facts) -> WorkerIs | WorkerGone:
    worker = facts.text("worker")
    if "gone" in facts.data:
        if facts.data["gone"] is not True:
            raise facts.error("gone", "true, or no such key")
        return WorkerGone(worker=worker)
    phase = phase_of(facts.one_of(Role, "role"), facts.one_of(Status, "status"))
    return WorkerIs(worker=worker, zone=facts.one_of(Zone, "zone"), gpus=facts.count("gpus"), phase=phase)


def _decision(at_s: float, facts: _Facts) -> DecisionMark:
    return DecisionMark(
        at_s=at_s,
        event=facts.one_of(EventKind, "event"),
        outcome=facts.one_of(Outcome, "outcome"),
        configuration=facts.text("configuration"),
        borrowed=facts.count("borrowed"),
        predicted_s=None if facts.get("predicted_s") is None else facts.number("predicted_s"),
        steps=facts.count("steps"),
        reasons=facts.reasons("reasons"),
    )


def _event(at_s: float, facts: _Facts) -> Mark | None:
    workers = facts.texts("workers")
    match facts.one_of(EventKind, "kind"):
        case EventKind.RECLAIM_NOTICE:
            return Mark(at_s=at_s, kind=MarkKind.RECLAIM_NOTICE, workers=workers)
        case EventKind.GPUS_LOST:
            return Mark(at_s=at_s, kind=MarkKind.GPUS_LOST, workers=workers)
        case _:
            return None


class _Facts:
    """Typed access to the data of a record."""

    def __init__(self, record: Record) -> None:
        if not isinstance(record.what, Happening):
            raise InputError(_unknown(record.what))
        if not math.isfinite(record.at_s) or record.at_s < 0:
            raise InputError(Fault(message=f"at_s is {record.at_s!r}", expected="seconds from the start, not below 0"))
        self.what = record.what
        self.data = record.data

    def error(self, key: str, expected: str) -> InputError:
        return InputError(
            Fault(message=f"{key!r} of the {self.what} record is {shown(self.data.get(key))}", expected=expected)
        )

    def get(self, key: str) -> object:
        if key not in self.data:
            raise self.error(key, f"a record with {key!r}")
        return self.data[key]

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, "text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.get(key)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "a list of worker ids")
        return tuple(value)

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, "a finite number")
        return float(value)

    def count(self, key: str) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, "a whole number, not below 0")
        return value

    def one_of(self, kinds: type[EnumT], key: str) -> EnumT:
        value = self.get(key)
        known = [kind.value for kind in kinds]
        if value not in known:
            raise self.error(key, f"one of {', '.join(known)}")
        return kinds(value)

    def reasons(self, key: str) -> tuple[Because, ...]:
        value = self.get(key)
        if not isinstance(value, list | tuple):
            raise self.error(key, "a list of reasons")
        return tuple(self._reason(key, item) for item in value)

    def _reason(self, key: str, item: object) -> Because:
        match item:
            case {"code": str(code), "text": str(text)}:
                return Because(code=code, text=text)
            case _:
                raise self.error(key, "reasons with a code and a text")


def read_log(path: Path) -> tuple[Record, ...]:
    """Read a file of JSON lines as `pearl.sim.log.to_jsonl` writes it: one record a line, no line left out.

    Raises InputError, with file, line and column, for the first line that is not a record of a known kind. What the
    data of each record must hold is checked by `pearl.report.timeline.timeline_of`.
    """
    source = read_text(path)
    records = []
    lines = source.text.removesuffix("\n").split("\n") if source.text else []
    for number, line in enumerate(lines, start=1):
        data = dict(source.mapping(number, "a record", source.json(number, line)))
        at_s = source.number(number, "at_s", data.pop("at_s", None))
        what = data.pop("what", None)
        if what not in list(Happening):
            raise InputError(_at(Span(file=source.file, line=number), _unknown(what)))
        records.append(Record(at_s=at_s, what=Happening(what), data=data))
    return tuple(records)


def placed(error: InputError, index: int, record: Record, file: str | None) -> InputError:
    """The error of a record with its place: the line of the file, or which record of the log it is."""
    if file is not None:
        return InputError([_at(Span(file=file, line=index + 1), fault) for fault in error.faults])
    where = f"record {index + 1} of the log, at {record.at_s:g} s"
    return InputError([Fault(message=f"{where}: {f.message}", expected=f.expected, hint=f.hint) for f in error.faults])


def _at(span: Span, fault: Fault) -> Fault:
    return Fault(message=fault.message, span=span, expected=fault.expected, hint=fault.hint)


def _unknown(what: object) -> Fault:
    known: Mapping[str, Happening] = {kind.value: kind for kind in Happening}
    if what is None:
        return Fault(message="'what' is missing", expected=f"one of {', '.join(known)}")
    return Fault(message=f"unknown record {shown(what)}", hint=nearest(str(what), known))
