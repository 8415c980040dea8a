"""A journal that cannot be tidied up any more counts as broken, like one that cannot be written."""

from __future__ import annotations

import asyncio

import pytest

from pearl.live.journal import Accept, JournalError, Store
from pearl.live.router import service
from tests.live.router.rig import colocated, rig, run


def test_a_journal_that_cannot_forget_ends_the_router_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SWEEP_S", 0.01)

    async def main() -> None:
        async with rig("a", start=colocated("a"), keep_finished_s=0.0) as r:
            r.router._journal.store._db.execute("DROP TABLE segments")
            with pytest.raises(JournalError, match="cannot write the router's journal"):
                await asyncio.wait_for(r.router.failed(), 5)
            assert not r.router.healthy
            status, answer = await r.complete()
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            assert "cannot write the router's journal" in answer["error"]["message"]

    run(main())


def test_forgetting_that_failed_leaves_no_transaction_open() -> None:
    store = Store(None)
    store._db.execute("DROP TABLE segments")
    with pytest.raises(JournalError, match="cannot write the router's journal"):
        store.prune(ended_before_unix_s=1.0)
    store.write([Accept(id="a", call="{}", accepted_unix_s=1.0)])
    assert store._db.read("SELECT id FROM requests") == [("a",)]
