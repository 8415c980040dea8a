from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from pearl.live.control.lease import HostLock, Lease, LeaseError, LeaseTable
from tests.live.control.fakes import now_s, virtually
from tests.live.control.rig import LocalLeases


class Clock:
    """Moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_table_gives_the_lease_to_one() -> None:
    clock = Clock()
    table = LeaseTable(now_s=clock)
    assert table.acquire("a", 10, 0).term == 1
    refused = table.acquire("b", 10, 0)
    assert (refused.owner, refused.term, refused.left_s) == ("a", 1, 10)
    clock.now += 10
    assert table.renew("a", 1, 10) is None, "too late: somebody else may have asked meanwhile"
    granted = table.acquire("b", 10, 0)
    assert (granted.owner, granted.term) == ("b", 2)
    assert table.renew("a", 1, 10) is None


def test_terms_only_grow() -> None:
    clock = Clock()
    table = LeaseTable(now_s=clock)
    assert table.acquire("a", 10, 41).term == 42
    assert table.acquire("a", 10, 0).term == 42, "the same owner, in time: the same lease"
    table.release("a", 41)
    assert table.held, "an old term releases nothing"
    table.release("a", 42)
    assert not table.held
    assert table.acquire("b", 10, 0).term == 43


def test_a_lease_is_renewed_and_released() -> None:
    async def work() -> None:
        leases = LocalLeases(table=LeaseTable(now_s=now_s))
        lease = Lease(authority=leases, owner="a", lease_s=15, now_s=now_s)
        other = Lease(authority=leases, owner="b", lease_s=15, now_s=now_s)
        assert await lease.acquire() == 1
        await asyncio.sleep(100)
        assert lease.valid
        with pytest.raises(
            LeaseError, match=r"another controller, a, holds the lease of this cluster for 1[0-9] s more"
        ):
            await other.acquire()
        await lease.release()
        await lease.release()
        assert not lease.valid
        assert await other.acquire(after_term=7) == 8
        await other.release()

    virtually(work())


def test_a_controller_that_cannot_renew_stops_before_another_may_start() -> None:
    async def work() -> None:
        leases = LocalLeases(table=LeaseTable(now_s=now_s))
        lease = Lease(authority=leases, owner="a", lease_s=15, now_s=now_s)
        other = Lease(authority=leases, owner="b", lease_s=15, now_s=now_s)
        await lease.acquire()
        await asyncio.sleep(7)
        leases.down = True
        await lease.lost.wait()
        assert not lease.valid
        with pytest.raises(LeaseError, match="lost its lease"):
            lease.check()
        lost_s = now_s()
        leases.down = False
        while True:
            try:
                await other.acquire()
                break
            except LeaseError:
                await asyncio.sleep(0.1)
        assert lost_s <= now_s() <= lost_s + 0.2
        await lease.release()
        assert other.valid, "a lease that was lost releases nothing"
        await other.release()

    virtually(work())


def test_a_short_outage_is_survived() -> None:
    async def work() -> None:
        leases = LocalLeases(table=LeaseTable(now_s=now_s))
        lease = Lease(authority=leases, owner="a", lease_s=15, now_s=now_s)
        await lease.acquire()
        leases.down = True
        await asyncio.sleep(8)
        leases.down = False
        await asyncio.sleep(60)
        assert lease.valid
        await lease.release()

    virtually(work())


def test_a_lease_that_was_taken_over_is_lost_at_once() -> None:
    async def work() -> None:
        leases = LocalLeases(table=LeaseTable(now_s=now_s))
        lease = Lease(authority=leases, owner="a", lease_s=15, now_s=now_s)
        await lease.acquire()
        leases.table = LeaseTable(now_s=now_s)
        leases.table.acquire("b", 15, 0)
        await lease.lost.wait()
        assert now_s() <= 5.1
        await lease.release()
        assert leases.table.held

    virtually(work())


def test_a_lease_outlives_the_actor_that_kept_it() -> None:
    async def work() -> None:
        leases = LocalLeases(table=LeaseTable(now_s=now_s))
        lease = Lease(authority=leases, owner="a", lease_s=15, now_s=now_s)
        term = await lease.acquire(after_term=4)
        leases.table = LeaseTable(now_s=now_s)  # the actor died; its successor knows nothing
        await asyncio.sleep(60)
        assert lease.valid
        assert lease.term == term == 5
        other = leases.table.acquire("b", 15, 0)
        assert (other.owner, other.term) == ("a", 5), "held as before"
        await lease.release()
        assert leases.table.renew("a", 5, 15) is None, "only a table without a past takes anybody's word"

    virtually(work())


def test_host_lock_says_who_has_it(tmp_path: Path) -> None:
    lock = HostLock(tmp_path)
    with pytest.raises(LeaseError, match=rf"another controller uses .* \(process {os.getpid()} on .*pearl stop"):
        HostLock(tmp_path)
    assert json.loads((tmp_path / "controller.lock").read_text())["pid"] == os.getpid()
    lock.release()
    lock.release()
    HostLock(tmp_path).release()
