"""Accepted requests are completed once, with the tokens of an uninterrupted run, whatever befalls the workers."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from typing import Any

import pytest

from pearl.core.cluster import Role, Status
from pearl.live.router import runner
from tests.live.router.rig import Rig, colocated, disaggregated, pool, rig, run, until, worker
from tests.live.stub_engine import Misfortune, continuation

PROMPT = (1, 2, 3)
WANTED = continuation(PROMPT, 12)


def slow(r: Rig, pace_s: float = 0.01) -> None:
    for engine in r.engines.values():
        engine.pace_s = pace_s


async def running_on(r: Rig, name: str, tokens: int = 3, **body: Any) -> asyncio.Task[list[int]]:
    """A request that has some tokens, and runs on the engine of that name."""
    task = asyncio.create_task(r.tokens(PROMPT, **body))
    before = r.router.metrics.value("pearl_router_tokens_total")
    await until(lambda: r.router.metrics.value("pearl_router_tokens_total") >= before + tokens)
    assert r.engines[name].running == 1
    return task


def test_colocated_and_disaggregated_give_the_same_tokens() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a")) as r:
            assert await r.tokens() == WANTED
            r.set_pool(disaggregated(["a"], ["b"], epoch=2))
            assert await r.tokens() == WANTED
            r.set_pool(disaggregated(["b"], ["a"], epoch=3))
            assert await r.tokens() == WANTED
            assert (r.engines["a"].pulled, r.engines["b"].pulled) == (1, 1)

    run(main())


@pytest.mark.parametrize("after", [0, 5, 12])
@pytest.mark.parametrize("what", [m for m in Misfortune if m not in (Misfortune.REFUSED, Misfortune.HANGS)])
@pytest.mark.parametrize("hit", ["whole", "prefill", "decode"])
def test_every_misfortune_of_a_leg_is_resumed(hit: str, what: Misfortune, after: int) -> None:
    async def main() -> None:
        start = colocated("a", "b") if hit == "whole" else disaggregated(["a", "c"], ["b", "d"])
        async with rig("a", "b", "c", "d", start=start) as r:
            victim = {"whole": "a", "prefill": "a", "decode": "b"}[hit]
            r.engines[victim].script.append((0 if hit == "prefill" else after, what))
            assert await r.tokens() == WANTED
            answered = [len(leg.prompt) - 3 + leg.sampling.max_tokens for e in r.engines.values() for leg in e.legs]
            assert all(total <= 12 for total in answered)

    run(main())


def test_a_stalled_leg_is_moved() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b"), stall_s=0.05) as r:
            r.engines["a"].script.append((4, Misfortune.HANGS))
            assert await r.tokens() == WANTED
            assert r.router.metrics.value("pearl_router_interruptions_total", cause="stalled") == 1
            assert r.engines["a"].running == 0

    run(main())


def test_a_refused_request_fails_at_once_with_the_engines_words() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            r.engines["a"].script.append((0, Misfortune.REFUSED))
            status, answer = await r.complete()
            assert (status, answer["error"]["code"]) == (400, "engine_refused")
            assert "too long" in answer["error"]["message"]
            assert not r.engines["b"].legs

    run(main())


def test_a_request_that_kills_its_engines_is_not_handed_through_the_whole_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "BACKOFF_FIRST_S", 0.0)

    async def main() -> None:
        names = [f"w{i:02}" for i in range(12)]
        async with rig(*names, start=colocated(*names)) as r:
            for engine in r.engines.values():
                engine.script.append((0, Misfortune.LOST))
            status, answer = await r.complete()
            assert (status, answer["error"]["code"]) == (502, "workers_failed")
            assert sum(len(e.legs) for e in r.engines.values()) == runner.MAX_FRUITLESS_LEGS

    run(main())


def test_a_pool_that_is_down_for_a_while_loses_nothing() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].dead = True
            task = asyncio.create_task(r.tokens())
            await until(lambda: r.router.metrics.value("pearl_router_interruptions_total", cause="unavailable") == 1)
            r.engines["a"].dead = False
            assert await task == WANTED

    run(main())


def test_requests_wait_for_the_first_worker() -> None:
    async def main() -> None:
        async with rig("a") as r:
            task = asyncio.create_task(r.tokens())
            await until(lambda: r.router.open_requests == 1)
            r.set_pool(colocated("a"))
            assert await task == WANTED

    run(main())


# changes of the pool in mid-flight


def test_a_drain_lets_what_runs_finish_in_time() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a")) as r:
            slow(r)
            task = await running_on(r, "a")
            status, answer = await r.admin("POST", "/pearl/v1/drain", {"worker": "a", "deadline_s": 5})
            assert (status, answer) == (200, {"worker": "a", "epoch": 2, "moved": 0, "idle": True})
            assert await task == WANTED
            again = await r.admin("POST", "/pearl/v1/drain", {"worker": "a", "deadline_s": 5})
            assert again == (status, answer)

    run(main())


def test_a_drain_moves_what_runs_at_its_deadline_and_keeps_the_tokens() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            slow(r, 0.02)
            task = await running_on(r, "a")
            answer = await r.admin("POST", "/pearl/v1/drain", {"worker": "a", "deadline_s": 0.01})
            assert answer == (200, {"worker": "a", "epoch": 2, "moved": 1, "idle": True})
            assert await task == WANTED
            (resumed,) = r.engines["b"].legs
            assert list(resumed.prompt[:6]) == [*PROMPT, *WANTED[:3]]
            assert resumed.sampling.max_tokens == 12 - (len(resumed.prompt) - 3)

    run(main())


def test_emptying_a_worker_leaves_the_pool_alone_and_is_over_at_once_where_nothing_runs() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            slow(r, 0.02)
            task = await running_on(r, "a")
            r.set_pool(pool(worker("a", status=Status.TRANSITIONING), worker("b"), epoch=2))
            assert await r.router.empty("a", deadline_s=0.01) == 1
            assert await r.router.empty("a", deadline_s=5) == 0
            assert await r.router.empty("unknown", deadline_s=5) == 0
            assert r.router.pool.epoch == 2
            assert await task == WANTED

    run(main())


def test_a_role_change_and_a_mode_change_do_not_disturb_what_runs() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            slow(r)
            task = await running_on(r, "a")
            r.set_pool(disaggregated(["a"], ["b"], epoch=2))
            assert await task == WANTED
            assert not r.engines["b"].legs

    run(main())


@pytest.mark.parametrize("how", ["removed", "asleep", "old weights", "elsewhere"])
def test_legs_on_a_worker_that_serves_no_more_move_at_once(how: str) -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            slow(r)
            task = await running_on(r, "a")
            after = {
                "removed": colocated("b", epoch=2),
                "asleep": pool(worker("a", status=Status.INACTIVE), worker("b"), epoch=2),
                "old weights": pool(worker("a"), worker("b"), epoch=2, versions={"a": 1, "b": 2}, oldest=2),
                "elsewhere": colocated("a", "b", epoch=2),
            }[how]
            if how == "elsewhere":
                after.endpoints["a"] = after.endpoints["b"]  # type: ignore[index]  # a plain dict underneath
            r.engines["b"].weight_version = 2
            r.set_pool(after)
            await until(lambda: r.engines["a"].running == 0)
            assert await task == WANTED
            assert r.engines["b"].legs

    run(main())


def test_every_token_has_the_weight_version_that_made_it() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            r.engines["a"].script.append((5, Misfortune.ABORTED))
            r.engines["b"].weight_version = None
            r.set_pool(pool(worker("a"), worker("b"), epoch=2, versions={"a": 1, "b": 4}))
            _, answer = await r.complete()
            assert answer["choices"][0]["token_ids"] == WANTED
            versions = answer["choices"][0]["weight_versions"]
            assert versions in ([1] * 5 + [4] * 7, [1] * 12)
            assert r.engines["a"].legs

    run(main())


def test_no_token_of_older_weights_than_allowed_is_kept() -> None:
    """The engine says version 1 though the pool believes 2."""

    async def main() -> None:
        start = pool(worker("a"), worker("b"), versions={"a": 2, "b": 2}, oldest=2)
        async with rig("a", "b", start=start) as r:
            r.engines["b"].weight_version = 2
            _, answer = await r.complete()
            assert answer["choices"][0]["token_ids"] == WANTED
            assert set(answer["choices"][0]["weight_versions"]) == {2}
            assert r.engines["a"].legs

    run(main())


# KV handles


def test_an_expired_handle_is_never_dispatched() -> None:
    """The stub gives wrong tokens for an expired handle, as real engines do."""

    async def main() -> None:
        start = disaggregated(["p"], ["d"])
        async with rig("p", "d", start=start, kv_lease_s=0.1, kv_margin_s=0.05) as r:
            r.engines["p"].pace_s = 0.08
            r.engines["p"].kv_lease_s = 0.0
            assert await r.tokens() == WANTED
            assert r.engines["d"].pulled == 0
            assert r.router.metrics.value("pearl_router_kv_handles_total", result="expired") == 1

    run(main())


def test_an_announced_lease_counts_before_the_configured_one() -> None:
    async def main() -> None:
        async with rig("p", "d", start=disaggregated(["p"], ["d"])) as r:
            r.engines["p"].announces_lease = True
            r.engines["p"].kv_lease_s = 1.0
            assert await r.tokens() == WANTED
            assert r.engines["d"].pulled == 0

    run(main())


def test_a_handle_that_fails_is_not_used_again() -> None:
    async def main() -> None:
        async with rig("p", "d", start=disaggregated(["p"], ["d"])) as r:
            r.engines["d"].script.append((0, Misfortune.FAILED))
            assert await r.tokens() == WANTED
            assert [leg.kv is not None for leg in r.engines["d"].legs] == [True, False]
            assert len(r.engines["p"].legs) == 1

    run(main())


def test_a_prefill_worker_that_dies_takes_its_handles_along() -> None:
    async def main() -> None:
        async with rig("p", "q", "d", start=disaggregated(["p"], ["d"]), slots_per_worker=1) as r:
            slow(r, 0.02)
            first = await running_on(r, "d")
            second = asyncio.create_task(r.tokens())
            await until(lambda: len(r.engines["p"].legs) == 2 and r.engines["p"].running == 0)
            r.set_pool(disaggregated(["q"], ["d"], epoch=2))
            assert await first == await second == WANTED
            assert r.engines["d"].pulled == 1
            assert r.engines["q"].legs == []

    run(main())


# sessions


def test_a_session_stays_on_its_worker_and_moves_when_that_goes() -> None:
    async def main() -> None:
        async with rig("a", "b", "c", start=colocated("a", "b", "c")) as r:
            for _ in range(4):
                await r.tokens(session_id="s")
            (home,) = [e.name for e in r.engines.values() if e.legs]
            others = {"a", "b", "c"} - {home}
            r.set_pool(colocated(*others, epoch=2))
            for _ in range(3):
                assert (await r.complete(headers={"X-Session-Id": "s"}))[0] == 200
            assert sorted(len(r.engines[name].legs) for name in others) == [0, 3]

    run(main())


def test_requests_without_a_session_spread() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            for _ in range(6):
                await r.tokens()
            assert [len(e.legs) for e in r.engines.values()] == [3, 3]

    run(main())


# all at once


@pytest.mark.parametrize("seed", range(4))
def test_a_random_storm_loses_nothing(seed: int) -> None:
    """Pools change mode and members while legs fail in every way; each request still gets exactly its tokens."""

    async def main() -> None:
        rng = random.Random(seed)
        names = ("a", "b", "c", "d")
        async with rig(*names, start=colocated(*names)) as r:
            slow(r, 0.001)
            fates = [m for m in Misfortune if m not in (Misfortune.REFUSED, Misfortune.HANGS)]
            for engine in r.engines.values():
                engine.script = deque(
                    (rng.randrange(8), rng.choice(fates)) if rng.random() < 0.3 else None for _ in range(60)
                )
            tasks = []
            for i in range(40):
                prompt, budget = [rng.randrange(900) for _ in range(rng.randrange(1, 20))], rng.randrange(1, 40)
                body = {"max_tokens": budget, "session_id": f"s{i % 7}"}
                tasks.append((asyncio.create_task(r.tokens(prompt, **body)), continuation(prompt, budget)))
            for _ in range(12):
                await asyncio.sleep(0.01)
                here = rng.sample(names, rng.randrange(1, 5))
                roles = [rng.choice((Role.PREFILL, Role.DECODE, Role.COLOCATED)) for _ in here]
                r.set_pool(
                    pool(*(worker(n, role) for n, role in zip(here, roles, strict=True)), epoch=r.router.pool.epoch + 1)
                )
                if rng.random() < 0.5:
                    await r.router.drain(rng.choice(here), deadline_s=0.0)
            r.set_pool(disaggregated(["a", "b"], ["c", "d"], epoch=1000))
            for task, wanted in tasks:
                assert await task == wanted
            assert all(load.running == 0 for load in r.router._dispatcher.loads.values())
            assert len(r.router._leases) == 0
            assert all(engine.running == 0 for engine in r.engines.values())

    run(main(), 60)


def test_a_stream_shows_every_token_once_across_interruptions() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            r.engines["a"].script.append((5, Misfortune.CUT))
            slow(r, 0.002)
            body = {"model": "stub", "prompt": PROMPT, "max_tokens": 12, "stream": True, "logprobs": 0}
            async with r.http.post(f"{r.url}/v1/completions", json=body) as response:
                assert response.content_type == "text/event-stream"
                lines = [line.decode().strip() async for line in response.content]
            events = [line.removeprefix("data: ") for line in lines if line]
            assert events.pop() == "[DONE]"
            choices = [json.loads(event)["choices"][0] for event in events]
            assert len(choices) > 2
            assert [t for c in choices for t in c["token_ids"]] == WANTED
            assert sum(len(c["logprobs"]["token_logprobs"]) for c in choices) == 12
            assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]

    run(main())
