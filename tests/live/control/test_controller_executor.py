"""The controller with the live executor; workers, fleet and router are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.live.control.bootstrap import first_record
from pearl.live.control.executor import LiveExecutor
from pearl.live.control.ledger import Record
from pearl.live.control.limits import ControlLimits
from pearl.live.control.recovery import Beginning, begin
from pearl.live.control.store import ControlStore
from tests.live.control.fakes import FakeDispatch, FakeFleet, FakeWorker
from tests.live.control.rig import POOL, Rig, idle, make, run, snapshot, state, worker

LIMITS = ControlLimits(restart_after_s=0.05, drain_s=0.2, kept_s=0.01, health_every_s=0.1)


def over(fleet: FakeFleet) -> Callable[..., LiveExecutor]:
    def executes(*, ledger: Any, intake: Any, progress: Any, clock: Any) -> LiveExecutor:
        return LiveExecutor(
            ledger=ledger,
            fleet=fleet,
            dispatch=FakeDispatch(),
            limits=LIMITS,
            now_s=clock.now_s,
            raise_event=intake.raise_event,
            tell=progress.tell,
            telemetry=progress.record,
            max_staleness=1,
        )

    return executes


async def rig_over(directory: Path, fleet: FakeFleet, *workers: Worker, **given: Any) -> Rig:
    start = Beginning(record=Record(state=state(*workers)))
    fleet.adopt(start.record.state)
    rig = make(directory, start, executes=over(fleet), **given)
    await rig.start(start)
    return rig


async def settled(rig: Rig) -> None:
    await rig.idle()
    async with asyncio.timeout(10):
        await rig.executor.settle()
    await rig.idle()


def test_from_an_empty_cluster_to_a_serving_one_that_changes(tmp_path: Path) -> None:
    async def work() -> None:
        fleet = FakeFleet(alive={"n"})
        record = first_record(idle(f"w{i}") for i in range(3))
        rig = make(tmp_path, Beginning(record=record), executes=over(fleet))
        await rig.start(Beginning(record=record))
        await settled(rig)
        assert rig.ledger.state.counts.label() == "3C"
        assert all(w.status is Status.ACTIVE for w in fleet.workers.values())

        rig.controller.add_workers([idle("p", zone=Zone.PREEMPTIBLE)])
        await settled(rig)
        assert rig.ledger.state.counts.serving == 4
        rig.controller.reclaim(workers=["p"], grace_s=5)
        await settled(rig)
        assert fleet.workers["p"].dead
        assert not rig.ledger.state.by_id["p"].started
        transitions = rig.controller.metrics_text()
        assert 'pearl_transition_seconds_count{borrowing="false",kind="start"} 4' in transitions
        await rig.aclose()

    run(work())


def test_a_dead_worker_is_replaced_and_its_report_twice_is_one_loss(tmp_path: Path) -> None:
    async def work() -> None:
        fleet = FakeFleet(alive={"n"})
        rig = await rig_over(tmp_path, fleet, *POOL)
        dead = fleet.workers["w0"]
        dead.dead = True
        await rig.executor.lose(["w0"])
        await rig.executor.lose(["w0"])
        await asyncio.sleep(0.2)
        rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
        await settled(rig)
        kinds = [event.kind for event in rig.store.events(after=0, limit=99)]
        assert kinds[:3] == ["gpus_lost", "gpus_added", "batch_started"]
        assert set(kinds[3:]) <= {"operator"}, "where w0 was in transition at a decision"
        assert fleet.workers["w0"] is not dead
        assert rig.ledger.state.counts.serving == 4
        await rig.aclose()

    run(work())


def test_the_trainer_waits_until_the_memory_is_free_also_in_the_middle_of_a_borrow(tmp_path: Path) -> None:
    async def work() -> None:
        fleet = FakeFleet(alive={"n"})
        asleep = worker("o1", Role.INACTIVE, zone=Zone.OVERLAP)
        rig = await rig_over(tmp_path, fleet, *POOL, asleep)
        lent = fleet.workers["o1"]
        lent.delays |= {"wake": 0.2, "sleep": 0.05}
        rig.controller.raise_event(Event(kind=EventKind.TRAINING_FINISHED))
        await rig.idle()
        handover = await rig.controller.trainer.begin(step=1, deadline_s=5, force=True)
        assert (handover.released, lent.asleep, lent.status) == (("o1",), True, Status.INACTIVE)
        await settled(rig)
        rig.controller.trainer.finish(step=1, window_s=None)
        await settled(rig)
        assert not rig.ledger.state.by_id["o1"].must_leave

        lent.asleep, lent.status = False, Status.ACTIVE
        await rig.aclose()

    run(work())


def test_a_barrier_that_is_not_forced_is_taken_back_once(tmp_path: Path) -> None:
    async def work() -> None:
        fleet = FakeFleet(alive={"n"})
        rig = await rig_over(tmp_path, fleet, *POOL, worker("o1", Role.DECODE, zone=Zone.OVERLAP))
        fleet.workers["o1"].delays["sleep"] = 3.0
        try:
            await rig.controller.trainer.begin(step=1, deadline_s=0.1, force=False)
        except TimeoutError:
            pass
        else:
            raise AssertionError("it cannot have slept by then")
        assert not rig.controller.trainer.running
        assert not rig.ledger.record.training
        kinds = [event.kind for event in rig.store.events(after=0, limit=99)]
        assert kinds == ["training_started", "training_finished"]
        await rig.aclose()

    run(work())


def test_weights_reach_every_worker_and_a_waiting_batch(tmp_path: Path) -> None:
    async def work() -> None:
        fleet = FakeFleet(alive={"n"})
        rig = await rig_over(tmp_path, fleet, *POOL)
        waiting = asyncio.create_task(rig.controller.pipeline.begin(step=2, trajectories=16, deadline_s=10))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        done = await rig.controller.publish(version=1, directory=snapshot(tmp_path, 1))
        assert set(done.updated) == {"w0", "w1", "w2", "w3"}
        await waiting
        assert {w.version for w in fleet.workers.values()} == {1}
        again = await rig.controller.publish(version=1, directory=snapshot_of(tmp_path, 1))
        assert again.version == 1
        await settled(rig)
        await rig.aclose()

    run(work())


def snapshot_of(directory: Path, version: int) -> Path:
    return directory / "weights" / f"v{version:08d}"


def test_killed_while_engines_start_the_next_controller_has_them_all_up_or_none(tmp_path: Path) -> None:
    async def work() -> None:
        fleet = FakeFleet(alive={"n"}, prepare=lambda made: made.delays.update(start=0.3 if made.name == "w1" else 0.0))
        offered = tuple(idle(f"w{i}") for i in range(2))
        rig = make(tmp_path, Beginning(record=first_record(offered)), executes=over(fleet))
        await rig.start(Beginning(record=first_record(offered)))
        await asyncio.sleep(0.1)
        assert {name: made.running for name, made in fleet.workers.items()} == {"w0": True, "w1": False}
        before = dict(fleet.workers)
        await killed(rig)
        fleet.workers["w1"].failures["report"] = _not_started("w1")

        store = ControlStore(tmp_path / "controller.db")
        found = await begin(store, fleet, offered=offered)
        assert all(made.dead for made in before.values())
        again = make(tmp_path, found, store=store, executes=over(fleet))
        await again.start(found)
        await settled(again)
        assert again.ledger.state.counts.serving == 2
        assert all(fleet.workers[name] is not made for name, made in before.items())
        await again.aclose()

    run(work())


def _not_started(name: str) -> Exception:
    from pearl.live.protocol import EngineUnavailableError

    return EngineUnavailableError(f"{name} has not started")


async def killed(rig: Rig) -> None:
    """As if the process had died: its tasks end where they are, and nothing of them is stored."""
    rig.kill()
    rig.ledger._listeners.clear()
    await rig.executor.aclose()


def test_killed_in_the_middle_of_role_changes_nobody_stops_serving(tmp_path: Path) -> None:
    async def work() -> None:
        fleet = FakeFleet(alive={"n"})
        rig = await rig_over(tmp_path, fleet, *POOL)
        rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
        while not rig.store.plans(limit=1):
            await asyncio.sleep(0.005)
        await killed(rig)

        store = ControlStore(tmp_path / "controller.db")
        found = await begin(store, fleet, offered=POOL)
        assert [w.status for w in found.record.state.workers] == [Status.ACTIVE] * 4
        assert not any("stop" in made.calls for made in fleet.workers.values())
        again = make(tmp_path, found, store=store, executes=over(fleet))
        await again.start(found)
        await settled(again)
        assert again.ledger.state.counts.label() == "1P3D"
        assert isinstance(fleet.workers["w0"], FakeWorker)
        await again.aclose()

    run(work())
