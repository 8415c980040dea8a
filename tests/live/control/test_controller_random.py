"""Random histories of a controller over the live executor, killed and restarted in between; workers are fakes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pearl.core.cluster import Mode, Role, Status, Zone
from pearl.core.event import Event, EventKind
from pearl.core.plan import AdmitGroup, Borrow, Plan, Start, Step
from pearl.errors import PearlError
from pearl.live.control.executor import LiveExecutor
from pearl.live.control.limits import ControlLimits
from pearl.live.control.pipeline import Rules
from pearl.live.control.recovery import begin
from pearl.live.control.store import ControlStore
from pearl.live.weights import WeightStore
from tests.live.control.fakes import FakeDispatch, FakeFleet, FakeWorker
from tests.live.control.rig import Rig, idle, make, run, snapshot

LIMITS = ControlLimits(restart_after_s=0.02, drain_s=0.05, kept_s=0.01, start_s=2.0, transition_s=0.5, force_s=0.2)
SLOW_S = 0.02
OPERATIONS = 40


@dataclass
class History:
    directory: Path
    dice: random.Random
    fleet: FakeFleet = field(default_factory=lambda: FakeFleet(alive={"n"}))
    rig: Rig | None = None
    made: int = 0
    training: int = 0
    batch: int = 0
    version: int = 0
    accepted: list[int] = field(default_factory=list)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet.prepare = self._prepare

    def _prepare(self, made: FakeWorker) -> None:
        made.delays |= {name: self.dice.random() * SLOW_S for name in ("start", "wake", "sleep", "update_weights")}

    @property
    def now(self) -> Rig:
        assert self.rig is not None
        return self.rig

    def executes(self, *, ledger: Any, intake: Any, progress: Any, clock: Any) -> LiveExecutor:
        latest = ledger.record.latest
        return LiveExecutor(
            ledger=ledger,
            fleet=self.fleet,
            dispatch=FakeDispatch(),
            limits=LIMITS,
            now_s=clock.now_s,
            raise_event=intake.raise_event,
            tell=progress.tell,
            telemetry=progress.record,
            weights=WeightStore(root=self.directory / "weights").get(latest) if latest else None,
            max_staleness=1,
        )

    async def restart(self) -> None:
        if self.rig is not None:
            self.rig.kill()
            self.rig.ledger._listeners.clear()
            await self.rig.executor.aclose()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        store = ControlStore(self.directory / "controller.db")
        offered = [idle(f"r{i}") for i in range(3)] + [idle("o1", zone=Zone.OVERLAP), idle("o2", zone=Zone.OVERLAP)]
        living = [name for name, made in self.fleet.workers.items() if not made.dead]
        found = await begin(store, self.fleet, offered=offered, orphans=living)
        rules = Rules(max_staleness=1, synchronous=False)
        self.rig = make(self.directory, found, store=store, executes=self.executes, pipeline=rules)
        await self.rig.start(found)

    async def step(self) -> None:
        operation = self.dice.choice(
            [self.add, self.reclaim, self.die, self.train, self.train, self.publish, self.roll, self.pause, self.lend]
        )
        with contextlib.suppress(PearlError):  # a stale step, an unknown worker: refused, and nothing is changed
            operation()
        await asyncio.sleep(self.dice.random() * SLOW_S)

    def add(self) -> None:
        self.made += 1
        self.accepted.append(self.now.controller.add_workers([idle(f"p{self.made}", zone=Zone.PREEMPTIBLE)]))

    def reclaim(self) -> None:
        spot = [w.id for w in self.now.ledger.state.workers if w.zone is Zone.PREEMPTIBLE]
        if spot:
            grace_s = self.dice.choice([0.0, 0.05, 0.2])
            self.accepted.append(self.now.controller.reclaim(workers=[self.dice.choice(spot)], grace_s=grace_s))

    def die(self) -> None:
        living = [made for made in self.fleet.workers.values() if not made.dead]
        if living:
            victim = self.dice.choice(living)
            victim.dead = True
            self.tasks.append(asyncio.create_task(self.now.executor.lose([victim.name])))

    def train(self) -> None:
        trainer = self.now.controller.trainer
        if trainer.running and self.dice.random() < 0.7:
            trainer.finish(step=trainer.training.running or 0, window_s=5.0)
            return
        self.training += 1
        force = self.dice.random() < 0.7
        begin_ = trainer.begin(step=self.training, deadline_s=self.dice.choice([0.01, 0.5]), force=force)
        self.tasks.append(asyncio.create_task(begin_))
        if self.dice.random() < 0.2:
            self.tasks[-1].cancel()

    def publish(self) -> None:
        self.version += 1
        directory = snapshot(self.directory, self.version)
        publication = self.now.controller.publish(version=self.version, directory=directory)
        self.tasks.append(asyncio.create_task(publication))

    def roll(self) -> None:
        pipeline = self.now.controller.pipeline
        if pipeline.batches.open is not None:
            pipeline.finish(step=pipeline.batches.open.step)
            return
        self.batch = self.version + 1
        self.tasks.append(asyncio.create_task(pipeline.begin(step=self.batch, trajectories=16, deadline_s=0.1)))

    def lend(self) -> None:
        """Borrow what is idle, whatever the policy thinks of it; `train` asks for it back."""
        state = self.now.ledger.state
        role = Role.DECODE if state.counts.mode is Mode.DISAGGREGATED else Role.COLOCATED
        steps: list[Step] = []
        for w in state.workers:
            if w.zone is Zone.OVERLAP and w.status is Status.INACTIVE and not w.must_leave:
                if w.started:
                    steps.append(Borrow(worker=w.id, role=role, estimated_s=1.0))
                else:
                    start = Start(worker=w.id, role=role, estimated_s=1.0)
                    steps += (start, AdmitGroup(workers=(w.id,), estimated_s=1.0))
        plan = Plan(from_epoch=state.epoch, steps=tuple(steps))
        if not plan.empty:
            self.now.controller.decider.carry_out(plan, because="the test lends")

    def pause(self) -> None:
        self.accepted.append(self.now.controller.raise_event(Event(kind=EventKind.OPERATOR)))

    async def end(self) -> None:
        """Let everything that was begun come to its end, then let the trainer go."""
        async with asyncio.timeout(15):
            await asyncio.gather(*self.tasks, return_exceptions=True)
            if (step := self.now.controller.trainer.training.running) is not None:
                self.now.controller.trainer.finish(step=step, window_s=None)
            for _ in range(3):
                await self.now.idle()
                await self.now.executor.settle()


def check(history: History) -> None:
    rig, fleet = history.now, history.fleet
    record, state = rig.ledger.record, rig.ledger.state
    living = {name: made for name, made in fleet.workers.items() if not made.dead}
    assert living.keys() == {w.id for w in state.workers if w.started}, "no orphan, and nobody who is missed"
    assert not record.training
    for w in state.workers:
        assert w.status is not Status.TRANSITIONING, w
        assert not w.must_leave or w.zone is Zone.PREEMPTIBLE, w
        made = living.get(w.id)
        if made is None:
            assert w.role is Role.INACTIVE, w
            continue
        assert made.unfit is None
        assert made.version == record.versions.get(w.id, 0)
        assert (w.role is not Role.INACTIVE) == (made.status is Status.ACTIVE), (w, made)
        if w.role is not Role.INACTIVE:
            assert made.version >= record.oldest
        elif w.zone is Zone.OVERLAP:
            assert made.asleep, w
    events = rig.store.events(after=0, limit=10_000)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert {event.number for event in events} >= set(history.accepted)
    decisions = [decision.number for decision in rig.store.decisions(limit=10_000)]
    assert decisions == list(range(1, len(decisions) + 1))
    assert "failed" not in {d.document["decision"]["outcome"] for d in rig.store.decisions(limit=10_000)}


@pytest.mark.parametrize("seed", [1, 2, pytest.param(range(3, 23), marks=pytest.mark.slow)])
def test_whatever_happens_ledger_and_workers_agree_in_the_end(tmp_path: Path, seed: int | range) -> None:
    async def work(history: History) -> None:
        await history.restart()
        kills = set(history.dice.sample(range(OPERATIONS), 3))
        for number in range(OPERATIONS):
            await history.step()
            if number in kills:
                await history.restart()
        await history.end()
        check(history)
        await history.now.aclose()

    for one in seed if isinstance(seed, range) else (seed,):
        directory = tmp_path / str(one)
        directory.mkdir()
        run(work(History(directory=directory, dice=random.Random(one))))
