"""The controller over fakes: events become decisions, decisions plans; what is asked of it; what stops it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pearl.core.cluster import Role, Status, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.event import Event, EventKind
from pearl.core.plan import AdmitGroup, Drain, Start, Stop
from pearl.errors import PolicyError, SolverUnavailableError, UsageError
from pearl.live.control.bootstrap import bootstrap_plan, first_record
from pearl.live.control.intake import ClosedError
from pearl.live.control.lease import LeaseError
from pearl.live.control.pipeline import StaleError
from pearl.live.control.recovery import Beginning
from pearl.live.control.store import Fact, StoreError
from pearl.live.control.views import plan_view
from tests.live.control.rig import POOL, beginning, idle, make, run, snapshot, state, worker


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


class GoesAway:
    """Awaits `work` until it waits for the `nth` time, and cancels it there, as a client does that goes away."""

    def __init__(self, work: Coroutine[Any, Any, Any], nth: int) -> None:
        self._work = work
        self._nth = nth

    def __await__(self) -> Generator[Any, Any, Any]:
        waits = self._work.__await__()
        try:
            for _ in range(self._nth - 1):
                yield next(waits)
            next(waits)
            waits.throw(asyncio.CancelledError())
        except StopIteration as e:
            return e.value


def test_a_policy_whose_sender_goes_away_is_kept_and_in_force_or_neither(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL))
        await rig.start(beginning(*POOL))
        controller, store, before = rig.controller, rig.store, rig.controller.policy
        for nth in itertools.count(1):
            try:
                await GoesAway(controller.set_policy(POLICY, name="given.yaml"), nth)
            except asyncio.CancelledError:
                assert (controller.policy is before) == (store.fact(Fact.POLICY) is None), f"at wait {nth}"
                continue
            break
        assert nth > 2, "it was cancelled, and at more than one place"
        assert controller.policy is not before
        assert store.fact(Fact.POLICY) is not None
        await rig.idle()
        assert rig.decisions()[-1]["policy"]["sha256"] == controller.policy.sha256
        await rig.aclose()

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
