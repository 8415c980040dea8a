"""Plans, events, weights, training and failures at random times: what must hold whatever happens.

Virtual time, fake workers; each seed is one history of 40 happenings.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.event import Event, EventKind
from pearl.core.grouping import group_workers
from pearl.errors import PearlError
from pearl.live.control.progress import Phase
from pearl.live.engine.engine import UnfitError
from pearl.planning import make_plan
from tests.live.control.fakes import FakeWorker, now_s
from tests.live.control.rigs import IDLE, Rig, asleep, new, rigged, weights, worker

STEPS = 40
FAILURE = 0.04
"""Chance that a call fails."""


class History:
    """Random happenings on a rig, and the invariants."""

    def __init__(self, rig: Rig, seed: int, *, failing: bool) -> None:
        self.rig, self.rng, self.failing = rig, random.Random(seed), failing
        self.tasks: list[asyncio.Task[object]] = []
        self.version = 0
        self.added = 0
        self.wrong: list[str] = []
        rig.world.fleet.prepare = self.misbehave
        for made in rig.world.fleet.workers.values():
            self.misbehave(made)
        rig.world.ledger.listen(lambda record: self.check())

    def misbehave(self, made: FakeWorker) -> None:
        for method in ("start", "admit", "drain", "update_weights", "sleep", "wake", "canary", "canary_from", "stop"):
            made.delays[method] = self.rng.choice((0.0, 0.1, 1.0, 4.0))
            if self.failing and method != "stop" and self.rng.random() < FAILURE:
                made.once[method] = self.rng.choice((UnfitError("no"), PearlError("no"), RuntimeError("no")))

    def check(self) -> None:
        """Whoever is dispatched to can serve, with weights that may."""
        record = self.rig.world.ledger.record
        for chosen in record.pool().dispatchable:
            engine = self.rig.world[chosen.id]
            version = record.versions.get(chosen.id, 0)
            serves = engine.running and not engine.asleep and engine.status is Status.ACTIVE
            if not engine.dead and not (serves and engine.version == version >= record.oldest):
                self.wrong.append(f"{now_s():g} s: {chosen} is dispatched to, and {engine}")

    async def run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.wrong.append(str(context)))
        for _ in range(STEPS):
            others = (self.publish, self.train, self.reclaim, self.lose, self.join)
            await self.rng.choice((*[self.decide] * 3, *others))()
            for name in self.rig.world.ledger.state.by_id:
                self.rig.world.dispatch.busy_s[name] = self.rng.choice((0.0, 1.0, 50.0))
            await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.5, 3.0)))
        await asyncio.wait_for(self.rig.executor.settle(), 2000)
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(1000.0)
        await asyncio.wait_for(self.rig.executor.settle(), 2000)

    async def decide(self) -> None:
        rig = self.rig
        rig.executor.cancel_pending()
        state = rig.executor.observe()
        groups = group_workers(state, by_node=False, by_risk=False)
        roles = self.rng.choice(((Role.COLOCATED, IDLE), (Role.PREFILL, Role.DECODE, IDLE)))
        assignment: dict[tuple[str, Role], int] = {}
        for entry in groups:
            targets = [role for role in entry.group.targets if role in roles] or list(entry.group.targets)
            for _ in range(entry.group.size):
                key = (entry.group.id, self.rng.choice(targets))
                assignment[key] = assignment.get(key, 0) + 1
        plan = make_plan(state, groups, assignment, TransitionCosts())
        rig.plan(*plan.steps, id=f"p{len(rig.told)}")

    async def publish(self) -> None:
        self.version += 1
        self.spawn(self.rig.executor.publish(weights(self.version)))

    async def train(self) -> None:
        deadline_s = self.rng.choice((0.5, 3.0, 60.0))
        wait = self.spawn(self.train_once(deadline_s, self.rng.random() < 0.5))
        if self.rng.random() < 0.2:
            asyncio.get_running_loop().call_later(self.rng.random(), wait.cancel)

    async def train_once(self, deadline_s: float, force: bool) -> None:
        await self.rig.executor.release_overlap(deadline_s=deadline_s, force=force)
        if self.rig.world.ledger.record.training:
            for found in self.rig.world.ledger.state.workers:
                if found.zone is Zone.OVERLAP and found.started:
                    assert self.rig.world[found.id].asleep or self.rig.world[found.id].dead
        self.rig.world.raise_event(Event(kind=EventKind.TRAINING_FINISHED))

    async def reclaim(self) -> None:
        if name := self.any_of(Zone.PREEMPTIBLE):
            within_s = self.rng.choice((0.2, 5.0, 30.0))
            self.rig.world.raise_event(Event(kind=EventKind.RECLAIM_NOTICE, workers=(name,), within_s=within_s))

    async def lose(self) -> None:
        if name := self.any_of(*Zone):
            if made := self.rig.world.fleet.find(name):
                made.dead = True
            self.spawn(self.rig.executor.lose([name]))

    async def join(self) -> None:
        self.added += 1
        name = f"n{self.added}"
        self.rig.world.raise_event(Event(kind=EventKind.GPUS_ADDED, workers=(name,), added=(new(name),)))

    def any_of(self, *zones: Zone) -> str | None:
        names = [w.id for w in self.rig.world.ledger.state.workers if w.zone in zones]
        return self.rng.choice(names) if names else None

    def spawn(self, work: Awaitable[object]) -> asyncio.Task[object]:
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task


def workers() -> list[Worker]:
    lent = replace(worker("o1"), zone=Zone.OVERLAP)
    return [worker("a"), worker("b"), worker("c", IDLE), worker("s", zone=Zone.PREEMPTIBLE), lent, asleep("o2")]


def check_end(history: History) -> None:
    rig = history.rig
    assert not history.wrong
    state = rig.world.ledger.state
    assert not [w for w in state.workers if w.status is Status.TRANSITIONING and not w.must_leave]
    assert not rig.executor.busy
    alive = {name for name in rig.world.fleet.workers if rig.world.fleet.find(name) is not None}
    assert alive == {w.id for w in state.workers if w.started}, "no actor without a worker, no worker without an actor"
    awake = [w for w in state.workers if w.status is Status.ACTIVE]
    assert all(rig.world.ledger.version(w.id) == history.version for w in awake)
    open_steps: dict[tuple[str, int], Phase] = {}
    for progress in rig.told:
        open_steps[progress.plan, progress.index] = progress.phase
    assert Phase.BEGAN not in open_steps.values(), "whatever began is over"


def history(seed: int, *, failing: bool) -> None:
    async def test(rig: Rig) -> None:
        lived = History(rig, seed, failing=failing)
        await lived.run()
        check_end(lived)
        for task in lived.tasks:
            if not task.cancelled() and (error := task.exception()):
                assert isinstance(error, (TimeoutError, PearlError)), error
        assert now_s() < 20_000

    rigged(test, *workers(), max_staleness=1)


def seeds(number: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return pytest.mark.parametrize("seed", range(number))


@seeds(5)
def test_whatever_happens_nobody_is_left_behind(seed: int) -> None:
    history(seed, failing=False)


@seeds(5)
def test_whatever_fails_nobody_is_left_behind(seed: int) -> None:
    history(1000 + seed, failing=True)


@pytest.mark.slow
@seeds(200)
def test_long_whatever_fails_nobody_is_left_behind(seed: int) -> None:
    history(5000 + seed, failing=seed % 2 == 0)
