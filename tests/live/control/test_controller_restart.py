"""A controller that was killed, and the next one: the store is all that it left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from pearl.core.cluster import Status, Zone
from pearl.core.event import Event, EventKind
from pearl.core.plan import Return
from pearl.live.control.bootstrap import first_record
from pearl.live.control.recovery import Beginning, begin
from pearl.live.control.store import ControlStore
from pearl.live.control.views import plan_view
from tests.live.control.fakes import FakeFleet
from tests.live.control.rig import POOL, Rig, beginning, idle, lent, make, run, worker


def fleet_behind(rig: Rig) -> FakeFleet:
    fleet = FakeFleet(alive={"n"})
    fleet.adopt(rig.ledger.state, rig.ledger.record.versions)
    return fleet


def test_killed_in_the_middle_of_a_plan_the_next_one_goes_on_where_the_workers_are(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL), held=True)
        await rig.start(beginning(*POOL))
        rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED), "batch-0")
        await rig.idle()
        steps = len(rig.executor.plans["p-000001"])
        assert steps > 1
        rig.executor.let_go(1)
        await asyncio.sleep(0.01)
        rig.kill()
        fleet = fleet_behind(rig)
        fleet.workers["w3"].dead = True

        store = ControlStore(tmp_path / "controller.db")
        found = await begin(store, fleet, offered=POOL, epoch=40)
        assert found.resumed
        assert found.record.state.epoch > 40
        assert [w.id for w in found.record.state.workers if not w.started] == ["w3"]
        again = make(tmp_path, found, store=store)
        await again.start(found)
        await again.idle()
        assert again.ledger.state.counts.label() == again.decisions()[-1]["decision"]["configuration"]
        assert all(w.status is not Status.TRANSITIONING for w in again.ledger.state.workers)
        old = plan_view(*_plan(store, 1))
        assert {step["phase"] for step in old["steps"]} == {"ended", "dropped"}
        assert again.controller.raise_event(Event(kind=EventKind.BATCH_STARTED), "batch-0") == 1, "it is not lost"
        numbers = [entry.number for entry in store.decisions(limit=99)]
        assert numbers == list(range(1, len(numbers) + 1))
        await again.aclose()

    run(work())


def _plan(store: ControlStore, number: int) -> Any:
    plan = store.plan(number)
    assert plan is not None
    return plan, store.progress(number)


def test_killed_while_a_group_starts_it_is_rolled_back_and_started_anew(tmp_path: Path) -> None:
    async def work() -> None:
        record = first_record([idle("a"), idle("b")])
        rig = make(tmp_path, Beginning(record=record), workload=False, held=True)
        await rig.start(Beginning(record=record))
        rig.executor.let_go(2)  # both start; the group is not admitted yet
        await asyncio.sleep(0.01)
        rig.kill()
        fleet = FakeFleet(alive={"n"})
        fleet.adopt(rig.ledger.state)
        fleet.workers["a"].status = Status.INACTIVE  # it came up, and nobody admitted it
        fleet.workers["b"].dead = True  # it never did

        store = ControlStore(tmp_path / "controller.db")
        found = await begin(store, fleet, offered=(idle("a"), idle("b")))
        assert fleet.workers["a"].dead, "all or none"
        assert not any(w.started for w in found.record.state.workers)
        again = make(tmp_path, found, store=store, workload=False)
        await again.start(found)
        await again.idle()
        assert again.ledger.state.counts.label() == "2C"
        await again.aclose()

    run(work())


def test_killed_while_the_trainer_waits_its_retry_gets_the_zone(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")), held=True)
        await rig.start(beginning(*POOL, lent("o1")))
        rig.executor.slow_s = 60.0
        waiting = asyncio.create_task(rig.controller.trainer.begin(step=5, deadline_s=50, force=True))
        await asyncio.sleep(0.1)
        fleet = fleet_behind(rig)
        rig.kill()
        store = ControlStore(tmp_path / "controller.db")
        found = await begin(store, fleet, offered=(*POOL, lent("o1")))
        again = make(tmp_path, found, store=store)
        await again.start(found)
        assert again.controller.trainer.running
        assert again.ledger.state.by_id["o1"].must_leave
        await again.idle()
        steps = [step for plan in again.executor.plans.values() for step in plan]
        assert any(isinstance(step, Return) and step.worker == "o1" for step in steps), "also if nobody asks again"
        handover = await again.controller.trainer.begin(step=5, deadline_s=50, force=True)
        assert handover.released == ("o1",)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await again.aclose()

    run(work())


def test_a_node_that_went_meanwhile_is_lost_and_one_that_came_is_added(tmp_path: Path) -> None:
    async def work() -> None:
        far = worker("far", node="m", zone=Zone.PREEMPTIBLE)
        rig = make(tmp_path, beginning(*POOL, far))
        await rig.start(beginning(*POOL, far))
        rig.ledger.put(replace(far, status=Status.TRANSITIONING))
        await asyncio.sleep(0.01)
        fleet = fleet_behind(rig)
        fleet.workers["stranger"] = fleet.workers["w0"].__class__(name="stranger")
        rig.kill()
        store = ControlStore(tmp_path / "controller.db")
        offered = (*POOL, idle("new", zone=Zone.PREEMPTIBLE))
        found = await begin(store, fleet, offered=offered, orphans=["stranger"])
        again = make(tmp_path, found, store=store)
        await again.start(found)
        assert set(again.ledger.state.by_id) == {"w0", "w1", "w2", "w3", "new"}
        assert (fleet.workers["far"].dead, fleet.workers["stranger"].dead) == (True, True)
        await again.idle()
        await again.aclose()

    run(work())
