"""The journal: accepted requests, their tokens so far, how each ended, and the pool, in one SQLite file.

Writes are grouped into transactions, one per turn of the event loop at most, and an entry's callback runs once it is
committed, so nothing need be shown to a client before it would survive. WAL with `synchronous=NORMAL` survives the
death of the process at any moment (a power failure may cost the last entries) and waits for the disk at checkpoints
alone. A commit of one entry takes some 50 to 100 µs, less than handing it to a thread and back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from pydantic_core import from_json, to_json

from pearl.errors import PearlError
from pearl.live.database import Content, Database

PRUNE_AT_ONCE = 200
"""Requests forgotten in one transaction, so that nobody waits for it long."""
_SCHEMA = """
CREATE TABLE requests (
    id TEXT PRIMARY KEY, call TEXT NOT NULL, accepted_unix_s REAL NOT NULL, ending TEXT, ended_unix_s REAL
) WITHOUT ROWID;
CREATE INDEX unfinished ON requests (accepted_unix_s) WHERE ending IS NULL;
CREATE INDEX finished ON requests (ended_unix_s) WHERE ending IS NOT NULL;
CREATE TABLE segments (
    request TEXT NOT NULL, start INTEGER NOT NULL, token_ids TEXT NOT NULL, logprobs TEXT NOT NULL,
    weight_version INTEGER NOT NULL, PRIMARY KEY (request, start)
) WITHOUT ROWID;
CREATE TABLE pool (one INTEGER PRIMARY KEY CHECK (one = 1), document TEXT NOT NULL);
"""


class JournalError(PearlError):
    """The journal cannot be opened, read or written."""


CONTENT = Content(
    owner="router",
    name="journal",
    schema=_SCHEMA,
    version=1,
    error=JournalError,
    if_damaged="put the file's copy back, or remove it: requests that were open in it are lost then",
)
understood = CONTENT.understood


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """A request was accepted; `call` is its JSON. Accepting an id twice keeps the first."""

    id: str
    call: str
    accepted_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A request got tokens, from index `start` on."""

    id: str
    start: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A request ended; `ending` is JSON that says how. Only the first end counts."""

    id: str
    ending: str
    ended_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPool:
    """The pool changed to `document`, JSON."""

    document: str


Entry = Accept | Append | End | SetPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All that is known of a request."""

    id: str
    call: str
    accepted_unix_s: float
    ending: str | None
    segments: tuple[Append, ...] = ()


class Store:
    """The SQLite file; one process owns it until it ends."""

    def __init__(self, path: Path | None) -> None:
        """Open or create the file, or a store in memory for None. Raises `JournalError`."""
        self._db = Database(path, CONTENT)

    def write(self, entries: Sequence[Entry]) -> None:
        """Commit all entries, or none."""
        with self._db.transaction():
            for entry in entries:
                self._write(entry)

    def _write(self, entry: Entry) -> None:
        match entry:
            case Append():
                row = (entry.id, entry.start, _json(entry.token_ids), _json(entry.logprobs), entry.weight_version)
                self._db.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", row)
            case Accept():
                values = (entry.id, entry.call, entry.accepted_unix_s)
                self._db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?, ?, NULL, NULL)", values)
            case End():
                change = "UPDATE requests SET ending = ?, ended_unix_s = ? WHERE id = ? AND ending IS NULL"
                self._db.execute(change, (entry.ending, entry.ended_unix_s, entry.id))
            case SetPool():
                self._db.execute("INSERT OR REPLACE INTO pool VALUES (1, ?)", (entry.document,))
            case _:
                assert_never(entry)

    def find(self, request: str) -> Record | None:
        """The record of a request, with its tokens."""
        rows = self._db.read("SELECT id, call, accepted_unix_s, ending FROM requests WHERE id = ?", request)
        return self._record(rows[0]) if rows else None

    def unfinished(self) -> list[Record]:
        """Records of the requests that did not end, in order of acceptance."""
        query = (
            "SELECT id, call, accepted_unix_s, ending FROM requests WHERE ending IS NULL ORDER BY accepted_unix_s, id"
        )
        return [self._record(row) for row in self._db.read(query)]

    def pool(self) -> str | None:
        """The pool document last set."""
        rows = self._db.read("SELECT document FROM pool")
        return str(rows[0][0]) if rows else None

    def prune(self, *, ended_before_unix_s: float) -> None:
        """Forget requests that ended earlier, `PRUNE_AT_ONCE` of them at most."""
        old = (
            "SELECT id FROM requests WHERE ending IS NOT NULL AND ended_unix_s < ? "
            f"ORDER BY ended_unix_s, id LIMIT {PRUNE_AT_ONCE}"
        )
        with self._db.transaction():
            self._db.execute(f"DELETE FROM segments WHERE request IN ({old})", (ended_before_unix_s,))
            self._db.execute(f"DELETE FROM requests WHERE id IN ({old})", (ended_before_unix_s,))

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def _record(self, row: Sequence[Any]) -> Record:
        query = "SELECT start, token_ids, logprobs, weight_version FROM segments WHERE request = ? ORDER BY start"
        with understood(f"request {row[0]!r}"):
            segments = tuple(
                Append(
                    id=row[0],
                    start=start,
                    token_ids=tuple(from_json(token_ids)),
                    logprobs=tuple(from_json(logprobs)),
                    weight_version=version,
                )
                for start, token_ids, logprobs, version in self._db.read(query, row[0])
            )
        return Record(id=row[0], call=row[1], accepted_unix_s=row[2], ending=row[3], segments=segments)


def _json(values: Sequence[float]) -> str:
    return to_json(values).decode()


@dataclass(slots=True)
class Journal:
    """Grouped, ordered writes to a store, on an event loop."""

    store: Store
    failure: JournalError | None = None
    """Set once a write failed: nothing may be accepted any more, since it would not survive."""
    _entries: list[Entry] = field(default_factory=list)
    _callbacks: list[Callable[[], None]] = field(default_factory=list)
    _next: asyncio.Handle | None = None
    _due_s: float = math.inf
    """When `_next` runs, in seconds of the loop's clock."""

    def add(self, entry: Entry, on_commit: Callable[[], None] | None = None, *, within_s: float = 0.0) -> None:
        """Write `entry` after all earlier ones, and call back once it is committed; never, where the write fails.

        It waits `within_s` at most for others to be committed with.
        """
        self._entries.append(entry)
        if on_commit:
            self._callbacks.append(on_commit)
        loop = asyncio.get_running_loop()
        due_s = loop.time() + within_s
        if due_s < self._due_s:
            self._cancel()
            self._due_s = due_s
            self._next = loop.call_at(due_s, self._commit) if within_s > 0 else loop.call_soon(self._commit)

    def flush(self) -> None:
        """Commit what was added so far. Raises `JournalError` where it cannot be, now or ever since."""
        self._commit()
        if self.failure:
            raise self.failure

    def close(self) -> None:
        """Commit what is left and release the file."""
        try:
            self.flush()
        finally:
            self.store.close()

    def _commit(self) -> None:
        self._cancel()
        if not self._entries or self.failure:
            return
        entries, self._entries = self._entries, []
        callbacks, self._callbacks = self._callbacks, []
        try:
            self.store.write(entries)
        except JournalError as e:
            self.failure = e
            return
        for callback in callbacks:
            callback()

    def _cancel(self) -> None:
        if self._next:
            self._next.cancel()
            self._next, self._due_s = None, math.inf
