"""The controller's store: state, events, decisions, plans, their progress, telemetry and answers, in one SQLite file.

A write is one transaction and is committed when `write` returns, so that what is answered afterwards survives the death
of the process at any moment (WAL with `synchronous=NORMAL`: a power failure may cost the last writes). Once a write
failed, every later one is refused: nothing may be accepted any more, since it would not survive. Growth is bounded by
the counts in `KEPT`; the oldest rows go first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, assert_never

from pydantic import TypeAdapter

from pearl.errors import PearlError
from pearl.live.control.documents import Document, compact
from pearl.live.database import Content, Database

KEPT: Mapping[str, int] = {
    "events": 100_000,
    "decisions": 10_000,
    "plans": 10_000,
    "telemetry": 500_000,
    "answers": 10_000,
}
"""Rows kept of each table: some weeks of a lively job, and about 300 MB at most. Progress goes with its plan."""
PRUNE_EVERY = 256
"""Rows of a table between two prunings: rare enough to cost nothing, often enough to stay near `KEPT`."""
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
    number INTEGER PRIMARY KEY, at_unix_s REAL NOT NULL, kind TEXT NOT NULL, workers TEXT NOT NULL,
    data TEXT NOT NULL, key TEXT UNIQUE
);
CREATE TABLE decisions (number INTEGER PRIMARY KEY, at_unix_s REAL NOT NULL, event INTEGER, document TEXT NOT NULL);
CREATE TABLE plans (number INTEGER PRIMARY KEY, at_unix_s REAL NOT NULL, decision INTEGER, document TEXT NOT NULL);
CREATE TABLE progress (
    plan INTEGER NOT NULL, step INTEGER NOT NULL, phase TEXT NOT NULL, at_unix_s REAL NOT NULL, seconds REAL NOT NULL,
    because TEXT NOT NULL, PRIMARY KEY (plan, step, phase)
) WITHOUT ROWID;
CREATE TABLE telemetry (number INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT NOT NULL);
CREATE TABLE answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, call TEXT NOT NULL, status INTEGER NOT NULL,
    body TEXT NOT NULL
);
"""


T = TypeVar("T")


class StoreError(PearlError):
    """The store cannot be opened, read or written."""


CONTENT = Content(
    owner="controller",
    name="store",
    schema=_SCHEMA,
    version=1,
    error=StoreError,
    if_damaged="put the file's copy back, or give a new --state: workers that live are then stopped, and start anew",
)
understood = CONTENT.understood


class Fact(StrEnum):
    """What the store keeps one document of."""

    RECORD = "record"
    """The ledger's record."""
    TRAINING = "training"
    BATCH = "batch"
    WEIGHTS = "weights"
    """Version and directory of the newest weights."""
    POLICY = "policy"
    """A policy that was set while running, and the one it took the place of."""
    DRAINS = "drains"
    """Workers that an operator drains."""
    LEASE = "lease"
    """Newest term of the controller's lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFact:
    """A fact is `document` now, JSON."""

    fact: Fact
    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddEvent:
    """An event was accepted."""

    number: int
    at_unix_s: float
    kind: str
    workers: tuple[str, ...]
    data: Document
    key: str | None = None
    """Idempotency key of whoever raised it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddDecision:
    """A decision was taken; `event` is the number of the event that it answers."""

    number: int
    at_unix_s: float
    event: int | None
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPlan:
    """A plan is about to be carried out; `document` is `pearl.planning.plan_to_dict`."""

    number: int
    at_unix_s: float
    decision: int | None
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class AddProgress:
    """A step of a plan came to a phase. The same phase of a step counts once."""

    plan: int
    step: int
    phase: str
    at_unix_s: float
    seconds: float
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTelemetry:
    """A telemetry record, as a line of `pearl.tracking.jsonl`."""

    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAnswer:
    """A call with an idempotency key was answered; only the first answer counts."""

    key: str
    call: str
    """Route and body, which a repetition must share."""
    status: int
    body: str


Entry = SetFact | AddEvent | AddDecision | AddPlan | AddProgress | AddTelemetry | AddAnswer


class ControlStore:
    """The SQLite file; one process owns it until it ends."""

    def __init__(self, path: Path | None, *, create: bool = True) -> None:
        """Open the file, or create it where `create` is given, or make a store in memory for None.

        Raises `StoreError`; a file that is something else's is left as it is.
        """
        self.path = path
        self.failure: StoreError | None = None
        """Set once a write failed."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called then."""
        self._db = Database(path, CONTENT, create=create)

    def write(self, *entries: Entry) -> None:
        """Commit all entries, or none. Raises `StoreError`, also where an earlier write failed."""
        if self.failure:
            raise self.failure
        try:
            with self._db.transaction():
                for entry in entries:
                    self._write(entry)
        except StoreError as e:
            self.failure = e
            self.on_failure()
            raise

    def _write(self, entry: Entry) -> None:
        match entry:
            case SetFact():
                self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (entry.fact.value, entry.document))
            case AddEvent():
                workers, data = compact(entry.workers), compact(entry.data)
                change = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)"
                self._insert("events", change, entry.number, entry.at_unix_s, entry.kind, workers, data, entry.key)
            case AddDecision():
                change, text = "INSERT INTO decisions VALUES (?, ?, ?, ?)", compact(entry.document)
                self._insert("decisions", change, entry.number, entry.at_unix_s, entry.event, text)
            case AddPlan():
                change, text = "INSERT INTO plans VALUES (?, ?, ?, ?)", compact(entry.document)
                self._insert("plans", change, entry.number, entry.at_unix_s, entry.decision, text)
            case AddProgress():
                values = (entry.plan, entry.step, entry.phase, entry.at_unix_s, entry.seconds, entry.because)
                self._db.execute("INSERT OR IGNORE INTO progress VALUES (?, ?, ?, ?, ?, ?)", values)
            case AddTelemetry():
                self._insert("telemetry", "INSERT INTO telemetry (line) VALUES (?)", entry.line)
            case AddAnswer():
                change = "INSERT OR IGNORE INTO answers (key, call, status, body) VALUES (?, ?, ?, ?)"
                self._insert("answers", change, entry.key, entry.call, entry.status, entry.body)
            case _:
                assert_never(entry)

    def _insert(self, table: str, change: str, *values: object) -> None:
        number = self._db.execute(change, values).lastrowid or 0
        if number % PRUNE_EVERY:
            return
        oldest = number - KEPT[table]
        self._db.execute(f"DELETE FROM {table} WHERE number <= ?", (oldest,))
        if table == "plans":
            self._db.execute("DELETE FROM progress WHERE plan <= ?", (oldest,))

    def fact(self, fact: Fact) -> str | None:
        """The document of a fact, JSON; None where there is none."""
        rows = self._db.read("SELECT document FROM meta WHERE name = ?", fact.value)
        return str(rows[0][0]) if rows else None

    def fact_as(self, fact: Fact, kind: type[T]) -> T | None:
        """A fact as what it was before it was written; None where there is none. Raises `StoreError`."""
        text = self.fact(fact)
        if text is None:
            return None
        with understood(f"fact {fact.value!r}"):
            return TypeAdapter(kind).validate_json(text)

    def last(self, table: str) -> int:
        """The newest number of `events`, `decisions` or `plans`; 0 where there is none."""
        return int(self._db.read(f"SELECT coalesce(max(number), 0) FROM {table}")[0][0])

    def event_by_key(self, key: str) -> int | None:
        """The number of the event that was raised under `key`."""
        rows = self._db.read("SELECT number FROM events WHERE key = ?", key)
        return int(rows[0][0]) if rows else None

    def events(self, *, after: int, limit: int) -> list[AddEvent]:
        """The first `limit` events past number `after`, in order."""
        query = (
            "SELECT number, at_unix_s, kind, workers, data, key FROM events WHERE number > ? ORDER BY number LIMIT ?"
        )
        return [_event(row) for row in self._db.read(query, after, limit)]

    def count_events(self, kind: str, *, after: int) -> int:
        """The number of events of a kind past number `after`."""
        return int(self._db.read("SELECT count(*) FROM events WHERE number > ? AND kind = ?", after, kind)[0][0])

    def decisions(self, *, limit: int, after: int = 0) -> list[AddDecision]:
        """The newest `limit` decisions past number `after`, oldest first."""
        query = "SELECT number, at_unix_s, event, document FROM decisions WHERE number > ? ORDER BY number DESC LIMIT ?"
        return [_decision(row) for row in reversed(self._db.read(query, after, limit))]

    def decision(self, number: int) -> AddDecision | None:
        """That decision."""
        rows = self._db.read("SELECT number, at_unix_s, event, document FROM decisions WHERE number = ?", number)
        return _decision(rows[0]) if rows else None

    def plans(self, *, limit: int) -> list[AddPlan]:
        """The newest `limit` plans, oldest first."""
        query = "SELECT number, at_unix_s, decision, document FROM plans ORDER BY number DESC LIMIT ?"
        return [_plan(row) for row in reversed(self._db.read(query, limit))]

    def plan(self, number: int) -> AddPlan | None:
        """That plan."""
        rows = self._db.read("SELECT number, at_unix_s, decision, document FROM plans WHERE number = ?", number)
        return _plan(rows[0]) if rows else None

    def progress(self, plan: int) -> list[AddProgress]:
        """How far a plan's steps came, in order of step and time."""
        query = (
            "SELECT plan, step, phase, at_unix_s, seconds, because FROM progress WHERE plan = ?"
            " ORDER BY step, at_unix_s, phase"
        )
        names = ("plan", "step", "phase", "at_unix_s", "seconds", "because")
        return [AddProgress(**dict(zip(names, row, strict=True))) for row in self._db.read(query, plan)]

    def telemetry(self) -> list[str]:
        """Every telemetry line that is kept, in order."""
        return [str(line) for (line,) in self._db.read("SELECT line FROM telemetry ORDER BY number")]

    def answer(self, key: str) -> AddAnswer | None:
        """What a call under `key` was answered."""
        rows = self._db.read("SELECT key, call, status, body FROM answers WHERE key = ?", key)
        return AddAnswer(**dict(zip(("key", "call", "status", "body"), rows[0], strict=True))) if rows else None

    def close(self) -> None:
        """Release the file."""
        self._db.close()


def _event(row: Sequence[Any]) -> AddEvent:
    number, at_unix_s, kind, workers, data, key = row
    with understood(f"event {number}"):
        names = tuple(str(name) for name in json.loads(workers))
        return AddEvent(
            number=number, at_unix_s=float(at_unix_s), kind=str(kind), workers=names, data=_document(data), key=key
        )


def _decision(row: Sequence[Any]) -> AddDecision:
    number, at_unix_s, event, document = row
    with understood(f"decision {number}"):
        return AddDecision(number=number, at_unix_s=float(at_unix_s), event=event, document=_document(document))


def _plan(row: Sequence[Any]) -> AddPlan:
    number, at_unix_s, decision, document = row
    with understood(f"plan {number}"):
        plan = AddPlan(number=number, at_unix_s=float(at_unix_s), decision=decision, document=_document(document))
        for step in plan.document["steps"]:
            step["kind"]
        return plan


def _document(text: str) -> Document:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError("no JSON object")
    return document
