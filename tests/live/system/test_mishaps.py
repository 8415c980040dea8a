"""Faults on real processes, each from lessons of other systems; after each, every accepted request was answered once.

The order matters: what ends engines comes late, and what takes nodes away comes last.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pearl.core.cluster import Zone
from pearl.live.client import RejectedError
from pearl.live.demo.processes import Process, descendants, left_after
from pearl.live.protocol import EngineError, Leg, Sampling
from tests.live.system.bench import (
    CHANGE_S,
    COLOCATED,
    ENVIRONMENT,
    SPOT_DECODES,
    SPOT_PREFILLS,
    START_S,
    TWO_COLOCATED,
    Bench,
    serving,
    starting_processes,
)

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

WORKERS = ("node-0/0", "spot-0/0", "train-0/0")
SPLIT = {"node-0/0": "decode", "spot-0/0": "prefill", "train-0/0": "decode"}
CYCLES = 25
"""A leave and a join each."""


@contextmanager
def stopped(processes: tuple[Process, ...]) -> Iterator[None]:
    """These processes hang, as a host does that fell out of the network."""
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            if process.alive:
                os.kill(process.pid, signal.SIGCONT)


def test_repeated_and_reordered_calls_change_nothing(bench: Bench) -> None:
    async def main() -> None:
        await bench.three_colocated()
        trainer, client = bench.system.trainer, bench.system.client
        bench.step += 2
        step = bench.step
        twice = await asyncio.gather(*(asyncio.to_thread(trainer.begin_training, step) for _ in range(2)))
        assert twice[0].released == twice[1].released == ("train-0/0",)
        assert (await bench.report("train-0/0")).asleep
        with pytest.raises(RejectedError) as stale:
            await asyncio.to_thread(trainer.begin_training, step - 1)
        assert stale.value.status == 409
        for _ in range(2):
            await asyncio.to_thread(trainer.finish_training, step)
        with pytest.raises(RejectedError):
            await asyncio.to_thread(trainer.begin_training, step)
        known = {"workers": [{"id": "node-0/0", "node": "node-0", "zone": "reserved"}]}
        first = await asyncio.to_thread(client.call, "POST", "/workers", known, key="again")
        assert await asyncio.to_thread(client.call, "POST", "/workers", known, key="again") == first
        await bench.three_colocated()
        bench.check(await bench.rollout(range(6)))
        await bench.settled()

    bench.run(main())


def test_training_begins_while_a_borrow_is_in_progress(bench: Bench) -> None:
    async def main() -> None:
        await bench.three_colocated()
        async with bench.rolling(range(30)):
            await bench.begin_training()
            for _ in range(3):
                await bench.finish_training()
                await bench.system.until(
                    lambda state: any(w["id"] == "train-0/0" and w["status"] != "inactive" for w in state["workers"]),
                    what="the borrow to begin",
                    limit_s=CHANGE_S,
                    every_s=0.02,
                )
                released = await bench.begin_training()
                assert released.released == ("train-0/0",)
                assert (await bench.report("train-0/0")).asleep
            await bench.finish_training()
        await bench.three_colocated()
        await bench.settled()

    bench.run(main())


def test_fifty_joins_and_leaves(bench: Bench) -> None:
    async def lend_and_return(cycles: int) -> None:
        for _ in range(cycles):
            await bench.begin_training()
            await bench.finish_training()
            await bench.roles(dict.fromkeys(WORKERS, "colocated"))

    async def shrink_and_grow(cycles: int) -> None:
        for _ in range(cycles):
            await bench.policy(TWO_COLOCATED)
            await bench.system.until(lambda state: len(serving(state)) == 2, what="two", limit_s=CHANGE_S, every_s=0.05)
            await bench.policy(COLOCATED)
            await bench.roles(dict.fromkeys(WORKERS, "colocated"))

    async def cycle() -> None:
        await lend_and_return(CYCLES // 2)
        await shrink_and_grow(CYCLES - CYCLES // 2)

    async def main() -> None:
        await bench.three_colocated()
        pids = {name: report.pid for name, report in (await bench.system.reports()).items()}
        slowest_s = 0.0
        cycling = asyncio.create_task(cycle())
        try:
            while not cycling.done():
                outcome = await bench.rollout(range(20))
                bench.check(outcome)
                slowest_s = max(slowest_s, *(turn.answer.seconds for turn in outcome.turns))
            cycling.result()
        finally:
            cycling.cancel()
        assert slowest_s < CHANGE_S
        assert {name: report.pid for name, report in (await bench.system.reports()).items()} == pids, "none restarted"
        await bench.settled()

    bench.run(main())


def test_an_expired_handle_is_refused_and_harms_nothing(bench: Bench) -> None:
    async def main() -> None:
        await bench.three_colocated()
        await bench.publish()
        source, sink = bench.system.fleet.find("node-0/0"), bench.system.fleet.find("spot-0/0")
        assert source is not None
        assert sink is not None
        ask = ENVIRONMENT.ask(0, 0, ())
        sampling = Sampling(max_tokens=ask.max_tokens, temperature=0.0, ignore_eos=True)
        kept = [
            c async for c in source.engine().generate(Leg(id="k", prompt=ask.prompt, sampling=sampling, keep_kv=True))
        ]
        assert kept[-1].kv is not None
        await asyncio.sleep(bench.system.cluster.engine.kv_lease_s)
        with pytest.raises(EngineError, match=r"lease|late|expired"):
            async for _ in sink.engine().generate(Leg(id="l", prompt=ask.prompt, sampling=sampling, kv=kept[-1].kv)):
                pass
        await bench.policy(SPOT_DECODES)
        await bench.roles({"node-0/0": "prefill", "spot-0/0": "decode", "train-0/0": "prefill"})
        bench.check(await bench.rollout(range(6)))
        await bench.settled()

    bench.run(main())


def test_the_controller_is_killed_in_the_middle_of_a_plan(bench: Bench) -> None:
    async def main() -> None:
        await bench.three_colocated()
        pids = {name: report.pid for name, report in (await bench.system.reports()).items()}
        async with bench.rolling() as rolling:
            await bench.policy(SPOT_PREFILLS)
            await bench.system.until(
                lambda state: any(w["status"] == "transitioning" for w in state["workers"]),
                what="the plan to begin",
                limit_s=CHANGE_S,
                every_s=0.01,
            )
            bench.system.kill_controller()
            await asyncio.to_thread(bench.system.serve)
            await bench.roles(SPLIT)
        assert max(turn.answer.tries for turn in rolling.outcome.turns) > 1
        assert {name: report.pid for name, report in (await bench.system.reports()).items()} == pids, "none restarted"
        steps = [step for plan in bench.system.client.plans()["plans"] for step in plan["steps"]]
        assert {step["phase"] for step in steps} <= {"ended", "dropped", "failed"}
        await bench.settled()

    bench.run(main())


def test_workers_are_killed_in_decode_and_in_prefill(bench: Bench) -> None:
    async def main() -> None:
        await bench.policy(SPOT_PREFILLS)
        await bench.roles(SPLIT)
        async with bench.rolling() as rolling:
            await bench.kill("train-0/0")
            await rolling.more(6)
            await bench.kill("spot-0/0")
            await rolling.more(6)
        await bench.roles(SPLIT, limit_s=START_S)
        before = await bench.transferred()
        bench.check(await bench.rollout(range(12)))
        assert sum((await bench.transferred()).values()) > sum(before.values()), "restarted peers move KV again"
        await bench.settled()

    bench.run(main())


def test_a_worker_is_killed_in_a_transfer(bench: Bench) -> None:
    """Its engine hangs first, so that pulls from it are certainly under way when it dies."""

    async def main() -> None:
        await bench.policy(SPOT_PREFILLS)
        await bench.roles(SPLIT)
        await bench.publish()
        async with bench.rolling() as rolling:
            report = await bench.report("spot-0/0")
            with stopped(descendants(report.pid)):
                await asyncio.sleep(1.0)
                os.kill(report.pid, signal.SIGKILL)
            assert await asyncio.to_thread(left_after, descendants(report.pid), limit_s=10.0) == ()
            await rolling.more(6)
        assert "spot-0/0" not in serving(await bench.system.state()) or rolling.outcome.completed
        await bench.roles(SPLIT, limit_s=START_S)
        bench.check(await bench.rollout(range(12)))
        await bench.settled()

    bench.run(main())


def test_a_worker_is_killed_in_a_weight_update(bench: Bench) -> None:
    async def main() -> None:
        await bench.three_colocated()
        async with bench.rolling() as rolling:
            report = await bench.report("train-0/0")
            with stopped(descendants(report.pid)):
                publishing = asyncio.create_task(bench.publish())
                await asyncio.sleep(1.0)
                os.kill(report.pid, signal.SIGKILL)
            published = await asyncio.wait_for(publishing, CHANGE_S)
            assert set(published.updated) == {"node-0/0", "spot-0/0"}
            assert published.left == ("train-0/0",)
            assert published.seconds < CHANGE_S
            await rolling.more(6)
        outcome = await bench.rollout(range(12))
        bench.check(outcome)
        oldest = min(version for turn in outcome.turns for version in turn.answer.weight_versions)
        assert oldest == bench.version
        await bench.three_colocated()
        assert (await bench.report("train-0/0")).weight_version == bench.version
        await bench.settled()

    bench.run(main())


def test_an_engine_of_a_group_fails_to_start_and_the_group_is_reclaimed_while_it_starts(bench: Bench) -> None:
    async def starting(count: int) -> list[Process]:
        async with asyncio.timeout(CHANGE_S):
            while len(found := starting_processes()) < count:
                await asyncio.sleep(0.1)
        return found

    async def main() -> None:
        await bench.three_colocated()
        async with bench.rolling() as rolling:
            await asyncio.to_thread(bench.system.ray.add_node, "spot-9", Zone.PREEMPTIBLE, 2)
            victim, other = await starting(2)
            os.kill(victim.pid, signal.SIGKILL)
            assert await asyncio.to_thread(left_after, (victim, other), limit_s=CHANGE_S) == (), "all or none"
            await starting(1)
            body = {"node": "spot-9", "grace_s": 5.0}
            await asyncio.to_thread(bench.system.client.call, "POST", "/workers/reclaim", body)
            await bench.system.until(
                lambda state: not any(w["node"] == "spot-9" and w["started"] for w in state["workers"]),
                what="the reclaimed workers to leave",
                limit_s=CHANGE_S,
            )
            await asyncio.to_thread(bench.system.ray.remove_node, "spot-9")
            await rolling.more(6)
        assert starting_processes() == []
        await bench.roles(dict.fromkeys(WORKERS, "colocated"))
        await bench.settled()

    bench.run(main())


def test_a_node_goes_with_notice_and_another_without(bench: Bench) -> None:
    async def main() -> None:
        await bench.three_colocated()
        async with bench.rolling() as rolling:
            body = {"node": "spot-0", "grace_s": 8.0}
            await asyncio.to_thread(bench.system.client.call, "POST", "/workers/reclaim", body)
            await bench.system.until(
                lambda state: not any(w["node"] == "spot-0" and w["started"] for w in state["workers"]),
                what="spot-0 to be left",
                limit_s=CHANGE_S,
            )
            await asyncio.to_thread(bench.system.ray.remove_node, "spot-0")
            await rolling.more(12)
            await asyncio.to_thread(bench.system.ray.remove_node, "train-0", graceful=False)
            await rolling.more(12)
        await bench.roles({"node-0/0": "colocated"})
        await bench.system.until(lambda state: len(state["workers"]) == 1, what="one worker", limit_s=CHANGE_S)
        bench.check(await bench.rollout(range(12)))
        await bench.settled()

    bench.run(main())
