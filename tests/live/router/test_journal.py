"""The journal: what was committed is there after the process died; one owner; grouped writes in order."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pearl.live.journal import Accept, Append, End, Journal, JournalError, SetPool, Store


def accept(name: str, at_s: float = 1.0) -> Accept:
    return Accept(id=name, call=f'{{"of":"{name}"}}', accepted_unix_s=at_s)


def append(name: str, start: int, *tokens: int) -> Append:
    return Append(id=name, start=start, token_ids=tokens, logprobs=tuple(-t / 7 for t in tokens), weight_version=3)


def end(name: str, at_s: float = 2.0) -> End:
    return End(id=name, ending='{"finish":"stop"}', ended_unix_s=at_s)


def test_a_store_gives_back_what_it_got(tmp_path: Path) -> None:
    store = Store(tmp_path / "j.db")
    store.write([accept("b", 2.0), accept("a", 1.0), append("a", 0, 5, 6), append("a", 2, 7), append("b", 0, 9)])
    store.write([end("b"), SetPool(document="{}"), SetPool(document='{"epoch":2}')])
    store.close()
    again = Store(tmp_path / "j.db")
    (left,) = again.unfinished()
    assert (left.id, left.accepted_unix_s, left.ending) == ("a", 1.0, None)
    assert left.segments == (append("a", 0, 5, 6), append("a", 2, 7))
    found = again.find("b")
    assert found
    assert found.ending == '{"finish":"stop"}'
    assert again.find("c") is None
    assert again.pool() == '{"epoch":2}'
    again.close()


def test_first_acceptance_and_first_end_count() -> None:
    store = Store(None)
    store.write([accept("a", 1.0), accept("a", 9.0), end("a", 2.0), End(id="a", ending="x", ended_unix_s=3.0)])
    found = store.find("a")
    assert found
    assert (found.accepted_unix_s, found.ending) == (1.0, '{"finish":"stop"}')


def test_a_batch_is_written_whole_or_not_at_all() -> None:
    store = Store(None)
    with pytest.raises(JournalError, match="cannot write"):
        store.write([accept("a"), append("a", 0, 1), append("a", 0, 1)])
    assert store.find("a") is None


def test_only_old_endings_are_forgotten() -> None:
    store = Store(None)
    store.write([accept("old"), append("old", 0, 1), end("old", 10.0), accept("new"), end("new", 20.0), accept("open")])
    store.prune(ended_before_unix_s=15.0)
    assert store.find("old") is None
    assert store.find("new")
    assert [r.id for r in store.unfinished()] == ["open"]


def test_a_journal_has_one_owner(tmp_path: Path) -> None:
    first = Store(tmp_path / "j.db")
    with pytest.raises(JournalError, match="does another router use it"):
        Store(tmp_path / "j.db")
    first.close()
    Store(tmp_path / "j.db").close()


def test_what_is_no_journal_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database at all, but long enough to be read as a header " * 4)
    with pytest.raises(JournalError, match="cannot open"):
        Store(tmp_path / "text")
    with pytest.raises(JournalError, match="cannot open"):
        Store(tmp_path / "no" / "such" / "folder")
    db = sqlite3.connect(tmp_path / "newer.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(JournalError, match="schema 99"):
        Store(tmp_path / "newer.db")


def test_commits_survive_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from pearl.live.journal import *;"
        "store = Store(Path(sys.argv[1])); store.write([Accept(id='a', call='{}', accepted_unix_s=1.0)]);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "j.db")], check=False)
    assert done.returncode == -9
    store = Store(tmp_path / "j.db")
    assert [r.id for r in store.unfinished()] == ["a"]
    store.close()


def test_callbacks_come_in_order_once_committed() -> None:
    async def main() -> None:
        journal = Journal(Store(None))
        seen: list[int] = []
        journal.add(accept("a"))
        for i in range(50):
            journal.add(append("a", i, i), lambda i=i: seen.append(i))  # type: ignore[misc]  # binds the loop's value
            if i % 7 == 6:
                assert seen == list(range(i - 6))
                await asyncio.sleep(0.001)
                assert seen == list(range(i + 1))
        journal.flush()
        assert seen == list(range(50))
        record = journal.store.find("a")
        assert record
        assert [s.start for s in record.segments] == list(range(50))
        journal.close()

    asyncio.run(main())


def test_what_is_due_first_takes_along_what_may_wait() -> None:
    async def main() -> None:
        journal = Journal(Store(None))
        seen: list[str] = []
        journal.add(accept("a"), lambda: seen.append("a"), within_s=60.0)
        journal.add(append("a", 0, 1), lambda: seen.append("tokens"), within_s=0.001)
        await asyncio.sleep(0)
        assert seen == []
        await asyncio.sleep(0.05)
        assert seen == ["a", "tokens"]
        journal.add(append("a", 1, 2), lambda: seen.append("more"), within_s=60.0)
        journal.add(end("a"), lambda: seen.append("end"))
        journal.add(accept("b"), lambda: seen.append("b"), within_s=60.0)
        assert seen == ["a", "tokens"]
        await asyncio.sleep(0)
        assert seen == ["a", "tokens", "more", "end", "b"]
        journal.close()

    asyncio.run(main())


def test_a_failed_write_is_remembered_and_confirms_nothing() -> None:
    async def main() -> None:
        journal = Journal(Store(None))
        confirmed: list[str] = []
        journal.add(append("a", 0, 1))
        journal.add(append("a", 0, 1), lambda: confirmed.append("twice"))
        with pytest.raises(JournalError):
            journal.flush()
        journal.add(accept("b"), lambda: confirmed.append("after"))
        with pytest.raises(JournalError):
            journal.flush()
        assert journal.failure
        assert confirmed == []

    asyncio.run(main())
