"""The acts of the demonstration, and how they are told. All figures are the running system's own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pearl.core.cluster import Mode, Role, Zone
from pearl.live.demo.figures import PLANS, KvTally, Summary, Watch, read_page, summarise
from pearl.live.demo.steering import steering_policy
from pearl.live.demo.system import LiveSystem
from pearl.live.rollout import Answer, Answerer, Ask, EngineAnswerer, Environment, Outcome, Rollout, Turn
from pearl.live.rollout_http import HttpAnswerer
from pearl.live.tiny_model import TinyModel, write_tiny_model
from pearl.live.weights import WeightStore

START_S = 420.0
"""Engines are up by then; on two free cores it takes 20 s for one, on a busy machine minutes."""
CHANGE_S = 90.0
"""A change that starts no engine is over by then."""
GRACE_S = 10.0
"""Notice before the node is taken away."""
TURNS_PER_ACT = 12
"""Turns that must be answered in the new state of the pool before the next act."""
AT_ONCE = 6
TRICKLE_S = 3.0
"""Pause before each request while engines start: they need the cores more than the rollout does."""
COLOCATED = steering_policy("demo-colocated", Mode.COLOCATED)
SPLIT = steering_policy(
    "demo-disaggregated",
    Mode.DISAGGREGATED,
    {"node-0": Role.DECODE, "spot-0": Role.PREFILL, "train-0": Role.DECODE},
)
SPLIT_OTHER_WAY = steering_policy(
    "demo-disaggregated-2P1D",
    Mode.DISAGGREGATED,
    {"node-0": Role.PREFILL, "spot-0": Role.DECODE, "train-0": Role.PREFILL},
)

Say = Callable[[str], None]


@dataclass(slots=True)
class Paced:
    """An answerer that waits before each request."""

    answerer: Answerer
    load: Load

    async def answer(self, ask: Ask) -> Answer:
        """The answer; raises `LostError`."""
        await asyncio.sleep(self.load.pause_s)
        return await self.answerer.answer(ask)


@dataclass(slots=True)
class Load:
    """A rollout that goes on until it is told to end."""

    system: LiveSystem
    environment: Environment
    turns: int = 0
    pause_s: float = 0.0
    _going: bool = True
    _task: asyncio.Task[Outcome] | None = None

    def begin(self) -> None:
        """Begin it."""
        self._task = asyncio.create_task(self._run(), name="rollout")

    async def more(self, turns: int, *, limit_s: float = CHANGE_S) -> None:
        """Wait until so many turns more are answered."""
        enough = self.turns + turns
        async with asyncio.timeout(limit_s):
            while self.turns < enough:
                assert self._task is not None
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.05)

    async def end(self) -> Outcome:
        """Let the sessions under way finish, and begin no more."""
        assert self._task is not None
        self._going = False
        return await self._task

    async def aclose(self) -> None:
        """Give it up."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task

    async def _run(self) -> Outcome:
        async with HttpAnswerer(url=self.system.url, model=self.system.cluster.model.served_name) as answerer:
            rollout = Rollout(
                answerer=Paced(answerer, self), environment=self.environment, at_once=AT_ONCE, on_turn=self._answered
            )
            return await rollout.run(self._indices())

    def _indices(self) -> Iterator[int]:
        for index in itertools.count():
            if not self._going:
                return
            yield index

    def _answered(self, _: Turn) -> None:
        self.turns += 1


@dataclass(slots=True)
class Story:
    """One demonstration on a system whose controller runs."""

    system: LiveSystem
    say: Say
    environment: Environment = field(default_factory=lambda: Environment(seed=1, think_s=0.1))
    _kv: KvTally = field(default_factory=KvTally)

    async def tell(self) -> Summary:
        """All acts; raises `SystemFailedError` where one does not come about."""
        began_s = time.monotonic()
        watch = Watch(self.system, self._changed)
        watching = asyncio.create_task(watch.run(), name="watch")
        load = Load(self.system, self.environment)
        try:
            await self._start(load)
            await self._lend_and_take_back(load)
            kv = await self._split(load)
            await self._preempt(load)
            outcome = await load.end()
            self.say(f"rollout over: {outcome.completed} requests of {len(outcome.sessions)} sessions answered")
            page = await read_page(self.system.url)
            plans = (await asyncio.to_thread(self.system.client.plans, limit=PLANS))["plans"]
            reference = await self._reference(outcome)
            return summarise(
                page=page,
                plans=plans,
                outcome=outcome,
                reference=reference,
                watch=watch,
                kv=kv,
                seconds=time.monotonic() - began_s,
            )
        finally:
            watching.cancel()
            await load.aclose()
            await asyncio.gather(watching, return_exceptions=True)

    # acts

    async def _start(self, load: Load) -> None:
        self.say("three vLLM engines start; the first that is up begins to serve")
        await self._serving(1)
        self.say("the rollout begins: multi-turn sessions, each turn on top of all before it")
        load.pause_s = TRICKLE_S
        load.begin()
        await self._serving(3)
        load.pause_s = 0.0
        await load.more(TURNS_PER_ACT)

    async def _lend_and_take_back(self, load: Load) -> None:
        trainer = self.system.trainer
        self.say("the trainer asks for its GPU back, and waits")
        released = await asyncio.to_thread(trainer.begin_training, 0, deadline_s=30.0)
        self.say(
            f"{', '.join(released.released)} sleeps, its memory is free: training may begin ({released.seconds:.2f} s)"
        )
        await load.more(TURNS_PER_ACT)
        self.say("training is over: the GPU is lent again")
        await asyncio.to_thread(trainer.finish_training, 0)
        await self._serving(3)
        await load.more(TURNS_PER_ACT)

    async def _split(self, load: Load) -> int:
        """Prefill and decode apart, in both directions, then together again; returns prompt tokens moved meanwhile."""
        self._kv.note(await self.system.reports())
        before = self._kv.tokens
        for policy, words, prefill in (
            (SPLIT, "one worker prefills, two decode", 1),
            (SPLIT_OTHER_WAY, "the other way round: two prefill, one decodes", 2),
        ):
            self.say(f"another policy: {words}; requests under way go on")
            await self._set_policy(policy)
            await self.system.until(partial(_is_split, prefill=prefill), what=words, limit_s=CHANGE_S)
            await load.more(TURNS_PER_ACT)
        self._kv.note(await self.system.reports())
        moved = self._kv.tokens - before
        self.say(f"{moved} prompt tokens came as KV cache from another worker; back to one pool")
        await self._set_policy(COLOCATED)
        await self._serving(3)
        await load.more(TURNS_PER_ACT)
        return moved

    async def _preempt(self, load: Load) -> None:
        system = self.system
        self.say(f"the cloud wants node spot-0 back in {GRACE_S:g} s")
        body = {"node": "spot-0", "grace_s": GRACE_S}
        await asyncio.to_thread(system.client.call, "POST", "/workers/reclaim", body)
        await system.until(lambda state: "spot-0/0" not in _serving(state), what="spot-0/0 to leave", limit_s=CHANGE_S)
        await system.until(
            lambda state: not any(w["id"] == "spot-0/0" and w["started"] for w in state["workers"]),
            what="the engine of spot-0/0 to end",
            limit_s=CHANGE_S,
        )
        await asyncio.to_thread(system.ray.remove_node, "spot-0")
        self.say("the node is gone, and no request with it")
        await load.more(TURNS_PER_ACT)
        self.say("another node joins; its engine starts in the background")
        load.pause_s = TRICKLE_S
        await asyncio.to_thread(system.ray.add_node, "spot-1", Zone.PREEMPTIBLE)
        await system.until(lambda state: "spot-1/0" in _serving(state), what="spot-1/0 to serve", limit_s=START_S)
        load.pause_s = 0.0
        await load.more(TURNS_PER_ACT)

    async def _reference(self, outcome: Outcome) -> Outcome:
        """The same sessions on one engine, whose prefix cache a publication of the same weights has emptied."""
        cluster = self.system.cluster
        self.say("the same weights are published as version 1, which empties every prefix cache")
        store = WeightStore(root=cluster.weights.root)
        with store.publish(1) as directory:
            write_tiny_model(directory, cluster.model.tiny or TinyModel())
        published = await asyncio.to_thread(
            self.system.trainer.publish_weights, version=1, directory=store.get(1).directory
        )
        self.say(f"{', '.join(published.updated)} took them in {published.seconds:.2f} s")
        worker = self.system.fleet.find("node-0/0")
        assert worker is not None, "it serves"
        self.say("the same sessions again, on one worker that nothing disturbs, to compare every token")
        rollout = Rollout(
            answerer=EngineAnswerer(engine=worker.engine()), environment=self.environment, at_once=2 * AT_ONCE
        )
        return await rollout.run(session.index for session in outcome.sessions)

    # helpers

    async def _serving(self, count: int) -> None:
        """Wait until so many workers serve, colocated; say now and then that it takes its time."""
        waiting = asyncio.create_task(self._patience(), name="patience")
        try:
            await self.system.until(
                lambda state: len(_serving(state)) >= count and state["mode"] == "colocated",
                what=f"{count} workers to serve",
                limit_s=START_S,
            )
        finally:
            waiting.cancel()

    async def _patience(self) -> None:
        for seconds in itertools.count(10, 10):
            await asyncio.sleep(10)
            self.say(f"  … engines start ({seconds} s)")

    async def _set_policy(self, text: str) -> None:
        await asyncio.to_thread(self.system.client.set_policy, text=text, name="demo.yaml")

    def _changed(self, before: dict[str, Any] | None, after: dict[str, Any]) -> None:
        """Say which workers changed."""
        known = {worker["id"]: worker for worker in before["workers"]} if before else {}
        now = {worker["id"]: worker for worker in after["workers"]}
        for worker_id in sorted({*known, *now}):
            words = _worker_words(now.get(worker_id))
            if words != _worker_words(known.get(worker_id)):
                self.say(f"  {worker_id}: {words}")


def _worker_words(worker: dict[str, Any] | None) -> str:
    if worker is None:
        return "gone"
    if worker["status"] == "active":
        return f"serves, {worker['role']}"
    if worker["status"] == "transitioning":
        return "starts or joins" if not worker["started"] else f"changes ({worker['role']})"
    return "sleeps or idles" if worker["started"] else "no engine"


def _serving(state: dict[str, Any]) -> list[str]:
    return [worker["id"] for worker in state["workers"] if worker["status"] == "active" and not worker["must_leave"]]


def _is_split(state: dict[str, Any], *, prefill: int) -> bool:
    counts = (state["counts"]["prefill"], state["counts"]["decode"])
    return counts == (prefill, 3 - prefill) and len(_serving(state)) == 3
