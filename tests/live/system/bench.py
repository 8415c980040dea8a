"""What the tests of a whole live system share: rollouts, the reference to hold them against, and faults."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pearl.core.cluster import Mode, Role
from pearl.live.demo.figures import Page, read_page
from pearl.live.demo.processes import Process, descendants, left_after, name_of
from pearl.live.demo.steering import steering_policy
from pearl.live.demo.system import LiveSystem
from pearl.live.engine.engine import EngineReport
from pearl.live.rollout import EngineAnswerer, Environment, Outcome, Rollout, Turn
from pearl.live.rollout_http import HttpAnswerer
from pearl.live.tiny_model import TinyModel, write_tiny_model
from pearl.live.training import Published
from pearl.live.weights import WeightStore

START_S = 420.0
"""Engines are up by then, on busy machines too; 20 s each on a free core."""
CHANGE_S = 60.0
"""A change that starts no engine is over by then."""
SESSIONS = 67
"""Of three turns each: 201 requests."""
ENVIRONMENT = Environment(seed=11, turns=(3, 3), output_tokens=(10, 20), think_s=0.02)
AT_ONCE = 12
P, D = Role.PREFILL, Role.DECODE
COLOCATED = steering_policy("colocated", Mode.COLOCATED)
TWO_COLOCATED = steering_policy("two", Mode.COLOCATED, most=2)
SPOT_PREFILLS = steering_policy("spot-prefills", Mode.DISAGGREGATED, {"spot-0": P, "node-0": D, "train-0": D})
SPOT_DECODES = steering_policy("spot-decodes", Mode.DISAGGREGATED, {"spot-0": D, "node-0": P, "train-0": P})


def serving(state: dict[str, Any]) -> dict[str, str]:
    """Roles of the workers that serve."""
    workers = [w for w in state["workers"] if w["status"] == "active" and not w["must_leave"]]
    return {worker["id"]: worker["role"] for worker in workers}


@dataclass(slots=True, kw_only=True)
class Bench:
    """One system under test, and the loop that its clients run on."""

    system: LiveSystem
    runner: asyncio.Runner
    right: Outcome
    """The sessions on one worker, undisturbed."""
    step: int = 0
    """Newest training step."""
    version: int = 0
    """Newest weights."""
    _runs: int = 0
    _transferred: dict[tuple[str, int], int] = field(default_factory=dict)

    def run(self, work: Coroutine[Any, Any, Any], limit_s: float = START_S) -> Any:
        return self.runner.run(asyncio.wait_for(work, limit_s))

    # rollouts

    async def rollout(
        self, sessions: Iterable[int] = range(SESSIONS), *, on_turn: Callable[[Turn], None] = lambda _: None
    ) -> Outcome:
        """These sessions through the router, under ids of their own."""
        self._runs += 1
        environment = replace(ENVIRONMENT, name=f"run{self._runs}")
        model = self.system.cluster.model.served_name
        async with HttpAnswerer(url=self.system.url, model=model, deadline_s=300.0) as answerer:
            return await Rollout(answerer=answerer, environment=environment, at_once=AT_ONCE, on_turn=on_turn).run(
                sessions
            )

    @asynccontextmanager
    async def rolling(self, sessions: Iterable[int] = range(SESSIONS), *, first: int = 6) -> AsyncIterator[Rolling]:
        """A rollout in the background, `first` turns of which are answered; it is over, and right, on leaving."""
        rolling = Rolling()
        rolling.task = asyncio.create_task(self.rollout(sessions, on_turn=rolling.answered))
        try:
            await rolling.more(first)
            yield rolling
            rolling.outcome = await rolling.task
        finally:
            rolling.task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await rolling.task
        self.check(rolling.outcome)

    def check(self, outcome: Outcome) -> None:
        """Every request was answered once, with the tokens of the undisturbed run, by weights that are allowed."""
        assert [str(lost) for lost in outcome.losses] == []
        assert outcome.completed == outcome.accepted > 0
        assert outcome.wrong == ()
        assert outcome.differing(self.right) == ()

    async def settled(self) -> None:
        """Nothing runs, and no KV block is in use: within a lease, since kept ones may wait for their pull."""
        limit_s = time.monotonic() + self.system.cluster.engine.kv_lease_s + 20.0
        while True:
            reports = await self.system.reports()
            busy = {name: r for name, r in reports.items() if r.open_legs or (r.counters.kv_usage > 0 and not r.asleep)}
            if not busy:
                return
            assert time.monotonic() < limit_s, f"still busy: {busy}"
            await asyncio.sleep(0.2)

    # the pool

    async def policy(self, text: str) -> None:
        await asyncio.to_thread(self.system.client.set_policy, text=text, name="test.yaml")

    async def roles(self, wanted: dict[str, str], *, limit_s: float = CHANGE_S) -> None:
        """Wait until exactly these workers serve, in these roles."""
        await self.system.until(lambda state: serving(state) == wanted, what=f"{wanted}", limit_s=limit_s, every_s=0.1)

    async def three_colocated(self, *, limit_s: float = START_S) -> None:
        await self.policy(COLOCATED)
        await self.roles(dict.fromkeys(("node-0/0", "spot-0/0", "train-0/0"), "colocated"), limit_s=limit_s)

    async def publish(self) -> Published:
        """The same weights as the next version, which empties every prefix cache."""
        self.version += 1
        store = WeightStore(root=self.system.cluster.weights.root)
        with store.publish(self.version) as directory:
            write_tiny_model(directory, self.system.cluster.model.tiny or TinyModel())
        directory = store.get(self.version).directory
        return await asyncio.to_thread(
            self.system.trainer.publish_weights, version=self.version, directory=directory, deadline_s=CHANGE_S
        )

    async def begin_training(self, *, deadline_s: float = 30.0) -> Any:
        self.step += 1
        return await asyncio.to_thread(self.system.trainer.begin_training, self.step, deadline_s=deadline_s)

    async def finish_training(self) -> None:
        await asyncio.to_thread(self.system.trainer.finish_training, self.step)

    # what the system says

    async def page(self) -> Page:
        return await read_page(self.system.url)

    async def transferred(self) -> dict[str, int]:
        """Prompt tokens that each worker pulled so far."""
        return {name: report.counters.transferred for name, report in (await self.system.reports()).items()}

    async def report(self, worker: str) -> EngineReport:
        return (await self.system.reports())[worker]

    async def kill(self, worker: str) -> None:
        """SIGKILL to the process that holds the engine; those of vLLM below it must go with it."""
        pid = (await self.report(worker)).pid
        below = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        left = await asyncio.to_thread(left_after, below, limit_s=10.0)
        assert left == (), "processes of a killed worker live on"


@dataclass(slots=True)
class Rolling:
    """A rollout under way."""

    turns: int = 0
    task: asyncio.Task[Outcome] = field(init=False)
    outcome: Outcome = field(init=False)

    def answered(self, _: Turn) -> None:
        self.turns += 1

    async def more(self, turns: int, *, limit_s: float = CHANGE_S) -> None:
        """Wait until so many turns more are answered, or the rollout is over."""
        enough = self.turns + turns
        async with asyncio.timeout(limit_s):
            while self.turns < enough and not self.task.done():
                await asyncio.sleep(0.01)


async def reference(system: LiveSystem) -> Outcome:
    """All sessions on one engine, past the router."""
    worker = system.fleet.find("node-0/0")
    assert worker is not None
    answerer = EngineAnswerer(engine=worker.engine())
    return await Rollout(answerer=answerer, environment=ENVIRONMENT, at_once=AT_ONCE).run(range(SESSIONS))


def starting_processes() -> list[Process]:
    """Actors whose engine starts now."""
    found = []
    for process in descendants(os.getpid()):
        if name_of(process).startswith("ray::WorkerActor.start"):
            found.append(process)
    return found
