"""A live system under a random mix of everything that may happen to it, while a rollout never stops.

Joins, reclaims, kills, borrows, returns, mode and role changes, weight updates and controller kills, drawn from a seed,
on real vLLM workers. Every answer is held against that of an undisturbed worker. Exit 1 on any request that was lost or
answered twice, any token that is wrong or of weights that are too old, and any process that is left behind.

    python benchmarks/live_stress.py --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pearl.core.cluster import Mode, Role, Zone
from pearl.errors import PearlError
from pearl.live.client import ClientError, LateError, RejectedError
from pearl.live.demo.processes import descendants, left_after, name_of, shared_memory
from pearl.live.demo.steering import steering_policy
from pearl.live.demo.system import LiveSystem, SystemPlan, live_system
from pearl.live.rollout import Answer, Answerer, Ask, EngineAnswerer, Environment, Outcome, Rollout
from pearl.live.rollout_http import HttpAnswerer
from pearl.live.tiny_model import TinyModel, write_tiny_model
from pearl.live.weights import WeightStore

START_S = 600.0
SESSIONS = 40
AT_ONCE = 6
ENVIRONMENT = Environment(seed=7, think_s=0.1)
COLOCATED = steering_policy("colocated", Mode.COLOCATED)
POLICIES = (
    COLOCATED,
    steering_policy("two", Mode.COLOCATED, most=2),
    steering_policy("node-0-prefills", Mode.DISAGGREGATED, {"node-0": Role.PREFILL, "train-0": Role.DECODE}),
    steering_policy("node-0-decodes", Mode.DISAGGREGATED, {"node-0": Role.DECODE, "train-0": Role.PREFILL}),
)
SETS = {"limits.restart_after": "0.5s", "limits.health_every": "0.5s", "ports.kv.first": "19600"}


@dataclass(slots=True)
class Found:
    """What went wrong."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    completed: int = 0
    slowest_s: float = 0.0

    def take(self, outcome: Outcome, right: Outcome, name: str) -> None:
        """Hold a round of the rollout against the reference."""
        self.lost += [str(lost) for lost in outcome.losses]
        self.duplicated += outcome.wrong
        self.wrong += [f"{name}: session {index}" for index in outcome.differing(right)] if not outcome.losses else []
        self.completed += outcome.completed
        self.slowest_s = max([self.slowest_s, *(turn.answer.seconds for turn in outcome.turns)])


@dataclass(slots=True, kw_only=True)
class Watched:
    """An answerer that looks at the weights of every token."""

    answerer: Answerer
    oldest: Callable[[], int]
    stale: list[str]

    async def answer(self, ask: Ask) -> Answer:
        """The answer; what is too old is noted."""
        oldest = self.oldest()
        answer = await self.answerer.answer(ask)
        if any(version is None or version < oldest for version in answer.weight_versions):
            self.stale.append(
                f"{ask.id}: weights {sorted(set(answer.weight_versions), key=str)}, {oldest} is the oldest"
            )
        return answer


@dataclass(slots=True, kw_only=True)
class Stress:
    """One run, on a system that may have seen steps and weights before."""

    system: LiveSystem
    seconds: float
    rng: random.Random
    step: int = 0
    """Newest training step."""
    version: int = 0
    """Newest weights."""
    spot: str | None = "spot-0"
    """The preemptible node that is there."""
    done: Counter[str] = field(default_factory=Counter)
    found: Found = field(default_factory=Found)
    _training: bool = False
    _answered_version: int = field(init=False)
    _spots: int = 0
    _over: bool = False

    def __post_init__(self) -> None:
        self._answered_version = self.version

    async def run(self) -> None:
        """Let things happen; whatever fails a happening ends the run."""
        await self._until_serving(1)
        right = await self._reference()
        say("the rollout begins")
        rolling = asyncio.create_task(self._roll(right))
        until_s = time.monotonic() + self.seconds
        try:
            while time.monotonic() < until_s:
                await self._one()
                await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        finally:
            self._over = True
            if self._training:
                await self._return_training()
        say("nothing more happens; the sessions under way end")
        await asyncio.wait_for(rolling, START_S)

    async def _reference(self) -> Outcome:
        worker = self.system.fleet.find("node-0/0")
        assert worker is not None
        rollout = Rollout(answerer=EngineAnswerer(engine=worker.engine()), environment=ENVIRONMENT, at_once=AT_ONCE)
        return await rollout.run(range(SESSIONS))

    async def _roll(self, right: Outcome) -> None:
        rounds = 0
        while not self._over:
            rounds += 1
            name = f"round{rounds}"
            url, model = self.system.url, self.system.cluster.model.served_name
            async with HttpAnswerer(url=url, model=model, deadline_s=START_S) as http:
                watched = Watched(answerer=http, oldest=self._oldest, stale=self.found.stale)
                environment = replace(ENVIRONMENT, name=name)
                rollout = Rollout(answerer=watched, environment=environment, at_once=AT_ONCE)
                self.found.take(await rollout.run(self._indices()), right, name)

    def _indices(self) -> Iterator[int]:
        for index in range(SESSIONS):
            if self._over:
                return
            yield index

    def _oldest(self) -> int:
        """What a request that is sent now may be answered by: workers serve what was published and answered."""
        return max(0, self._answered_version - self.system.cluster.max_staleness)

    # what happens

    async def _one(self) -> None:
        happenings: dict[Callable[[], Awaitable[None]], int] = {
            self._set_policy: 6,
            self._toggle_training: 6,
            self._publish: 4,
            self._kill_worker: 1,
            self._kill_controller: 1,
            self._reclaim if self.spot else self._join: 2,
            self._drop_node if self.spot else self._join: 1,
        }
        happening = self.rng.choices(list(happenings), list(happenings.values()))[0]
        name = happening.__name__.strip("_")
        say(name)
        self.done[name] += 1
        await happening()

    async def _set_policy(self) -> None:
        await self._ask(self.system.client.set_policy, text=self.rng.choice(POLICIES), name="stress.yaml")

    async def _toggle_training(self) -> None:
        if self._training:
            await self._return_training()
            return
        self.step += 1
        await self._ask(self.system.trainer.begin_training, self.step, deadline_s=self.rng.choice((0.5, 10.0)))
        self._training = True

    async def _return_training(self) -> None:
        await self._ask(self.system.trainer.finish_training, self.step)
        self._training = False

    async def _publish(self) -> None:
        self.version += 1
        store = WeightStore(root=self.system.cluster.weights.root)
        with store.publish(self.version) as directory:
            write_tiny_model(directory, self.system.cluster.model.tiny or TinyModel())
        directory = store.get(self.version).directory
        await self._ask(self.system.trainer.publish_weights, version=self.version, directory=directory)
        self._answered_version = self.version

    async def _kill_worker(self) -> None:
        if pids := [report.pid for report in (await self.system.reports()).values()]:
            os.kill(self.rng.choice(pids), signal.SIGKILL)

    async def _kill_controller(self) -> None:
        self.system.kill_controller()
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        await asyncio.to_thread(self.system.serve)

    async def _reclaim(self) -> None:
        spot, self.spot = self.spot, None
        assert spot is not None
        grace_s = self.rng.choice((1.0, 8.0))
        body = {"node": spot, "grace_s": grace_s}
        try:
            await self._ask(self.system.client.call, "POST", "/workers/reclaim", body)
        except RejectedError:
            self.done["unknown to the controller"] += 1  # it joined a moment ago
        await asyncio.sleep(grace_s)
        await asyncio.to_thread(self.system.ray.remove_node, spot)

    async def _drop_node(self) -> None:
        spot, self.spot = self.spot, None
        assert spot is not None
        await asyncio.to_thread(self.system.ray.remove_node, spot, graceful=False)

    async def _join(self) -> None:
        self._spots += 1
        self.spot = f"spot-{self._spots}"
        await asyncio.to_thread(self.system.ray.add_node, self.spot, Zone.PREEMPTIBLE)

    async def _ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(call, *arguments, **named)

    async def _until_serving(self, count: int) -> None:
        await self.system.until(
            lambda state: sum(w["status"] == "active" for w in state["workers"]) >= count,
            what=f"{count} workers to serve",
            limit_s=START_S,
        )


def say(words: str) -> None:
    """Tell progress."""
    print(f"{time.monotonic():10.1f}  {words}", file=sys.stderr, flush=True)


def main() -> int:
    """Run, print the summary, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long things happen")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory(prefix="pearl-stress-") as folder:
        plan = SystemPlan(policy=COLOCATED, state_dir=Path(folder), sets=SETS)
        with live_system(plan) as system:
            system.serve()
            stress = Stress(system=system, seconds=options.seconds, rng=random.Random(options.seed))
            trouble = ""
            try:
                asyncio.run(stress.run())
            except (PearlError, ClientError, LateError, TimeoutError) as e:
                trouble = f"{type(e).__name__}: {e}\n{system.log_tail()}"
            below = descendants(os.getpid())
            shared = shared_memory(below)
            system.stop_controller(workers=True)
        left = [f"{p.pid} {name_of(p)}" for p in left_after(below, limit_s=20.0)]
        left += [str(path) for path in shared if path.exists()]
    found = stress.found
    faults = {
        "lost": found.lost,
        "duplicated": found.duplicated,
        "wrong": found.wrong,
        "stale": found.stale,
        "left_behind": left,
    }
    summary = {
        "seed": options.seed,
        "seconds": round(time.monotonic() - began_s, 1),
        "requests": found.completed,
        "slowest_s": round(found.slowest_s, 2),
        "happenings": dict(stress.done),
        **{name: len(those) for name, those in faults.items()},
    }
    print(json.dumps(summary, indent=1))
    for name, those in faults.items():
        for one in those[:10]:
            print(f"{name}: {one}", file=sys.stderr)
    if trouble:
        print(f"trouble: {trouble}", file=sys.stderr)
    return 1 if trouble or any(faults.values()) or not found.completed else 0


if __name__ == "__main__":
    raise SystemExit(main())
