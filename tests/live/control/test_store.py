from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pearl.live.control import store as store_module
from pearl.live.control.store import (
    AddAnswer,
    AddDecision,
    AddEvent,
    AddPlan,
    AddProgress,
    AddTelemetry,
    ControlStore,
    Fact,
    SetFact,
    StoreError,
)


def event(number: int, key: str | None = None) -> AddEvent:
    return AddEvent(number=number, at_unix_s=1.0, kind="operator", workers=("a",), data={"x": [1]}, key=key)


def test_everything_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    decision = AddDecision(number=3, at_unix_s=2.0, event=1, document={"decision": {"outcome": "keep"}})
    plan = AddPlan(number=2, at_unix_s=2.0, decision=3, document={"steps": []})
    progress = AddProgress(plan=2, step=0, phase="ended", at_unix_s=3.0, seconds=1.5, because="")
    answer = AddAnswer(key="k", call="POST /x", status=200, body="{}")
    store = ControlStore(path)
    store.write(event(1, "key"), decision, plan, progress, AddTelemetry(line="{}"), answer)
    store.write(SetFact(fact=Fact.RECORD, document="1"), SetFact(fact=Fact.RECORD, document="2"))
    store.close()

    store = ControlStore(path)
    assert store.events(after=0, limit=10) == [event(1, "key")]
    assert (store.decision(3), store.decisions(limit=5)) == (decision, [decision])
    assert (store.plan(2), store.plans(limit=5), store.progress(2)) == (plan, [plan], [progress])
    assert (store.telemetry(), store.answer("k"), store.fact(Fact.RECORD)) == (["{}"], answer, "2")
    assert [store.last(table) for table in ("events", "decisions", "plans")] == [1, 3, 2]
    assert store.event_by_key("key") == 1
    assert (store.event_by_key("other"), store.answer("other"), store.fact(Fact.BATCH)) == (None, None, None)


def test_it_survives_a_process_that_never_closed_it(tmp_path: Path) -> None:
    store = ControlStore(tmp_path / "c.db")
    store.write(event(1))
    store._db.close()  # as the system does when a process dies
    assert ControlStore(tmp_path / "c.db").last("events") == 1


WRITER = """
import sys
from pathlib import Path
from pearl.live.control.store import AddEvent, ControlStore
store = ControlStore(Path(sys.argv[1]))
for number in range(1, 1_000_000):
    store.write(AddEvent(number=number, at_unix_s=0.0, kind="operator", workers=(), data={}))
    print(number, flush=True)
"""


def test_what_was_answered_survives_a_process_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(200):
        writer.stdout.readline()
    writer.kill()
    answered = [int(line) for line in writer.stdout.read().splitlines() if line]
    writer.wait()
    assert ControlStore(path).last("events") >= max(answered, default=200) >= 200


def test_one_owner(tmp_path: Path) -> None:
    ControlStore(tmp_path / "c.db").write(event(1))
    store = ControlStore(tmp_path / "d.db")
    store.write(event(1))
    with pytest.raises(StoreError, match="does another controller use it"):
        ControlStore(tmp_path / "d.db")


def test_another_schema_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "c.db") as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match="schema 7, this version reads 1"):
        ControlStore(tmp_path / "c.db")


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_text("not a database, by any means at all, whatever its name says" * 20)
    with pytest.raises(StoreError, match="cannot open"):
        ControlStore(tmp_path / "c.db")


def test_all_or_none_and_nothing_after_a_failure(tmp_path: Path) -> None:
    store = ControlStore(tmp_path / "c.db")
    store.write(event(1))
    with pytest.raises(StoreError, match="cannot write"):
        store.write(event(2), event(1))
    assert store.last("events") == 1
    with pytest.raises(StoreError, match="cannot write"):
        store.write(event(3))
    assert store.last("events") == 1


def test_first_answer_and_first_phase_count(tmp_path: Path) -> None:
    store = ControlStore(None)
    for number in (1, 2):
        store.write(AddAnswer(key="k", call="c", status=200, body=str(number)))
        store.write(AddProgress(plan=1, step=0, phase="ended", at_unix_s=number, seconds=number, because=""))
    found = store.answer("k")
    assert found is not None
    assert found.body == "1"
    assert [entry.seconds for entry in store.progress(1)] == [1]


def test_growth_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "KEPT", dict.fromkeys(store_module.KEPT, 10))
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 4)
    store = ControlStore(None)
    for number in range(1, 41):
        store.write(event(number), AddPlan(number=number, at_unix_s=0, decision=None, document={"steps": []}))
        store.write(AddProgress(plan=number, step=0, phase="began", at_unix_s=0, seconds=0, because=""))
        store.write(AddTelemetry(line=str(number)))
    assert [e.number for e in store.events(after=0, limit=100)] == list(range(31, 41))
    assert len(store.plans(limit=100)) == 10
    assert (store.progress(30), len(store.progress(31))) == ([], 1)
    assert store.telemetry() == [str(number) for number in range(31, 41)]


def test_decisions_come_newest_last_and_after_a_number() -> None:
    store = ControlStore(None)
    for number in range(1, 6):
        store.write(AddDecision(number=number, at_unix_s=0, event=None, document={}))
    assert [d.number for d in store.decisions(limit=2)] == [4, 5]
    assert [d.number for d in store.decisions(limit=9, after=3)] == [4, 5]
