"""Plans on the live executor, over fakes: order and waiting, what is dropped, cancelling, failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings

from pearl.core.cluster import ClusterState, Status, Zone
from pearl.core.plan import Step
from pearl.errors import PearlError
from pearl.live.control.progress import Phase
from pearl.live.engine.engine import UnfitError
from pearl.planning import apply_plan
from tests.live.control.fakes import FOREVER, FakeWorld, now_s, virtually
from tests.live.control.rigs import (
    IDLE,
    LIMITS,
    C,
    D,
    P,
    Rig,
    activate,
    admit,
    asleep,
    at,
    borrow,
    change,
    deactivate,
    drain,
    give_back,
    new,
    reclaim,
    rigged,
    start,
    stop,
    weights,
    worker,
)
from tests.planning.cases import Case, cases

BEGAN, ENDED, DROPPED, FAILED = Phase.BEGAN, Phase.ENDED, Phase.DROPPED, Phase.FAILED
ACTIVE, INACTIVE, TRANSITIONING = Status.ACTIVE, Status.INACTIVE, Status.TRANSITIONING


# The model of a plan


@given(case=cases(max_workers=8))
@settings(max_examples=50, deadline=None)
def test_a_plan_ends_as_its_model_says_and_twice_is_as_once(case: Case) -> None:
    plan = case.plan()

    async def main() -> None:
        world = FakeWorld(state=case.state)
        rig = Rig(world)
        await rig.carry_out(*plan.steps)
        assert outcome(world.ledger.state) == outcome(apply_plan(case.state, plan))
        before, asked = world.ledger.state, world.fleet.asked()
        await rig.carry_out(*plan.steps, id="p2")
        assert world.ledger.state.workers == before.workers
        assert world.fleet.asked() == asked
        assert all(progress.phase is not FAILED for progress in rig.told)

    virtually(main())


def outcome(state: ClusterState) -> dict[str, tuple[object, ...]]:
    return {w.id: (w.role, w.status, w.started) for w in state.workers}


# Single steps


def test_a_role_change_asks_the_worker_for_nothing() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["a"] = 3.0
        await rig.carry_out(drain("a"), change("a", C, P))
        assert rig.now("a") == (P, ACTIVE)
        assert rig.world["a"].calls == []
        assert rig.world.dispatch.emptied == [("a", LIMITS.drain_s)]
        assert rig.kinds() == ["drain", "change_role"]
        assert [r.seconds for r in rig.measured] == [3.0, 0.0]

    rigged(test, worker("a"), worker("b"))


def test_dispatch_stops_in_the_turn_in_which_the_step_is_applied() -> None:
    async def test(rig: Rig) -> None:
        rig.plan(drain("a"), deactivate("a"))
        assert [w.id for w in rig.world.dispatch.pool.dispatchable] == ["b"]

    rigged(test, worker("a"), worker("b"))


def test_activate_syncs_tries_and_admits_before_the_ledger_says_active() -> None:
    async def test(rig: Rig) -> None:
        rig.world["a"].delays["admit"] = 1.0
        rig.plan(activate("a", P))
        await at(0.5)
        assert rig.now("a") == (P, TRANSITIONING)
        await rig.executor.settle()
        assert rig.world["a"].calls == ["update_weights", "canary", "admit"]
        assert rig.now("a") == (P, ACTIVE)
        assert rig.world.ledger.version("a") == 4

    rigged(test, worker("a", IDLE), worker("b"), versions={"b": 4}, newest=weights(4))


def test_deactivate_drains_the_engine_and_stop_ends_it() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(drain("a"), drain("b"), deactivate("a"), stop("b"))
        assert rig.world["a"].calls == ["drain"]
        assert rig.world["b"].calls == ["stop"]
        assert rig.now("a") == rig.now("b") == (IDLE, INACTIVE)
        assert (rig.world.now("a").started, rig.world.now("b").started) == (True, False)
        assert "b" not in rig.world.dispatch.pool.endpoints

    rigged(test, worker("a"), worker("b"))


# Order and waiting


def test_steps_of_a_phase_run_side_by_side_and_the_next_phase_waits_for_the_slowest() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s |= {"a": 2.0, "b": 5.0}
        rig.plan(drain("a"), drain("b"), change("a", C, P), change("b", C, D))
        await at(4.0)
        assert rig.now("a") == (C, TRANSITIONING)
        assert rig.executor.busy
        await rig.executor.settle()
        assert now_s() == 5.0
        assert (rig.now("a"), rig.now("b")) == ((P, ACTIVE), (D, ACTIVE))
        assert not rig.executor.busy

    rigged(test, worker("a"), worker("b"), worker("c"))


def test_starts_run_in_the_background_and_only_their_admission_waits() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0)
        rig.plan(start("n1", P), start("n2", D), drain("a"), change("a", C, D), admit("n1", "n2"), drain("b"))
        await at(1.0)
        assert rig.now("a") == (D, ACTIVE)
        assert rig.now("b") == (C, ACTIVE)
        assert rig.now("n1") == (P, TRANSITIONING)
        await rig.executor.settle()
        assert (rig.now("n1"), rig.now("n2"), rig.now("b")) == ((P, ACTIVE), (D, ACTIVE), (C, TRANSITIONING))
        assert rig.phases(admit("n1", "n2")) == [BEGAN, ENDED]
        (admission,) = [r for r in rig.measured if r.kind == "admit"]
        assert admission.seconds == 0.0, "the engines' start is not part of it"

    rigged(test, worker("a"), worker("b"), new("n1"), new("n2"))


def test_a_mandatory_drain_leaves_time_to_end_the_engine() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s |= {"a": FOREVER, "b": FOREVER}
        rig.world.raise_event(reclaim("a", within_s=20.0))
        rig.world.raise_event(reclaim("b", within_s=4.0))
        await rig.carry_out(drain("b", 4.0), drain("a", 20.0), stop("b"), stop("a"))
        assert dict(rig.world.dispatch.emptied) == {"a": 20.0 - LIMITS.hand_back_s, "b": 2.0}
        assert rig.world["a"].asked == [("stop", 15.0)]

    rigged(test, worker("a"), worker("b"), worker("c"))


# Dropped


@pytest.mark.parametrize(
    "step", [drain("gone"), change("a", C, C), deactivate("idle"), activate("a"), borrow("a"), start("a"), stop("new")]
)
def test_a_step_with_nothing_to_do_is_dropped_with_its_reason(step: Step) -> None:
    async def test(rig: Rig) -> None:
        before = rig.world.ledger.state
        await rig.carry_out(step)
        assert rig.phases(step) == [DROPPED]
        assert rig.why(step)
        assert rig.world.ledger.state == before
        assert rig.world["a"].calls == []

    rigged(test, worker("a"), worker("idle", IDLE), new("new"))


def test_a_worker_that_must_leave_takes_no_new_role() -> None:
    async def test(rig: Rig) -> None:
        rig.world.raise_event(reclaim("a", "b"))
        await rig.carry_out(change("a", C, P), activate("b"))
        assert (rig.now("a"), rig.now("b")) == ((C, ACTIVE), (IDLE, INACTIVE))

    rigged(test, worker("a"), worker("b", IDLE))


def test_steps_of_a_worker_that_is_lost_in_the_middle_are_over() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["a"] = 20.0
        rig.plan(drain("a"), change("a", C, P), drain("b"), change("b", C, D))
        await at(1.0)
        await rig.executor.lose(["a"])
        await rig.executor.settle()
        assert rig.phases(drain("a")) == [BEGAN, FAILED]
        assert rig.phases(change("a", C, P)) == [DROPPED]
        assert rig.now("b") == (D, ACTIVE)
        assert rig.world["a"].dead

    rigged(test, worker("a"), worker("b"))


# A newer plan


def test_a_newer_plan_drops_what_has_not_begun_and_drained_workers_serve_on() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["a"] = 20.0
        rig.plan(drain("a"), change("a", C, P), drain("b"), change("b", C, D))
        await at(1.0)
        rig.executor.cancel_pending()
        assert not rig.executor.busy or rig.now("a") == (C, ACTIVE)
        await rig.executor.settle()
        assert (rig.now("a"), rig.now("b")) == ((C, ACTIVE), (C, ACTIVE))
        assert not rig.executor.busy
        assert rig.phases(change("a", C, P)) == [DROPPED]
        assert "newer plan" in rig.why(change("a", C, P))
        assert now_s() == 1.0

    rigged(test, worker("a"), worker("b"))


def test_a_worker_that_had_drained_for_a_dropped_step_serves_on() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["b"] = 20.0
        rig.plan(drain("a"), drain("b"), change("a", C, P), change("b", C, P))
        await at(1.0)
        assert rig.now("a") == (C, TRANSITIONING)
        rig.executor.cancel_pending()
        assert rig.now("a") == rig.now("b") == (C, ACTIVE)

    rigged(test, worker("a"), worker("b"))


def test_a_newer_plan_in_the_same_turn_drains_anew() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["a"] = 20.0
        rig.plan(drain("a"), change("a", C, P))
        await at(1.0)
        rig.executor.cancel_pending()
        rig.plan(drain("a"), deactivate("a"), id="p2")
        await rig.executor.settle()
        assert rig.world.dispatch.emptied == [("a", LIMITS.drain_s)] * 2
        assert now_s() == 21.0
        assert rig.now("a") == (IDLE, INACTIVE)

    rigged(test, worker("a"), worker("b"))


def test_a_group_whose_engines_start_is_still_admitted_after_a_newer_plan() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0)
        rig.world.dispatch.busy_s["a"] = 20.0
        rig.plan(start("n1"), drain("a"), change("a", C, P), admit("n1"))
        await at(1.0)
        rig.executor.cancel_pending()
        await rig.executor.settle()
        assert rig.now("n1") == (C, ACTIVE)
        assert rig.now("a") == (C, ACTIVE)

    rigged(test, worker("a"), new("n1"))


def test_a_newer_plan_does_not_wait_for_engines_that_start() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0)
        rig.plan(start("n1"), admit("n1"))
        await at(1.0)
        rig.executor.cancel_pending()
        rig.plan(drain("a"), change("a", C, D), id="p2")
        await at(2.0)
        assert rig.now("a") == (D, ACTIVE)
        assert rig.now("n1") == (C, TRANSITIONING)
        assert not rig.executor.busy
        await rig.executor.settle()
        assert rig.now("n1") == (C, ACTIVE)

    rigged(test, worker("a"), new("n1"))


def test_a_worker_that_must_leave_does_not_serve_on_after_a_newer_plan() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["a"] = 20.0
        rig.world.raise_event(reclaim("a"))
        rig.plan(drain("a"), stop("a"))
        await at(1.0)
        rig.executor.cancel_pending()
        assert rig.now("a") == (C, TRANSITIONING)
        await rig.carry_out(drain("a"), stop("a"), id="p2")
        assert rig.phases(stop("a")) == [DROPPED, BEGAN, ENDED]
        assert rig.world["a"].calls == ["stop"]
        assert now_s() == 20.0

    rigged(test, worker("a"), worker("b"))


# Failures


def test_a_worker_that_fails_a_transition_leaves_the_pool_and_comes_back_without_an_engine() -> None:
    async def test(rig: Rig) -> None:
        rig.world["a"].failures["canary"] = UnfitError("wrong tokens")
        await rig.carry_out(activate("a"))
        assert rig.phases(activate("a")) == [BEGAN, FAILED]
        assert rig.why(activate("a")) == "wrong tokens"
        assert "a" not in rig.world.ledger.state.by_id
        assert rig.world["a"].dead
        await at(LIMITS.restart_after_s + 1)
        assert rig.now("a") == (IDLE, INACTIVE)
        assert not rig.world.now("a").started
        assert [event.kind.value for event in rig.world.events] == ["gpus_lost", "gpus_added"]
        assert rig.world["b"].calls == []

    rigged(test, worker("a", IDLE), worker("b"))


def test_a_worker_whose_node_is_gone_does_not_come_back() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.alive = set()
        await rig.executor.lose(["a"])
        await at(1000.0)
        assert [event.kind.value for event in rig.world.events] == ["gpus_lost"]

    rigged(test, worker("a"), worker("b"))


def test_the_pause_before_a_new_engine_doubles_until_its_limit() -> None:
    async def test(rig: Rig) -> None:
        pauses = []
        for _ in range(8):
            lost_s = now_s()
            await rig.executor.lose(["a"])
            while "a" not in rig.world.ledger.state.by_id:
                await asyncio.sleep(0.5)
            pauses.append(round(now_s() - lost_s))
        assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]

    rigged(test, new("a"))


def test_a_call_that_never_answers_ends_at_its_limit() -> None:
    async def test(rig: Rig) -> None:
        rig.world["a"].delays["admit"] = FOREVER
        await rig.carry_out(activate("a"))
        assert "no answer to admit in 30 s" in rig.why(activate("a"))
        assert rig.lost() == [("a",)]

    rigged(test, worker("a", IDLE), worker("b"))


def test_what_cannot_be_ended_is_tried_again() -> None:
    async def test(rig: Rig) -> None:
        rig.world["a"].once["stop"] = PearlError("busy")
        await rig.carry_out(stop("a"))
        assert rig.world["a"].calls == ["stop", "stop"]
        assert rig.phases(stop("a")) == [BEGAN, ENDED]

    rigged(test, worker("a"), worker("b"))


# Reclaim and death


def test_at_the_end_of_the_grace_the_gpus_are_lost_and_the_engine_ends_whatever_goes_on() -> None:
    async def test(rig: Rig) -> None:
        rig.world.dispatch.busy_s["a"] = FOREVER
        rig.world["a"].delays["stop"] = 2.0
        rig.plan(drain("a"))
        rig.world.raise_event(reclaim("a", within_s=10.0))
        await at(9.9)
        assert rig.lost() == []
        await at(10.1)
        assert rig.lost() == [("a",)]
        await rig.executor.settle()
        assert rig.world["a"].asked == [("stop", 10.0)]
        await at(2000.0)
        assert "a" not in rig.world.ledger.state.by_id, "reclaimed GPUs are not ours to start on"

    rigged(test, worker("a"), worker("b"))


def test_a_notice_that_is_taken_back_loses_nothing() -> None:
    async def test(rig: Rig) -> None:
        rig.world.raise_event(reclaim("a", within_s=10.0))
        await at(5.0)
        rig.world.ledger.put(replace(rig.world.now("a"), must_leave=False, leave_within_s=None))
        await at(50.0)
        assert rig.lost() == []
        assert rig.now("a") == (C, ACTIVE)

    rigged(test, worker("a"), worker("b"))


def test_a_worker_under_notice_when_the_controller_starts_keeps_its_deadline() -> None:
    async def test(rig: Rig) -> None:
        await at(11.0)
        assert rig.lost() == [("a",)]

    rigged(test, worker("a", must_leave=True, leave_within_s=10.0), worker("b"))


def test_a_worker_that_dies_under_a_reclaim_notice_does_not_come_back() -> None:
    async def test(rig: Rig) -> None:
        rig.world.raise_event(reclaim("a", within_s=100.0))
        await rig.executor.lose(["a"])
        await at(2000.0)
        assert [event.kind.value for event in rig.world.events] == ["reclaim_notice", "gpus_lost"]

    rigged(test, worker("a"), worker("b"))


def test_overlap_gpus_under_a_reclaim_notice_are_lost_at_its_end() -> None:
    async def test(rig: Rig) -> None:
        rig.world.raise_event(reclaim("o", within_s=10.0))
        await at(11.0)
        assert rig.lost() == [("o",)]
        assert rig.world["o"].dead

    rigged(test, worker("a"), asleep("o"))


def test_losing_a_worker_twice_is_the_same_as_once() -> None:
    async def test(rig: Rig) -> None:
        rig.world["a"].delays["stop"] = 3.0
        await asyncio.gather(rig.executor.lose(["a"]), rig.executor.lose(["a", "unknown"]))
        assert rig.lost() == [("a",)]
        assert rig.world["a"].calls == ["stop"]
        assert now_s() == 3.0

    rigged(test, worker("a"), worker("b"))


# Measuring


def test_costs_say_whether_the_rollout_step_borrowed() -> None:
    async def test(rig: Rig) -> None:
        await rig.carry_out(deactivate("a"))
        await rig.carry_out(borrow("o"))
        await rig.carry_out(activate("a"))
        await rig.carry_out(give_back("o"))
        rig.executor.batch_began()
        await rig.carry_out(deactivate("a"))
        flags = [(r.kind.value, r.borrowing) for r in rig.measured]
        assert flags == [
            ("deactivate", False),
            ("borrow", True),
            ("activate", True),
            ("return", True),
            ("deactivate", False),
        ]

    rigged(test, worker("a"), worker("b"), asleep("o"))


def test_closing_leaves_workers_as_they_are() -> None:
    async def test(rig: Rig) -> None:
        rig.world.fleet.prepare = lambda w: w.delays.update(start=60.0)
        rig.world.raise_event(reclaim("a", within_s=50.0))
        rig.plan(start("n1"), drain("b"), admit("n1"))
        await at(1.0)
        told = len(rig.told)
        await rig.executor.aclose()
        await at(500.0)
        assert rig.world["n1"].calls == ["start"]
        assert "stop" not in rig.world["a"].calls
        assert len(rig.told) == told
        assert rig.lost() == []

    rigged(test, worker("a"), worker("b"), new("n1"))


def test_a_dead_worker_is_told_by_its_calls() -> None:
    async def test(rig: Rig) -> None:
        rig.world["a"].dead = True
        await rig.carry_out(deactivate("a"))
        assert rig.phases(deactivate("a")) == [BEGAN, FAILED]
        assert rig.lost() == [("a",)]

    rigged(test, worker("a", zone=Zone.PREEMPTIBLE), worker("b"))
