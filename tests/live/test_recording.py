"""What is read back of a recording is not changed by it, and a database of somebody else is left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pearl.errors import InputError
from pearl.live.control.store import AddEvent, ControlStore, StoreError
from pearl.live.recording import read_store


def test_what_is_no_store_stays_as_it_is(tmp_path: Path) -> None:
    empty, foreign = tmp_path / "empty.db", tmp_path / "foreign.db"
    empty.touch()
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE mine (a)")
    before = foreign.read_bytes()
    for path in (empty, foreign):
        with pytest.raises(StoreError, match="no controller's store"):
            read_store(path)
    assert (empty.read_bytes(), foreign.read_bytes()) == (b"", before)
    with pytest.raises(StoreError, match="no controller's store"):
        ControlStore(foreign)
    with pytest.raises(InputError, match="no store"):
        read_store(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"empty.db", "foreign.db"}


def test_events_come_back(tmp_path: Path) -> None:
    store = ControlStore(tmp_path / "controller.db")
    data = {"within_s": 30}
    store.write(AddEvent(number=1, at_unix_s=5.0, kind="reclaim_notice", workers=("a",), data=data))
    store.close()
    _, (event,) = read_store(tmp_path)
    assert (event.kind, event.workers, event.within_s) == ("reclaim_notice", ("a",), 30.0)
