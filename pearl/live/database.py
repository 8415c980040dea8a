"""A SQLite file with one owner: what the controller's store and the router's journal have in common.

Its owner holds it locked until it ends. WAL with `synchronous=NORMAL`: what was committed survives the death of the
process at any moment (a power failure may cost the last transactions), and only checkpoints wait for the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pearl.errors import InputError, PearlError

_OTHERS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, InputError)
"""What comes of reading content that its owner did not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a file holds, and how messages call it."""

    owner: str
    """`controller`, say."""
    name: str
    """`store`, say."""
    schema: str
    """Statements that make its tables."""
    version: int
    """Of the schema; from 1."""
    error: type[PearlError]
    if_damaged: str
    """What to do about a damaged file."""

    @contextmanager
    def understood(self, what: str) -> Iterator[None]:
        """Reading what was written earlier: the content's own error for anything else, damaged content above all."""
        try:
            yield
        except _OTHERS as e:
            message = f"{what} in the {self.owner}'s {self.name} is damaged: {_words(e)} ({self.if_damaged})"
            raise self.error(message) from e


class Database:
    """The file, open. Every method raises the content's error where SQLite fails."""

    def __init__(self, path: Path | None, content: Content, *, create: bool = True) -> None:
        """Open the file, or create it where `create` is given, or make a database in memory for None.

        A file that is something else's is left as it is.
        """
        self._path = path
        self._content = content
        self._named = f"the {content.owner}'s {content.name} {path}"
        try:
            self._connection = sqlite3.connect(path or ":memory:", timeout=0, isolation_level=None)
            try:
                self._open(create)
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as e:
            used = f"does another {content.owner} use it?"
            hint = used if "locked" in str(e) else "check the path, or give a new one"
            raise content.error(f"cannot open {self._named}: {e} ({hint})") from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is executed within is committed when it ends, or nothing is."""
        try:
            self.execute("BEGIN")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself rolls back on a full disk
                    self.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OverflowError) as e:
            raise self._content.error(f"cannot write {self._named}: {e}") from e

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """One statement of a `transaction`, which gives its errors their words."""
        return self._connection.execute(statement, values)

    def read(self, query: str, *values: object) -> list[Any]:
        """The rows of a query."""
        try:
            return self.execute(query, values).fetchall()
        except sqlite3.Error as e:
            raise self._content.error(f"cannot read {self._named}: {e}") from e

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def _open(self, create: bool) -> None:
        content = self._content
        self.execute("PRAGMA locking_mode=EXCLUSIVE")
        self.execute("BEGIN EXCLUSIVE")
        version = self.execute("PRAGMA user_version").fetchone()[0]
        empty = not self.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        self.execute("ROLLBACK")
        if version == 0 and not (empty and create):
            hint = "give the path of one, or a new one" if create else "give the path of one"
            raise content.error(f"{self._path} is no {content.owner}'s {content.name} ({hint})")
        if version not in (0, content.version):
            reads = f"this version reads {content.version}"
            raise content.error(f"{content.name} {self._path} has schema {version}, {reads}: give a new path")
        self._connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
        if version == 0:
            tables = f"BEGIN; {content.schema} PRAGMA user_version = {content.version}; COMMIT;"
            self._connection.executescript(tables)


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in first['loc']) or 'all of it'}: {first['msg']}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
