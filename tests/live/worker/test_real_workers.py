"""Two real vLLM workers on CPU, driven through Ray as a router and a controller drive them.

The order of the tests matters: the last ones change weights, break a worker, and kill one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from pearl.core.cluster import Status
from pearl.live.engine.engine import TransitionLimits, UnfitError
from pearl.live.protocol import (
    EngineFailedError,
    EngineLostError,
    EngineRefusedError,
    EngineUnavailableError,
    FinishReason,
    Leg,
    Sampling,
)
from pearl.live.worker import RayEngine, RayEngines, RayWorker
from tests.live.worker.real import GREEDY, KV_CACHE_BYTES, KV_LEASE_S, Pair, Reply, transferred

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

ABORTS = int(os.environ.get("PEARL_TEST_ABORTS", "100"))
LONG = replace(GREEDY, max_tokens=600)


async def children(worker: RayWorker) -> dict[int, int]:
    """Processes of the worker's engine, and the memory of each in bytes."""
    import psutil

    holder = psutil.Process((await worker.report()).pid)
    return {child.pid: child.memory_info().rss for child in holder.children(recursive=True)}


async def no_kv_in_use(worker: RayWorker, pair: Pair, timeout_s: float) -> None:
    """Wait until the only blocks in use were those of the request that looks."""
    async with asyncio.timeout(timeout_s):
        while True:
            await pair.ask(worker, pair.prompt(8), replace(GREEDY, max_tokens=2))
            if (await worker.report()).counters.kv_usage == 0.0:
                return
            await asyncio.sleep(0.5)


# Tokens


def test_the_same_tokens_on_either_worker_and_across_a_hand_over_in_both_directions(pair: Pair) -> None:
    async def main() -> None:
        for source, sink in ((pair.first, pair.second), (pair.second, pair.first)):
            for _ in range(8):
                prompt = pair.prompt()
                before = await transferred(sink)
                handed = await pair.hand_over(prompt, source=source, sink=sink)
                assert await transferred(sink) - before == len(prompt), "the prompt was computed, not pulled"
                assert handed.tokens == (await pair.ask(source, prompt)).tokens
                assert handed.finish is FinishReason.LENGTH
                assert len(handed.tokens) == GREEDY.max_tokens

    pair.run(main())


def test_hand_overs_at_once_give_the_tokens_of_one_worker(pair: Pair) -> None:
    async def main() -> None:
        prompts = [pair.prompt(60 + 13 * n) for n in range(12)]
        handed = await asyncio.gather(
            *(pair.hand_over(prompt, source=pair.first, sink=pair.second) for prompt in prompts)
        )
        alone = [await pair.ask(pair.first, prompt) for prompt in prompts]
        assert [reply.tokens for reply in handed] == [reply.tokens for reply in alone]

    pair.run(main())


def test_an_aborted_leg_keeps_its_tokens_and_resumes_elsewhere_with_the_same(pair: Pair) -> None:
    async def main() -> None:
        prompt = pair.prompt()
        sampling = replace(LONG, logprobs=True)
        whole = await pair.ask(pair.first, prompt, sampling)
        leg, part = pair.leg(prompt, sampling), Reply()
        async with aclosing(pair.first.engine().generate(leg)) as chunks:
            async for chunk in chunks:
                part.add(chunk)
                if len(part.tokens) == 5:
                    await pair.first.abort([leg.id])
        assert part.finish is FinishReason.ABORT
        assert 5 <= len(part.tokens) < LONG.max_tokens
        assert part.tokens == whole.tokens[: len(part.tokens)]
        rest = await pair.ask(
            pair.second, prompt + part.tokens, replace(sampling, max_tokens=LONG.max_tokens - len(part.tokens))
        )
        assert part.tokens + rest.tokens == whole.tokens
        assert part.logprobs + rest.logprobs == pytest.approx(whole.logprobs, abs=1e-3)

    pair.run(main())


def test_closing_the_stream_aborts_the_leg_in_the_worker(pair: Pair) -> None:
    async def main() -> None:
        engine = pair.first.engine()
        stream = engine.generate(pair.leg(pair.prompt(), replace(LONG, max_tokens=1500)))
        await anext(stream)
        assert (await pair.first.report()).open_legs == 1
        await stream.aclose()
        await engine.aclose()
        async with asyncio.timeout(10):
            while (await pair.first.report()).open_legs:
                await asyncio.sleep(0.05)

    pair.run(main())


def test_stop_tokens_and_the_end_token_stop_a_leg(pair: Pair) -> None:
    async def main() -> None:
        prompt = pair.prompt()
        whole = (await pair.ask(pair.first, prompt)).tokens
        place = next(n for n in range(4, len(whole)) if whole[n] not in whole[:n])
        stopped = await pair.ask(pair.first, prompt, replace(GREEDY, stop_token_ids=(whole[place],)))
        assert (stopped.tokens, stopped.finish) == (whole[: place + 1], FinishReason.STOP)

    pair.run(main())


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([], GREEDY),
        ([5000], GREEDY),
        ([-1], GREEDY),
        ([1] * 5000, GREEDY),
        ([1], replace(GREEDY, stop_token_ids=(5000,), min_tokens=2)),
        ([1], replace(GREEDY, top_p=7.0)),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_harms_nobody(
    pair: Pair, prompt: list[int], sampling: Sampling
) -> None:
    async def main() -> None:
        with pytest.raises(EngineRefusedError):
            await pair.ask(pair.first, prompt, sampling)
        assert (await pair.ask(pair.first, pair.prompt())).finish is FinishReason.LENGTH

    pair.run(main())


# Health and status


def test_canaries_pass_and_the_engine_is_found_by_its_url(pair: Pair) -> None:
    async def main() -> None:
        await pair.first.canary(id="test", timeout_s=30)
        await pair.second.canary_from(pair.first, id="test", timeout_s=30)
        await pair.first.canary_from(pair.second, id="test", timeout_s=30)
        with pytest.raises(EngineUnavailableError, match="no worker 'nobody'"):
            await anext(RayEngines()(worker="x", url="ray:nobody").generate(pair.leg([1])))

    pair.run(main())
    found = RayEngines()(worker="w0", url="ray:w0")
    assert isinstance(found, RayEngine)
    assert found.worker.name == "w0"


def test_draining_cuts_what_does_not_end_in_time_and_refuses_more(pair: Pair) -> None:
    async def main() -> None:
        prompt = pair.prompt()
        running = asyncio.create_task(pair.ask(pair.first, prompt, replace(LONG, max_tokens=1500)))
        while not (await pair.first.report()).open_legs:
            await asyncio.sleep(0.02)
        assert await pair.first.drain(0.2) == 1
        assert (await pair.first.report()).status is Status.INACTIVE
        cut = await running
        assert cut.finish is FinishReason.ABORT
        with pytest.raises(EngineUnavailableError, match="inactive"):
            await pair.ask(pair.first, prompt)
        assert await pair.first.drain(0.2) == 0
        await pair.first.canary(id="drained", timeout_s=30)
        await pair.first.admit()
        again = await pair.ask(pair.first, prompt, replace(LONG, max_tokens=max(len(cut.tokens), 1)))
        assert again.tokens[: len(cut.tokens)] == cut.tokens

    pair.run(main())


# Kept KV


def test_kv_of_aborted_hand_overs_comes_free_and_late_handles_are_refused(pair: Pair) -> None:
    async def main() -> None:
        await no_kv_in_use(pair.first, pair, 2 * KV_LEASE_S)
        prompt = pair.prompt()
        early = await pair.ask(pair.first, prompt, keep_kv=True)

        async def abandon(number: int) -> None:
            stream = pair.first.engine().generate(pair.leg(pair.prompt(), GREEDY, keep_kv=True))
            if number % 2:
                async for chunk in stream:
                    assert chunk.kv is not None, "kept, and never pulled"
            else:
                getting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0.01 * (number % 7))
                getting.cancel()
                await asyncio.gather(getting, return_exceptions=True)
            await stream.aclose()

        for start in range(0, ABORTS, 10):
            await asyncio.gather(*(abandon(n) for n in range(start, min(start + 10, ABORTS))))
        await no_kv_in_use(pair.first, pair, 3 * KV_LEASE_S)
        assert (await pair.first.report()).open_legs == 0
        await asyncio.sleep(KV_LEASE_S)
        with pytest.raises(EngineFailedError, match="expired"):
            await pair.ask(pair.second, prompt, kv=early.kv)

    pair.run(main(), timeout_s=300)


# Sleep


def test_sleep_frees_memory_and_waking_changes_no_token(pair: Pair) -> None:
    async def main() -> None:
        worker, peer = pair.second, pair.first
        prompt = pair.prompt()
        wanted = await pair.ask(worker, prompt)
        for _ in range(24):
            await pair.ask(worker, pair.prompt(2000), replace(GREEDY, max_tokens=1))
        before = sum((await children(worker)).values())
        freed = await worker.sleep(TransitionLimits())
        assert freed > 0.99 * KV_CACHE_BYTES
        after = sum((await children(worker)).values())
        assert before - after > 0.3 * KV_CACHE_BYTES, "the system has no memory back"
        assert await worker.sleep(TransitionLimits()) == 0
        with pytest.raises(EngineUnavailableError):
            await worker.admit()
        await worker.wake(TransitionLimits())
        await worker.wake(TransitionLimits())
        await worker.canary_from(peer, id="woken", timeout_s=30)
        await peer.canary_from(worker, id="woken", timeout_s=30)
        await worker.admit()
        assert (await pair.ask(worker, prompt)).tokens == wanted.tokens
        for source, sink in ((worker, peer), (peer, worker)):
            fresh = pair.prompt()
            handed = await pair.hand_over(fresh, source=source, sink=sink)
            assert handed.tokens == (await pair.ask(source, fresh)).tokens

    pair.run(main(), timeout_s=240)


# Weights


def test_an_update_changes_tokens_and_versions_and_nothing_of_the_old_stays(pair: Pair) -> None:
    async def main() -> None:
        worker, prompt = pair.first, pair.prompt(128)
        old = await pair.ask(worker, prompt)
        assert set(old.versions) == {0}
        stale = (await pair.ask(worker, pair.prompt(), keep_kv=True)).kv
        running = asyncio.create_task(pair.ask(worker, prompt, replace(LONG, max_tokens=1500)))
        while not (await worker.report()).open_legs:
            await asyncio.sleep(0.02)
        await worker.update_weights(version=1, directory=pair.weights[1], limits=TransitionLimits(kept_s=0.5))
        cut = await running
        assert cut.finish is FinishReason.ABORT
        assert set(cut.versions) <= {0}
        cached = (await worker.report()).counters.cached
        new = await pair.ask(worker, prompt)
        assert set(new.versions) == {1}
        assert new.tokens != old.tokens
        assert (await worker.report()).counters.cached == cached, "a prefix of the old weights was used"
        with pytest.raises(EngineFailedError, match="weights 0"):
            await pair.ask(worker, prompt, kv=stale)
        await worker.update_weights(version=1, directory=pair.weights[1], limits=TransitionLimits())
        await pair.second.update_weights(version=1, directory=pair.weights[1], limits=TransitionLimits())
        assert (await pair.ask(pair.second, prompt)).tokens == new.tokens
        assert (await pair.hand_over(fresh := pair.prompt(), source=worker, sink=pair.second)).tokens == (
            await pair.ask(worker, fresh)
        ).tokens
        await pair.second.sleep(TransitionLimits())
        await pair.second.wake(TransitionLimits())
        for source, sink in ((worker, pair.second), (pair.second, worker)):
            await sink.canary_from(source, id="woken under newer weights", timeout_s=30)
        await pair.second.admit()
        await worker.update_weights(version=2, directory=pair.weights[0], limits=TransitionLimits())
        assert (await pair.ask(worker, prompt)).tokens == old.tokens

    pair.run(main(), timeout_s=240)


def test_aborts_in_the_middle_of_an_update_harm_nobody(pair: Pair) -> None:
    async def main() -> None:
        worker = pair.first
        version = (await worker.report()).weight_version
        legs = [pair.leg(pair.prompt(), replace(LONG, max_tokens=1500)) for _ in range(8)]

        async def read(leg: Leg) -> Reply:
            reply = Reply()
            async with aclosing(worker.engine().generate(leg)) as chunks:
                async for chunk in chunks:
                    reply.add(chunk)
            return reply

        reading = [asyncio.create_task(read(leg)) for leg in legs]
        while (await worker.report()).open_legs < len(legs):
            await asyncio.sleep(0.02)
        updating = asyncio.create_task(
            worker.update_weights(version=version + 1, directory=pair.weights[1], limits=TransitionLimits())
        )
        await asyncio.gather(*(worker.abort([leg.id]) for leg in legs[::2]))
        await updating
        for reply in await asyncio.gather(*reading):
            assert reply.finish is FinishReason.ABORT
            assert set(reply.versions) <= {version}
        assert set((await pair.ask(worker, pair.prompt())).versions) == {version + 1}

    pair.run(main())


def test_a_worker_that_cannot_update_is_unfit_and_serves_no_more(pair: Pair, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(UnfitError, match="update to weights 9 failed"):
            await pair.second.update_weights(version=9, directory=tmp_path, limits=TransitionLimits())
        report = await pair.second.report()
        assert report.status is Status.INACTIVE
        assert report.unfit is not None
        assert report.weight_version == 1
        with pytest.raises(EngineUnavailableError):
            await pair.ask(pair.second, pair.prompt())
        with pytest.raises(EngineUnavailableError):
            await pair.second.admit()

    pair.run(main())


# Death


def is_running(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_engine_that_dies_loses_its_legs_and_says_so(pair: Pair) -> None:
    async def main() -> None:
        running = asyncio.create_task(pair.ask(pair.first, pair.prompt(), replace(LONG, max_tokens=1900)))
        while not (await pair.first.report()).open_legs:
            await asyncio.sleep(0.02)
        for pid in await children(pair.first):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineLostError):
            await running
        with pytest.raises(EngineLostError):
            await pair.first.report()

    pair.run(main())


def test_a_killed_worker_leaves_no_process(pair: Pair) -> None:
    import ray

    async def main() -> None:
        engine = tuple(await children(pair.second))
        assert engine
        ray.kill(pair.second.actor)
        async with asyncio.timeout(20):
            while any(map(is_running, engine)):
                await asyncio.sleep(0.1)
        with pytest.raises(EngineLostError):
            await pair.second.report()
        with pytest.raises(EngineLostError):
            await pair.ask(pair.second, pair.prompt())

    pair.run(main())
