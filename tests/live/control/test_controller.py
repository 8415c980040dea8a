from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.event import Event, EventKind
from pearl.core.plan import AdmitGroup, Drain, Return, Start, Stop
from pearl.errors import PolicyError, SolverUnavailableError, UsageError
from pearl.live.control.bootstrap import bootstrap_plan, first_record
from pearl.live.control.intake import ClosedError
from pearl.live.control.lease import LeaseError
from pearl.live.control.ledger import Record
from pearl.live.control.pipeline import StaleError
from pearl.live.control.recovery import Beginning, begin
from pearl.live.control.store import ControlStore, Fact, StoreError
from pearl.live.control.views import plan_view
from tests.live.control.fakes import FakeFleet
from tests.live.control.rig import Rig, idle, make, run, snapshot, state, worker

POOL = (*(worker(f"w{i}", Role.PREFILL) for i in range(3)), worker("w3", Role.DECODE))
"""3P1D, which is 3.0 s worse than 1P3D in this world."""


def beginning(*workers: Worker, **fields: Any) -> Beginning:
    return Beginning(record=Record(state=state(*workers), **fields))


def lent(name: str) -> Worker:
    return worker(name, zone=Zone.OVERLAP)


def test_the_first_start_serves_on_all_reserved_workers(tmp_path: Path) -> None:
    async def work() -> None:
        offered = [idle("a"), idle("b"), idle("p", zone=Zone.PREEMPTIBLE), idle("o", zone=Zone.OVERLAP)]
        rig = make(tmp_path, Beginning(record=first_record(offered)), workload=False)
        await rig.start(Beginning(record=first_record(offered)))
        await rig.idle()
        steps = rig.executor.plans["p-000001"]
        assert [type(step) for step in steps] == [Start, Start, AdmitGroup]
        assert rig.ledger.state.counts.label() == "2C"
        document = rig.decisions()[0]
        assert (document["decision"]["outcome"], document["plan"]) == ("bootstrap", "p-000001")
        rig.controller.add_workers([idle("c")])
        await rig.idle()
        assert rig.ledger.state.counts.label() == "3C", "nothing is known, so that who joins serves"
        await rig.aclose()

    run(work())


def test_who_joins_a_disaggregated_pool_of_an_unknown_workload_decodes() -> None:
    plan = bootstrap_plan(state(worker("a", Role.PREFILL), worker("b", Role.DECODE), idle("c")), TransitionCosts())
    assert [step.role for step in plan.steps if isinstance(step, Start)] == [Role.DECODE]
    assert bootstrap_plan(state(idle("c", must_leave=True)), TransitionCosts()).empty


def test_events_become_decisions_and_decisions_plans(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL))
        await rig.start(beginning(*POOL))
        number = rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
        await rig.idle()
        (document,) = rig.decisions()
        assert document["event"] == {"seq": number, "kind": "batch_started", "workers": []}
        assert document["policy"]["name"] == rig.controller.policy.name
        assert document["decision"]["outcome"] == "switch"
        assert document["predicted"]["makespan_s"] < document["predicted"]["stay_s"]
        (plan,) = rig.store.plans(limit=9)
        assert document["plan"] == "p-000001"
        shown = plan_view(plan, rig.store.progress(1))
        assert {step["phase"] for step in shown["steps"]} == {"ended"}
        assert rig.ledger.state.counts.label() == document["decision"]["configuration"]
        assert rig.observer.batches == 1
        assert [event.kind for event in rig.observer.heard] == [EventKind.BATCH_STARTED]
        await rig.aclose()

    run(work())


def test_a_decision_that_left_workers_alone_is_followed_by_another_once_they_rest(tmp_path: Path) -> None:
    async def work() -> None:
        busy = replace(POOL[0], status=Status.TRANSITIONING)
        rig = make(tmp_path, beginning(busy, *POOL[1:]))
        await rig.start(beginning(busy, *POOL[1:]))
        rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
        await rig.idle()
        assert len(rig.decisions()) == 1
        rig.ledger.put(POOL[0])
        await asyncio.sleep(0)  # the event is raised once the change has been told to all
        await rig.idle()
        kinds = {document["event"]["kind"] for document in rig.decisions()}
        assert kinds == {"batch_started", "operator"}
        assert len(rig.decisions()) == 2, "nobody was in transition at the second"
        assert rig.ledger.state.counts.label() == "1P3D"
        await rig.aclose()

    run(work())


def test_a_worker_that_must_leave_stops_at_once_and_goes(tmp_path: Path) -> None:
    async def work() -> None:
        spot = worker("p", zone=Zone.PREEMPTIBLE)
        rig = make(tmp_path, beginning(*POOL, spot))
        await rig.start(beginning(*POOL, spot))
        rig.controller.reclaim(workers=["p"], grace_s=30)
        assert rig.ledger.state.by_id["p"].must_leave, "in the same turn"
        await rig.idle()
        steps = [step for plan in rig.executor.plans.values() for step in plan]
        assert Stop in {type(step) for step in steps if getattr(step, "worker", "") == "p"}
        assert [step.deadline_s for step in steps if isinstance(step, Drain) and step.worker == "p"] == [30]
        assert not rig.ledger.state.by_id["p"].started
        await rig.aclose()

    run(work())


def test_repeated_and_late_reports_lead_to_no_tick(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL))
        await rig.start(beginning(*POOL))
        first = rig.controller.raise_event(Event(kind=EventKind.GPUS_LOST, workers=("w0",)), "loss-1")
        assert rig.controller.raise_event(Event(kind=EventKind.GPUS_LOST, workers=("w0",)), "loss-1") == first
        late = rig.controller.raise_event(Event(kind=EventKind.GPUS_LOST, workers=("w0", "gone")))
        await rig.idle()
        assert late == first + 1
        assert len(rig.decisions()) == 1
        assert [e.data.get("changed", True) for e in rig.store.events(after=0, limit=9)] == [True, False]
        assert "w0" in rig.executor.lost
        with pytest.raises(UsageError, match="no worker 'w0'"):
            rig.controller.reclaim(workers=["w0"], grace_s=1)
        with pytest.raises(UsageError, match="node 'x' holds no worker"):
            rig.controller.reclaim(node="x", grace_s=1)
        await rig.aclose()

    run(work())


def test_shadow_decides_and_does_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL), shadow=True)
        await rig.start(beginning(*POOL))
        rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
        await rig.idle()
        (document,) = rig.decisions()
        assert (document["shadow"], document["decision"]["outcome"]) == (True, "switch")
        assert rig.store.plan(1) is not None
        assert rig.executor.plans == {}
        assert rig.ledger.state.counts.label() == "3P1D"
        await rig.aclose()

    run(work())


class BrokenSolver:
    """Stands for a solver whose library went away."""

    id = "broken"
    capabilities = None

    def __getattr__(self, name: str) -> Any:
        raise SolverUnavailableError("its library is gone")


def test_a_tick_that_fails_is_stored_and_mandatory_leaves_still_happen(tmp_path: Path) -> None:
    async def work() -> None:
        broken: Any = BrokenSolver()
        rig = make(tmp_path, beginning(*POOL), solver=broken)
        await rig.start(beginning(*POOL))
        rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
        await rig.idle()
        rig.controller.reclaim(workers=["w3"], grace_s=5)
        await rig.idle()
        first, second = rig.decisions()
        assert first["decision"]["outcome"] == "failed"
        assert "SolverUnavailableError: its library is gone" in first["decision"]["reasons"][0]["text"]
        assert first["plan"] is None
        assert second["plan"] == "p-000001"
        assert not rig.ledger.state.by_id["w3"].started
        assert rig.controller.parts.metrics.value("pearl_decisions_total", outcome="failed") == 2
        assert rig.running is not None
        assert not rig.running.done()
        await rig.aclose()

    run(work())


def test_training_gets_the_overlap_zone_and_gives_it_back(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1"), lent("o2")))
        await rig.start(beginning(*POOL, lent("o1"), lent("o2")))
        trainer = rig.controller.trainer
        handover = await trainer.begin(step=7, deadline_s=10, force=True)
        assert set(handover.released) == {"o1", "o2"}
        assert await trainer.begin(step=7, deadline_s=10, force=True) == handover
        assert trainer.running
        assert all(w.must_leave for w in rig.ledger.state.workers if w.zone is Zone.OVERLAP)
        with pytest.raises(StaleError):
            await trainer.begin(step=6, deadline_s=10, force=True)
        assert trainer.finish(step=7, window_s=60)
        assert not trainer.finish(step=7, window_s=60)
        assert not any(w.must_leave for w in rig.ledger.state.workers)
        with pytest.raises(StaleError, match="training step 7 is over"):
            await trainer.begin(step=7, deadline_s=10, force=True)
        with pytest.raises(StaleError):
            trainer.finish(step=6, window_s=None)
        await rig.idle()
        kinds = [e.kind for e in rig.store.events(after=0, limit=9)]
        assert kinds == ["training_started", "training_finished"]
        await rig.aclose()

    run(work())


def test_calls_of_a_trainer_out_of_order(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        trainer = rig.controller.trainer
        assert trainer.finish(step=3, window_s=None), "the finish overtook the begin"
        with pytest.raises(StaleError):
            await trainer.begin(step=3, deadline_s=1, force=True)
        assert not trainer.running
        await trainer.begin(step=4, deadline_s=1, force=True)
        await trainer.begin(step=6, deadline_s=1, force=True)
        assert trainer.training.running == 6, "the finish of step 4 was lost"
        with pytest.raises(StaleError):
            trainer.finish(step=4, window_s=None)
        assert trainer.running
        await rig.aclose()

    run(work())


def test_a_begin_that_times_out_or_is_cancelled_is_rolled_back(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        trainer, rig.executor.slow_s = rig.controller.trainer, 60.0
        with pytest.raises(TimeoutError):
            await trainer.begin(step=1, deadline_s=0.05, force=False)
        assert not trainer.running
        assert not rig.ledger.state.by_id["o1"].must_leave

        one = asyncio.create_task(trainer.begin(step=1, deadline_s=50, force=False))
        two = asyncio.create_task(trainer.begin(step=1, deadline_s=50, force=False))
        await asyncio.sleep(0.05)
        assert rig.ledger.state.by_id["o1"].must_leave
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert trainer.running, "the other one still waits"
        two.cancel()
        await asyncio.gather(two, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert not trainer.running
        assert rig.executor.cancelled == 1
        assert not rig.ledger.state.by_id["o1"].must_leave

        waiting = asyncio.create_task(trainer.begin(step=1, deadline_s=50, force=False))
        await asyncio.sleep(0.05)
        trainer.finish(step=1, window_s=None)
        with pytest.raises(StaleError, match="finished before it began"):
            await waiting
        assert not rig.ledger.state.by_id["o1"].must_leave
        await rig.aclose()

    run(work())


def test_callers_of_a_step_that_was_overtaken_are_not_counted_for_the_newer_one(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        trainer, rig.executor.slow_s = rig.controller.trainer, 0.1
        older = asyncio.create_task(trainer.begin(step=4, deadline_s=50, force=False))
        await asyncio.sleep(0.05)
        rig.executor.slow_s = 40.0
        newer = asyncio.create_task(trainer.begin(step=6, deadline_s=50, force=False))
        await older
        assert trainer.training.running == 6
        newer.cancel()
        await asyncio.gather(newer, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert not trainer.running, "nobody waits for step 6 any more"
        assert not rig.ledger.state.by_id["o1"].must_leave
        await rig.aclose()

    run(work())


def test_training_undoes_neither_a_drain_nor_a_reclaim(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1"), lent("o2"), lent("o3")))
        await rig.start(beginning(*POOL, lent("o1"), lent("o2"), lent("o3")))
        drains, trainer, ledger = rig.controller.drains, rig.controller.trainer, rig.ledger

        def told(name: str) -> tuple[bool, float | None]:
            return ledger.state.by_id[name].must_leave, ledger.state.by_id[name].leave_within_s

        rig.controller.reclaim(workers=["o1"], grace_s=60)
        await trainer.begin(step=1, deadline_s=5, force=True)
        await drains.drain("o2", deadline_s=5)
        assert (told("o1"), told("o2"), told("o3")) == ((True, 60.0), (True, None), (True, 5.0))
        trainer.finish(step=1, window_s=None)
        assert (told("o1"), told("o2"), told("o3")) == ((True, 60.0), (True, None), (False, None))
        await trainer.begin(step=2, deadline_s=5, force=True)
        assert drains.undo("o2")
        assert told("o2") == (True, None), "the trainer has it"
        trainer.finish(step=2, window_s=None)
        assert (told("o1"), told("o2")) == ((True, 60.0), (False, None))
        await rig.idle()
        await rig.aclose()

    run(work())


def test_an_operator_drains_and_takes_it_back(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        drains, trainer = rig.controller.drains, rig.controller.trainer
        await drains.drain("w1", deadline_s=10)
        assert not rig.ledger.state.by_id["w1"].started
        await drains.drain("w1", deadline_s=10)
        await drains.drain("o1", deadline_s=10)
        await trainer.begin(step=1, deadline_s=1, force=True)
        trainer.finish(step=1, window_s=None)
        assert rig.ledger.state.by_id["o1"].must_leave, "the end of training does not undo a drain"
        assert drains.undo("o1")
        assert not drains.undo("o1")
        assert not rig.ledger.state.by_id["o1"].must_leave
        rig.controller.reclaim(workers=["w1"], grace_s=60)
        assert not drains.undo("w1"), "it is reclaimed by now, which nobody can take back"
        assert rig.ledger.state.by_id["w1"].must_leave
        with pytest.raises(UsageError, match="no worker 'x'"):
            drains.undo("x")
        await rig.idle()
        await rig.aclose()

    run(work())


def test_undoing_a_drain_while_the_trainer_has_the_zone_lends_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        await rig.controller.drains.drain("o1", deadline_s=10)
        await rig.controller.trainer.begin(step=1, deadline_s=1, force=True)
        assert rig.controller.drains.undo("o1")
        assert rig.ledger.state.by_id["o1"].must_leave
        rig.controller.trainer.finish(step=1, window_s=None)
        assert not rig.ledger.state.by_id["o1"].must_leave
        await rig.aclose()

    run(work())


def test_a_drain_waits_until_its_deadline(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL), held=True)
        await rig.start(beginning(*POOL))
        with pytest.raises(TimeoutError):
            await rig.controller.drains.drain("w1", deadline_s=0.1)
        assert rig.ledger.state.by_id["w1"].must_leave
        await rig.aclose()

    run(work())


def test_weights_are_checked_published_once_and_never_go_back(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL))
        await rig.start(beginning(*POOL))
        two, three = snapshot(tmp_path, 2), snapshot(tmp_path, 3)
        rig.executor.slow_s = 0.05
        both = [asyncio.create_task(rig.controller.publish(version=3, directory=three)) for _ in range(2)]
        await asyncio.sleep(0.01)
        both[0].cancel()
        done = await both[1]
        assert (done.version, len(done.updated), len(rig.executor.published)) == (3, 4, 1)
        assert str(three) in (rig.store.fact(Fact.WEIGHTS) or "")
        with pytest.raises(StaleError, match="weights 2 are older than the newest, 3"):
            await rig.controller.publish(version=2, directory=two)
        with pytest.raises(UsageError, match="outside of the weight store"):
            await rig.controller.publish(version=4, directory=tmp_path)
        await rig.aclose()

    run(work())


POLICY = """\
apiVersion: pearl.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: mine}
extends: [builtin/pearl]
spec: {}
"""


def test_another_policy_is_checked_used_and_found_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL))
        await rig.start(beginning(*POOL))
        with pytest.raises(PolicyError, match=r"^given\.yaml:1:1") as caught:
            await rig.controller.set_policy("nonsense: 1\n", name="given.yaml")
        assert len(caught.value.faults) > 0
        assert list(tmp_path.glob("policy-*.yaml")) == []
        before = rig.controller.policy
        policy = await rig.controller.set_policy(POLICY, name="given.yaml")
        await rig.idle()
        assert rig.decisions()[-1]["policy"] == {"name": policy.name, "sha256": policy.sha256}
        assert policy.sha256 != before.sha256
        await rig.aclose()

        again = make(tmp_path, beginning(*POOL))
        assert again.controller.policy.sha256 == policy.sha256
        await again.controller.aclose()
        again.store.close()

    run(work())


def test_losing_the_lease_stops_everything(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL), lease_s=0.3)
        await rig.start(beginning(*POOL))
        assert rig.running is not None
        rig.leases.down = True
        with pytest.raises(LeaseError, match="lost its lease"):
            await asyncio.wait_for(rig.running, 5)
        with pytest.raises(LeaseError):
            rig.controller.raise_event(Event(kind=EventKind.OPERATOR))
        with pytest.raises(LeaseError):
            await rig.controller.publish(version=1, directory=snapshot(tmp_path, 1))
        assert rig.executor.plans == {}
        await rig.aclose()
        assert rig.executor.closed
        with pytest.raises(ClosedError):
            rig.controller.raise_event(Event(kind=EventKind.OPERATOR))

    run(work())


def test_a_store_that_cannot_be_written_stops_everything(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL))
        await rig.start(beginning(*POOL))
        rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
        rig.store._db.execute("DROP TABLE decisions")
        assert rig.running is not None
        with pytest.raises(StoreError, match="cannot write"):
            await asyncio.wait_for(rig.running, 5)
        assert rig.executor.plans == {}, "a plan that is not stored does not begin"
        with pytest.raises(StoreError):
            rig.controller.raise_event(Event(kind=EventKind.OPERATOR))
        await rig.aclose()

    run(work())


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
