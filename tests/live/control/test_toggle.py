"""Borrowing, returning, and the barrier that a trainer waits at."""

from __future__ import annotations

import asyncio

import pytest

from pearl.core.cluster import Status, Zone
from pearl.core.event import Event, EventKind
from pearl.errors import PearlError
from pearl.live.control.crew import NotEndedError
from pearl.live.control.progress import Phase
from pearl.live.control.toggle import Released
from pearl.live.engine.engine import UnfitError
from tests.live.control.fakes import FOREVER, now_s
from tests.live.control.rigs import (
    IDLE,
    LIMITS,
    C,
    D,
    P,
    Rig,
    admit,
    asleep,
    at,
    borrow,
    drain,
    give_back,
    new,
    reclaim,
    rigged,
    start,
    weights,
    worker,
)

ACTIVE, INACTIVE, TRANSITIONING = Status.ACTIVE, Status.INACTIVE, Status.TRANSITIONING


def lent(name: str, role=C):
    return worker(name, role, Zone.OVERLAP)


def training_started() -> Event:
    return Event(kind=EventKind.TRAINING_STARTED, within_s=60.0)


def free(rig: Rig, name: str) -> bool:
    """The worker itself says that it holds no memory."""
    return rig.world[name].asleep or rig.world[name].dead


# Borrowing


def test_a_borrowed_worker_wakes_syncs_is_tried_and_refreshes_its_transfers() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].delays |= {"wake": 2.0, "update_weights": 1.0}
        await rig.carry_out(borrow("o", D))
        assert rig.world["o"].calls == ["wake", "update_weights", "canary", "canary_from", "admit"]
        assert rig.now("o") == (D, ACTIVE)
        assert [(r.kind.value, r.seconds) for r in rig.measured] == [("sync_weights", 1.0), ("borrow", 3.0)]

    rigged(test, worker("a", P), asleep("o"), versions={"a": 4, "o": 3}, newest=weights(4))


def test_where_nobody_serves_with_the_same_weights_no_transfer_is_tried() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(borrow("o"))
        assert rig.world["o"].calls == ["wake", "canary", "admit"]

    rigged(test, worker("a", IDLE), asleep("o"))


def test_no_transfer_is_tried_from_a_worker_with_other_weights() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(borrow("o"))
        assert rig.world["o"].calls == ["wake", "update_weights", "canary", "admit"]

    rigged(test, worker("a"), asleep("o"), versions={"a": 4, "o": 4}, newest=weights(5), oldest=4)


def test_a_worker_that_does_not_wake_leaves_the_pool() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].failures["wake"] = UnfitError("no memory")
        await rig.carry_out(borrow("o"))
        assert rig.lost() == [("o",)]
        assert rig.world["o"].dead

    rigged(test, worker("a"), asleep("o"))


def test_a_return_is_confirmed_by_the_worker_itself() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(drain("o"), give_back("o"))
        assert rig.world["o"].calls == ["drain", "sleep", "report"]
        assert rig.now("o") == (IDLE, INACTIVE)
        assert rig.world.now("o").started

    rigged(test, worker("a"), lent("o"))


@pytest.mark.parametrize("trouble", ["raises", "lies", "hangs"])
def test_a_worker_that_does_not_fall_asleep_loses_its_process(trouble: str) -> None:
    async def test(rig: Rig) -> None:
        o = rig.world["o"]
        match trouble:
            case "raises":
                o.failures["sleep"] = UnfitError("stuck")
            case "hangs":
                o.delays["sleep"] = FOREVER
            case _:
                report = o.report

                async def awake():
                    from dataclasses import replace

                    return replace(await report(), asleep=False)

                o.report = awake
        await rig.carry_out(drain("o"), give_back("o"))
        assert o.dead
        assert rig.now("o") == (IDLE, INACTIVE)
        assert not rig.world.now("o").started
        assert "its process was ended" in rig.why(give_back("o"))
        assert rig.lost() == [], "its GPUs are the trainer's, and the worker stays known"

    rigged(test, worker("a"), lent("o"))


# The barrier


def test_the_trainer_gets_its_gpus_though_no_plan_comes() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["o1"] = 4.0
        rig.world["o2"].delays["sleep"] = 6.0
        released = await rig.executor.release_overlap(deadline_s=60.0, force=False)
        assert released == Released(released=("o1", "o2", "o3", "o4"), forced=(), seconds=6.0)
        assert all(free(rig, name) for name in ("o1", "o2", "o3"))
        assert rig.world["o3"].calls == ["drain", "sleep", "report"], "whoever was idle before is asked, too"
        assert rig.world.ledger.record.training
        assert rig.world["a"].calls == []

    rigged(test, worker("a"), lent("o1"), lent("o2", D), asleep("o3"), new("o4", Zone.OVERLAP))


def test_a_plan_and_the_barrier_together_ask_each_worker_once() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["o"] = 4.0
        rig.world.raise_event(training_started())
        wait = asyncio.create_task(rig.executor.release_overlap(deadline_s=60.0, force=False))
        await asyncio.sleep(0.1)
        rig.executor.cancel_pending()
        rig.plan(drain("o", 60.0), give_back("o"))
        await wait
        assert rig.world["o"].calls == ["drain", "sleep", "report"]
        assert [e.kind for e in rig.world.events] == [EventKind.TRAINING_STARTED]

    rigged(test, worker("a"), lent("o"))


def test_asking_again_or_twice_at_once_is_the_same_as_once() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].delays["sleep"] = 2.0
        ask = rig.executor.release_overlap
        first, second = await asyncio.gather(ask(deadline_s=9.0, force=True), ask(deadline_s=9.0, force=False))
        assert first == second
        third = await ask(deadline_s=9.0, force=False)
        assert third == Released(released=("o",), forced=(), seconds=0.0)
        assert rig.world["o"].calls == ["drain", "sleep", "report"]

    rigged(test, worker("a"), lent("o"))


@pytest.mark.parametrize("begun", [0.5, 2.5, 4.5])
def test_a_borrow_in_progress_is_called_off_and_its_worker_sleeps(begun: float) -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].delays |= {"wake": 2.0, "update_weights": 2.0, "admit": 2.0}
        rig.plan(borrow("o"))
        await at(begun)
        released = await rig.executor.release_overlap(deadline_s=60.0, force=False)
        assert released.forced == ()
        assert rig.world["o"].asleep
        assert rig.now("o") == (IDLE, INACTIVE)
        assert rig.phases(borrow("o")) == [Phase.BEGAN, Phase.FAILED]
        assert not any("o" in {w.id for w in pool.dispatchable} for pool in rig.world.dispatch.pools)

    rigged(test, worker("a"), asleep("o"), versions={"a": 4}, newest=weights(4))


@pytest.mark.parametrize("before", [True, False])
def test_a_reclaim_of_overlap_gpus_is_kept_through_training(before: bool) -> None:
    async def test(rig: Rig) -> None:
        notice = reclaim("o", within_s=100.0)
        if before:
            rig.world.raise_event(notice)
        await rig.executor.release_overlap(deadline_s=60.0, force=False)
        if not before:
            rig.world.raise_event(notice)
        began_s = now_s()
        rig.world.raise_event(Event(kind=EventKind.TRAINING_FINISHED))
        await asyncio.sleep(90)
        assert rig.world.now("o").must_leave
        assert rig.lost() == []
        await asyncio.sleep(11)
        assert rig.lost() == [("o",)]
        assert now_s() - began_s < 102
        await asyncio.sleep(1000)
        assert "o" not in rig.world.ledger.state.by_id, "what was reclaimed does not come back"

    rigged(test, worker("a", C), lent("o"))


def test_a_start_on_overlap_gpus_is_rolled_back_before_the_trainer_begins() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0, stop=3.0)
        rig.plan(start("o"), admit("o"))
        await at(10.0)
        released = await rig.executor.release_overlap(deadline_s=60.0, force=False)
        assert released.seconds == 3.0
        assert rig.world["o"].dead
        assert rig.now("o") == (IDLE, INACTIVE)

    rigged(test, worker("a"), new("o", Zone.OVERLAP))


def test_at_the_deadline_legs_move_at_once_and_workers_sleep() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].delays["sleep"] = 1.0
        rig.world["o"].delays["wake"] = 30.0
        rig.plan(borrow("o"))
        rig.world.dispatch.busy_s["p"] = FOREVER
        released = await rig.executor.release_overlap(deadline_s=12.0, force=True)
        assert released.forced == ("o",)
        assert released.released == ("p",)
        assert free(rig, "o")
        assert free(rig, "p")
        assert rig.now("o") == rig.now("p") == (IDLE, INACTIVE)
        assert released.seconds == 13.0

    rigged(test, worker("a"), asleep("o"), lent("p"))


def test_past_the_deadline_a_process_that_does_not_sleep_ends() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].delays |= {"sleep": FOREVER, "stop": 1.0}
        released = await rig.executor.release_overlap(deadline_s=5.0, force=True)
        assert released == Released(released=("p",), forced=("o",), seconds=5.0 + LIMITS.force_s + 1.0)
        assert rig.world["o"].dead
        assert rig.world["p"].asleep
        assert not rig.world.now("o").started
        assert rig.world.now("o").must_leave

    rigged(test, worker("a"), lent("o"), lent("p"))


def test_without_force_the_deadline_rolls_back_and_workers_serve_on() -> None:
    async def test(rig: Rig) -> None:
        rig.world["slow"].delays["sleep"] = 10.0
        rig.plan(drain("busy"))
        rig.world.dispatch.busy_s["busy"] = FOREVER
        with pytest.raises(TimeoutError, match="within 3 s: slow, busy"):
            await rig.executor.release_overlap(deadline_s=3.0, force=False)
        assert rig.now("busy") == (C, ACTIVE)
        assert not any(w.must_leave for w in rig.world.ledger.state.workers)
        assert not rig.world.ledger.record.training
        assert [e.kind.value for e in rig.world.events] == ["training_started", "training_finished"]
        await at(60.0)
        assert rig.now("busy") == (C, ACTIVE)
        assert rig.world["busy"].calls == []
        assert rig.now("slow") == (IDLE, INACTIVE), "it was falling asleep already; the next plan may borrow it"
        assert rig.world["slow"].asleep

    rigged(test, worker("a"), lent("slow"), lent("busy"))


def test_a_cancelled_wait_rolls_back_unless_somebody_else_waits() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["o"] = 20.0
        ask = rig.executor.release_overlap
        one = asyncio.create_task(ask(deadline_s=60.0, force=True))
        other = asyncio.create_task(ask(deadline_s=60.0, force=True))
        await at(1.0)
        one.cancel()
        await asyncio.wait({one})
        assert rig.now("o") == (C, TRANSITIONING)
        other.cancel()
        await asyncio.wait({other})
        assert rig.now("o") == (C, ACTIVE)
        assert not rig.world.now("o").must_leave
        await at(50.0)
        assert rig.world["o"].calls == []

    rigged(test, worker("a"), lent("o"))


def test_a_wait_cancelled_on_the_forced_path_rolls_back_too() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].delays["sleep"] = 8.0
        rig.world["o"].delays["drain"] = 4.0
        wait = asyncio.create_task(rig.executor.release_overlap(deadline_s=1.0, force=True))
        await at(2.0)
        wait.cancel()
        await rig.executor.settle()
        assert not rig.world.ledger.record.training
        assert rig.now("o") == (IDLE, INACTIVE), "it was falling asleep already; the next plan may borrow it"
        assert rig.world["o"].asleep

    rigged(test, worker("a"), lent("o"))


def test_memory_that_may_be_in_use_is_never_called_free() -> None:
    async def test(rig: Rig) -> None:
        rig.world["o"].failures |= {"sleep": UnfitError("stuck"), "stop": PearlError("unreachable")}
        with pytest.raises(NotEndedError, match="o could not be ended"):
            await rig.executor.release_overlap(deadline_s=60.0, force=True)
        assert not rig.world.ledger.record.training
        rig.world["o"].failures.clear()
        released = await rig.executor.release_overlap(deadline_s=60.0, force=True)
        assert rig.world["o"].dead
        assert "o" not in released.forced

    rigged(test, worker("a"), lent("o"))


def test_a_worker_lost_during_the_barrier_has_ended_before_the_trainer_begins() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["o"] = 20.0
        rig.world["o"].delays["stop"] = 5.0
        wait = asyncio.create_task(rig.executor.release_overlap(deadline_s=60.0, force=False))
        await at(1.0)
        await asyncio.gather(rig.executor.lose(["o"]), wait)
        assert rig.world["o"].dead
        assert now_s() == 6.0
        await at(20.0)
        assert rig.world.now("o").must_leave, "it comes back while the trainer holds its GPUs"
        rig.world.raise_event(Event(kind=EventKind.TRAINING_FINISHED))
        assert not rig.world.now("o").must_leave

    rigged(test, worker("a"), lent("o"))


def test_after_a_return_the_next_borrow_finds_the_worker_as_it_was() -> None:
    async def test(rig: Rig) -> None:
        for step in range(3):
            await rig.executor.release_overlap(deadline_s=60.0, force=True)
            assert rig.now("o") == (IDLE, INACTIVE)
            rig.world.raise_event(Event(kind=EventKind.TRAINING_FINISHED))
            await rig.executor.publish(weights(step + 1))
            await rig.carry_out(borrow("o", P), id=f"p{step}")
            assert rig.now("o") == (P, ACTIVE)
            assert rig.world.ledger.version("o") == step + 1
        assert rig.world.fleet.launched == []

    rigged(test, worker("a"), lent("o"))


def test_without_overlap_workers_the_trainer_begins_at_once() -> None:
    async def test(rig: Rig) -> None:
        released = await rig.executor.release_overlap(deadline_s=60.0, force=False)
        assert released == Released(released=(), forced=(), seconds=0.0)
        rig.world.raise_event(Event(kind=EventKind.GPUS_ADDED, workers=("o",), added=(new("o", Zone.OVERLAP),)))
        assert rig.world.now("o").must_leave, "whoever joins later waits for the trainer"

    rigged(test, worker("a"))
