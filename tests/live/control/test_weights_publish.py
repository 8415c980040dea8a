"""Publishing weights: everybody comes to the newest, and the pool serves meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pearl.core.cluster import Status
from pearl.errors import UsageError
from pearl.live.control.weights import StaleWeightsError
from pearl.live.engine.engine import UnfitError
from pearl.live.protocol import EngineLostError
from pearl.live.weights import WeightRef
from tests.live.control.fakes import FOREVER, now_s
from tests.live.control.rigs import (
    IDLE,
    LIMITS,
    C,
    D,
    P,
    Rig,
    activate,
    asleep,
    at,
    borrow,
    change,
    drain,
    reclaim,
    rigged,
    stop,
    weights,
    worker,
)

ACTIVE, INACTIVE, TRANSITIONING = Status.ACTIVE, Status.INACTIVE, Status.TRANSITIONING


def slow_update(rig: Rig, seconds: float = 1.0) -> None:
    for made in rig.world.fleet.workers.values():
        made.delays["update_weights"] = seconds


def test_every_started_and_awake_worker_is_updated() -> None:
    async def test(rig: Rig) -> None:
        published = await rig.executor.publish(weights(7))
        assert (published.version, published.updated, published.left) == (7, ("a", "idle"), ())
        assert rig.world["o"].calls == []
        assert rig.world.ledger.record.latest == 7
        assert rig.world.ledger.record.oldest == 5
        assert rig.now("a") == (C, ACTIVE)
        assert rig.now("idle") == (IDLE, INACTIVE)
        assert rig.kinds() == ["sync_weights", "sync_weights"]

    rigged(test, worker("a"), worker("idle", IDLE), asleep("o"), max_staleness=2)


def test_at_least_half_of_each_role_serves_throughout() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig)
        rig.world.dispatch.pools.clear()
        await rig.executor.publish(weights(1))
        for pool in rig.world.dispatch.pools:
            serving = Counter(w.role for w in pool.dispatchable)
            assert serving[P] >= 2
            assert serving[D] >= 2
        assert now_s() == 3.0, "five decode workers, two at a time"
        assert all(rig.world.ledger.version(w.id) == 1 for w in rig.world.ledger.state.workers)

    many = [worker(f"p{i}", P) for i in range(4)] + [worker(f"d{i}", D) for i in range(5)]
    rigged(test, *many, max_staleness=1)


def test_workers_too_old_to_serve_update_all_at_once() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig)
        await rig.executor.publish(weights(1))
        assert now_s() == 1.0

    rigged(test, *(worker(f"w{i}") for i in range(6)), max_staleness=0)


def test_no_pool_ever_dispatches_to_weights_older_than_allowed() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig)
        for version in range(1, 6):
            asyncio.get_running_loop().create_task(rig.executor.publish(weights(version)))
            await asyncio.sleep(0.7)
        await rig.executor.settle()
        for pool in rig.world.dispatch.pools:
            assert all(pool.endpoints[w.id].weight_version >= pool.oldest_weight_version for w in pool.dispatchable)
        assert {rig.world.ledger.version(f"w{i}") for i in range(4)} == {5}

    rigged(test, *(worker(f"w{i}") for i in range(4)), max_staleness=1)


def test_publishing_the_same_again_changes_nothing() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig)
        first, second = await asyncio.gather(rig.executor.publish(weights(3)), rig.executor.publish(weights(3)))
        assert first == second
        epoch = rig.world.ledger.state.epoch
        third = await rig.executor.publish(weights(3))
        assert (third.updated, third.left) == ((), ())
        assert rig.world.ledger.state.epoch == epoch
        assert rig.world["a"].calls == ["update_weights"]

    rigged(test, worker("a"), worker("b"))


def test_older_weights_and_other_weights_of_the_same_version_are_refused() -> None:
    async def test(rig: Rig) -> None:
        await rig.executor.publish(weights(3))
        with pytest.raises(StaleWeightsError, match="weights 2 are older than 3"):
            await rig.executor.publish(weights(2))
        with pytest.raises(UsageError, match="elsewhere"):
            await rig.executor.publish(WeightRef(version=3, directory=Path("elsewhere")))
        assert rig.world.ledger.version("a") == 3

    rigged(test, worker("a"))


def test_of_two_publications_at_once_the_newest_wins() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig)
        first = asyncio.create_task(rig.executor.publish(weights(1)))
        await at(0.5)
        second = await rig.executor.publish(weights(2))
        assert {rig.world.ledger.version(name) for name in ("a", "b", "c")} == {2}
        assert (await first).updated == ("a", "b", "c")
        assert second.updated == ()
        assert rig.world["b"].calls == ["update_weights"], "it goes to the newest without a stop"

    rigged(test, worker("a"), worker("b"), worker("c"), max_staleness=2)


def test_a_cancelled_wait_leaves_the_update_under_way() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig)
        wait = asyncio.create_task(rig.executor.publish(weights(1)))
        await at(0.5)
        wait.cancel()
        await rig.executor.settle()
        assert {rig.world.ledger.version(name) for name in ("a", "b")} == {1}
        assert rig.now("a") == rig.now("b") == (C, ACTIVE)

    rigged(test, worker("a"), worker("b"), max_staleness=1)


@pytest.mark.parametrize("error", [UnfitError("half-way"), EngineLostError("died"), ValueError("anything")])
def test_a_worker_that_fails_leaves_and_the_survivors_finish(error: Exception) -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig)
        rig.world["b"].once["update_weights"] = error
        published = await rig.executor.publish(weights(1))
        assert (published.updated, published.left) == (("a", "c"), ("b",))
        assert "b" not in rig.world.ledger.state.by_id
        assert rig.now("a") == rig.now("c") == (C, ACTIVE)
        await rig.executor.settle()
        assert rig.world["b"].dead

    rigged(test, worker("a"), worker("b"), worker("c"), max_staleness=1)


def test_a_worker_that_hangs_is_given_up_at_the_limit_and_the_next_publication_does_not_hang() -> None:
    async def test(rig: Rig) -> None:
        rig.world["b"].delays["update_weights"] = FOREVER
        published = await rig.executor.publish(weights(1))
        assert published.left == ("b",)
        assert published.seconds <= 2 * LIMITS.transition_s
        began_s = now_s()
        again = await rig.executor.publish(weights(2))
        assert again.updated == ("a", "c")
        assert now_s() == began_s

    rigged(test, worker("a"), worker("b"), worker("c"))


def test_a_worker_that_dies_while_it_updates_does_not_hold_the_others_up() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig, 10.0)
        wait = asyncio.create_task(rig.executor.publish(weights(1)))
        await at(2.0)
        await rig.executor.lose(["a"])
        published = await wait
        assert (published.updated, published.left) == (("b",), ("a",))
        assert now_s() == 10.0

    rigged(test, worker("a"), worker("b"))


# Together with plans


def test_leaving_wins_over_updating() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig, 50.0)
        wait = asyncio.create_task(rig.executor.publish(weights(1)))
        await at(1.0)
        rig.world.raise_event(reclaim("a", "b", within_s=20.0))
        rig.plan(drain("a", 20.0), drain("b", 20.0), stop("a"), stop("b"))
        await at(2.0)
        assert rig.world["a"].calls == ["update_weights", "stop"]
        assert rig.world["b"].calls == ["stop"], "it was to update next"
        assert not rig.world.now("a").started
        published = await wait
        assert published.updated == ("c",)

    rigged(test, worker("a"), worker("b"), worker("c", IDLE), max_staleness=1)


def test_a_worker_that_must_leave_updates_no_more_though_no_plan_comes() -> None:
    async def test(rig: Rig) -> None:
        rig.world.raise_event(reclaim("a", within_s=20.0))
        published = await rig.executor.publish(weights(1))
        assert (published.updated, published.left) == (("b",), ())
        assert rig.world["a"].calls == []

    rigged(test, worker("a"), worker("b"), max_staleness=1)


def test_a_worker_that_stays_after_all_catches_up() -> None:
    async def test(rig: Rig) -> None:
        rig.world.raise_event(reclaim("a"))
        await rig.executor.publish(weights(1))
        assert rig.world["a"].calls == []
        rig.world.ledger.put(replace(rig.world.now("a"), must_leave=False))
        await rig.executor.settle()
        assert rig.world.ledger.version("a") == 1
        assert rig.now("a") == (C, ACTIVE)

    rigged(test, worker("a"), worker("b"))


def test_weights_published_while_a_worker_is_activated_are_loaded_before_it_serves() -> None:
    async def test(rig: Rig) -> None:
        rig.world["idle"].delays["admit"] = 5.0
        rig.plan(activate("idle"))
        await at(1.0)
        await rig.executor.publish(weights(1))
        await rig.executor.settle()
        assert rig.world["idle"].calls == ["canary", "admit", "update_weights"]
        assert rig.now("idle") == (C, ACTIVE)
        assert all(
            pool.endpoints["idle"].weight_version == 1
            for pool in rig.world.dispatch.pools
            if "idle" in {w.id for w in pool.dispatchable}
        )

    rigged(test, worker("a"), worker("idle", IDLE))


def test_a_role_change_waits_for_the_update_and_counts_in_its_plan() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig, 5.0)
        wait = asyncio.create_task(rig.executor.publish(weights(1)))
        await at(1.0)
        rig.plan(drain("a"), change("a", C, P), drain("b"), change("b", C, D))
        await at(2.0)
        assert rig.executor.busy
        await rig.executor.settle()
        await wait
        assert (rig.now("a"), rig.now("b")) == ((P, ACTIVE), (D, ACTIVE))
        assert rig.world.ledger.version("a") == rig.world.ledger.version("b") == 1

    rigged(test, worker("a"), worker("b"), max_staleness=0)


def test_a_plan_cancelled_during_an_update_leaves_nobody_in_transition() -> None:
    async def test(rig: Rig) -> None:
        slow_update(rig, 5.0)
        rig.world.dispatch.busy_s["b"] = 4.0
        rig.plan(drain("a"), drain("b"), change("a", C, P), change("b", C, P))
        await at(1.0)
        asyncio.get_running_loop().create_task(rig.executor.publish(weights(1)))
        await at(2.0)
        rig.executor.cancel_pending()
        await rig.executor.settle()
        assert rig.now("a") == rig.now("b") == (C, ACTIVE)
        assert rig.world.ledger.version("a") == rig.world.ledger.version("b") == 1

    rigged(test, worker("a"), worker("b"))


def test_weights_published_while_a_worker_wakes_are_loaded_before_it_serves() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].delays |= {"wake": 5.0, "admit": 5.0}
        rig.plan(borrow("o"))
        await at(1.0)
        await rig.executor.publish(weights(1))
        assert now_s() == 1.0, "whoever wakes is not waited for"
        await at(7.0)
        asyncio.get_running_loop().create_task(rig.executor.publish(weights(2)))
        await rig.executor.settle()
        assert rig.now("o") == (C, ACTIVE)
        for pool in rig.world.dispatch.pools:
            assert all(pool.endpoints[w.id].weight_version >= pool.oldest_weight_version for w in pool.dispatchable)
        assert rig.world["o"].version == 2

    rigged(test, worker("a"), asleep("o"))


def test_the_newest_weights_must_be_given_when_the_ledger_knows_of_some() -> None:
    async def main() -> None:
        from tests.live.control.fakes import FakeWorld, state_of

        with pytest.raises(UsageError, match="the ledger is at weights 5, and the newest that were given are 0"):
            Rig(FakeWorld(state=state_of([worker("a")]), latest=5))

    asyncio.run(main())
