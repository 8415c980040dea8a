"""Groups of new engines: all or none, whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pearl.core.cluster import Status, Zone
from pearl.core.event import Event, EventKind
from pearl.errors import PearlError
from pearl.live.control.progress import Phase
from pearl.live.engine.engine import UnfitError
from pearl.live.protocol import EngineFailedError, EngineLostError
from tests.live.control.fakes import FOREVER, FakeWorker, now_s
from tests.live.control.rigs import (
    IDLE,
    LIMITS,
    C,
    D,
    P,
    Rig,
    admit,
    at,
    change,
    drain,
    new,
    reclaim,
    rigged,
    start,
    stop,
    weights,
    worker,
)

ACTIVE, INACTIVE, TRANSITIONING = Status.ACTIVE, Status.INACTIVE, Status.TRANSITIONING
GROUP = (start("n1", P), start("n2", D), admit("n1", "n2"))


def slow_start(seconds: float = 60.0) -> Callable[[FakeWorker], None]:
    return lambda w: w.delays.update(start=seconds)


def only(name: str, **failures: Exception) -> Callable[[FakeWorker], None]:
    """One of the new workers misbehaves."""
    return lambda w: w.failures.update(failures) if w.name == name else None


def untouched(rig: Rig, *names: str) -> bool:
    return all(set(rig.world[name].calls) <= {"report"} and rig.now(name) == (C, ACTIVE) for name in names)


def cleaned(rig: Rig, *names: str) -> bool:
    """No engine, no actor, no role; a worker that left the ledger counts."""
    gone = [name for name in names if name not in rig.world.ledger.state.by_id]
    here = [rig.world.now(name) for name in names if name not in gone]
    states = all((w.role, w.status, w.started) == (IDLE, INACTIVE, False) for w in here)
    return states and all(rig.world.fleet.find(name) is None for name in names)


def test_a_group_joins_in_one_change() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0 if w.name == "n1" else 90.0)
        await rig.carry_out(*GROUP)
        assert (rig.now("n1"), rig.now("n2")) == ((P, ACTIVE), (D, ACTIVE))
        serving = [{w.id for w in pool.dispatchable} for pool in rig.world.dispatch.pools]
        assert {"n1"} not in [ids & {"n1", "n2"} for ids in serving]
        assert serving[-1] == {"a", "n1", "n2"}
        for name in ("n1", "n2"):
            assert rig.world[name].calls == ["start", "canary_from", "admit"]
        assert untouched(rig, "a")
        assert now_s() == 90.0

    rigged(test, worker("a"), new("n1"), new("n2"))


def test_the_first_group_of_a_cluster_tries_transfers_among_itself() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(*GROUP)
        assert all(rig.world[name].calls == ["start", "canary_from", "admit"] for name in ("n1", "n2"))

    rigged(test, new("n1"), new("n2"))


def test_a_single_worker_without_peers_is_admitted_on_its_own_canary() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(start("n1"), admit("n1"))
        assert rig.world["n1"].calls == ["start", "admit"]
        assert rig.now("n1") == (C, ACTIVE)

    rigged(test, new("n1"))


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("start", EngineFailedError("out of memory")),
        ("start", RuntimeError("anything at all")),
        ("canary_from", EngineFailedError("wrong tokens")),
        ("update_weights", UnfitError("no such file")),
        ("admit", EngineLostError("died")),
    ],
)
def test_any_failure_of_a_member_cleans_up_the_whole_group(method: str, error: Exception) -> None:
    async def test(rig: Rig) -> None:
        await rig.executor.publish(weights(3))
        rig.world["a"].calls.clear()

        def prepare(made: FakeWorker) -> None:
            made.version = 2  # as if it had loaded what was the newest when it began
            only("n2", **{method: error})(made)

        rig.world.fleet.prepare = prepare
        await rig.carry_out(*GROUP)
        assert cleaned(rig, "n1", "n2")
        assert rig.world["n1"].calls[-1] == "stop"
        assert untouched(rig, "a")
        assert rig.phases(admit("n1", "n2")) in ([Phase.BEGAN, Phase.FAILED], [Phase.DROPPED])
        assert rig.lost() == [("n2",)], "the culprit alone is out"
        await at(now_s() + LIMITS.restart_after_s + 1)
        assert cleaned(rig, "n1", "n2")
        assert {"n1", "n2"} <= rig.world.ledger.state.by_id.keys()
        rig.world.fleet.prepare = lambda w: None
        await rig.carry_out(*GROUP, id="p2")
        assert (rig.now("n1"), rig.now("n2")) == ((P, ACTIVE), (D, ACTIVE))

    rigged(test, worker("a"), new("n1"), new("n2"))


def test_an_engine_that_never_comes_up_is_given_up_at_the_limit() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=FOREVER if w.name == "n2" else 1.0)
        await rig.carry_out(*GROUP)
        assert now_s() == LIMITS.start_s
        assert cleaned(rig, "n1", "n2")

    rigged(test, worker("a"), new("n1"), new("n2"))


def test_a_launch_that_fails_cleans_up_the_group() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.fails["n2"] = PearlError("no such node")
        rig.world.fleet.prepare = slow_start()
        await rig.carry_out(*GROUP)
        assert cleaned(rig, "n1", "n2")
        assert now_s() == 0.0, "the other start is called off at once"
        assert rig.why(admit("n1", "n2")) == "rolled back: n2 did not start: no such node"
        assert "n1" not in rig.world.dispatch.pool.endpoints

    rigged(test, worker("a"), new("n1"), new("n2"))


def test_a_failure_before_the_admission_is_due_rolls_back_at_once() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["a"] = 20.0
        rig.world.fleet.prepare = lambda w: (slow_start(10.0)(w), only("n2", start=EngineFailedError("no"))(w))
        rig.plan(start("n1"), start("n2"), drain("a"), change("a", C, P), admit("n1", "n2"))
        await at(11.0)
        assert cleaned(rig, "n1", "n2")
        await rig.executor.settle()
        assert rig.phases(admit("n1", "n2")) == [Phase.DROPPED]
        assert rig.now("a") == (P, ACTIVE)

    rigged(test, worker("a"), new("n1"), new("n2"))


@pytest.mark.parametrize("during", [30.0, 61.0])
def test_a_reclaim_during_expansion_rolls_the_group_back_before_any_plan(during: float) -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0, canary_from=5.0)
        rig.plan(*GROUP)
        await at(during)
        rig.world.raise_event(reclaim("n1", within_s=30.0))
        await at(during + 1.0)
        assert cleaned(rig, "n1", "n2")
        assert rig.phases(admit("n1", "n2")) == [Phase.BEGAN, Phase.FAILED]
        assert "n1 must leave" in rig.why(admit("n1", "n2"))
        await rig.carry_out(drain("n1", 30.0), stop("n1"), start("n2"), admit("n2"), id="p2")
        assert rig.now("n2") == (C, ACTIVE)
        await at(during + 31.0)
        assert rig.lost() == [("n1",)]
        assert rig.now("n2") == (C, ACTIVE)

    rigged(test, worker("a"), new("n1"), new("n2"))


@pytest.mark.parametrize("during", [30.0, 61.0, 67.0])
def test_a_node_lost_during_expansion_rolls_the_group_back(during: float) -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0, canary_from=5.0, admit=5.0)
        rig.plan(*GROUP)
        await at(during)
        rig.world.raise_event(Event(kind=EventKind.GPUS_LOST, workers=("n1",)))
        await rig.executor.settle()
        assert now_s() == during
        assert cleaned(rig, "n1", "n2")
        assert rig.world.now("n2").node == "n"
        assert untouched(rig, "a")

    rigged(test, worker("a"), new("n1"), new("n2"))


def test_ending_a_failed_group_keeps_its_gpus_out_of_any_plan_until_they_are_free() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0, stop=4.0)
        rig.plan(*GROUP)
        await at(10.0)
        rig.world.raise_event(reclaim("n1"))
        await at(12.0)
        assert rig.now("n2") == (IDLE, TRANSITIONING)
        await rig.executor.settle()
        assert cleaned(rig, "n1", "n2")
        assert now_s() == 14.0

    rigged(test, worker("a"), new("n1"), new("n2"))


def test_a_plan_made_while_a_failed_group_still_ends_waits_for_it_and_joins() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0, stop=4.0)
        rig.plan(*GROUP)
        await at(10.0)
        rig.world.raise_event(reclaim("n1"))
        await at(12.0)
        rig.plan(start("n2"), admit("n2"), id="p2")
        await rig.executor.settle()
        assert rig.now("n2") == (C, ACTIVE)
        assert now_s() == 14.0 + 60.0

    rigged(test, worker("a"), new("n1"), new("n2"))


def test_an_engine_that_nobody_admits_ends_again() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(start("n1"))
        assert cleaned(rig, "n1")

    rigged(test, worker("a"), new("n1"))


# Weights


def test_a_new_engine_loads_the_newest_weights_and_those_published_while_it_started() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = slow_start()
        rig.plan(*GROUP)
        await at(30.0)
        published = await rig.executor.publish(weights(6))
        assert published.updated == ("a",), "whoever starts is not waited for"
        assert now_s() == 30.0
        await rig.executor.settle()
        assert rig.world["n1"].calls == ["start", "update_weights", "canary_from", "admit"]
        assert {rig.world.ledger.version(name) for name in ("a", "n1", "n2")} == {6}

    rigged(test, worker("a"), new("n1"), new("n2"), versions={"a": 5}, newest=weights(5))


def test_weights_published_in_the_last_moment_before_admission_are_loaded_first() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0, admit=5.0)
        rig.plan(*GROUP)
        await at(62.0)
        asyncio.get_running_loop().create_task(rig.executor.publish(weights(6)))
        await rig.executor.settle()
        for pool in rig.world.dispatch.pools:
            served = {w.id: pool.weight_version(w.id) for w in pool.dispatchable}
            assert all(version is not None and version >= pool.oldest_weight_version for version in served.values())
            assert not {"n1", "n2"} & served.keys() or served["n1"] == served["n2"] == 6
        assert (rig.now("n1"), rig.now("n2")) == ((P, ACTIVE), (D, ACTIVE))

    rigged(test, worker("a"), new("n1"), new("n2"), versions={"a": 5}, newest=weights(5))


# Names


def test_an_engine_starts_only_when_the_one_before_it_of_that_name_has_ended() -> None:
    async def test(rig: Rig) -> None:
        rig.world["a"].delays["stop"] = 8.0
        rig.world.raise_event(Event(kind=EventKind.GPUS_LOST, workers=("a",)))
        rig.world.raise_event(Event(kind=EventKind.GPUS_ADDED, workers=("a",), added=(new("a"),)))
        await rig.carry_out(start("a"), admit("a"))
        assert rig.now("a") == (C, ACTIVE)
        assert rig.world["a"].asked[0] == ("start", 8.0)

    rigged(test, worker("a", zone=Zone.PREEMPTIBLE), worker("b"))


def test_fifty_joins_and_leaves_leave_nothing_behind() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = slow_start(2.0)
        for i in range(50):
            name = f"n{i}"
            rig.world.raise_event(Event(kind=EventKind.GPUS_ADDED, workers=(name,), added=(new(name),)))
            rig.plan(start(name), admit(name), id=f"p{i}")
            if i % 3 == 0:
                rig.world.raise_event(reclaim(name, within_s=1.0))
            await at(now_s() + 3.0)
            rig.executor.cancel_pending()
            await rig.executor.lose([name])
        await at(now_s() + 1000.0)
        await rig.executor.settle()
        assert all(rig.world.fleet.find(f"n{i}") is None for i in range(50))
        assert untouched(rig, "a")
        assert not rig.executor.busy

    rigged(test, worker("a"))
