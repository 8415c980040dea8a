"""What real workers say of themselves, of their prompts and of their steps."""

from __future__ import annotations

import time
from contextlib import aclosing

import pytest

from pearl.core.telemetry import StepRecord
from pearl.live.protocol import KvHandle, PromptReport
from pearl.live.worker import RayWorker
from tests.live.worker.real import KV_CACHE_BYTES, Pair

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

PROMPT = 200
OUTPUT = 24


async def told(pair: Pair, worker: RayWorker, prompt: list[int], kv: KvHandle | None = None) -> PromptReport:
    """What the worker says of a leg's prompt."""
    reports = []
    async with aclosing(worker.engine().generate(pair.leg(prompt, kv=kv))) as chunks:
        async for chunk in chunks:
            reports += [chunk.prompt] if chunk.prompt else []
    (report,) = reports
    return report


def test_an_engine_says_what_it_is(pair: Pair) -> None:
    record = pair.run(pair.first.describe())
    assert (record.worker, record.max_sequences) == ("w0", 16)
    assert record.kv_bytes_per_token > 0
    assert record.kv_tokens * record.kv_bytes_per_token == pytest.approx(KV_CACHE_BYTES, rel=0.02)


def test_steps_are_what_was_asked_for_and_take_the_time_that_passed(pair: Pair) -> None:
    async def work() -> tuple[tuple[StepRecord, ...], float]:
        await pair.first.steps()
        began_s = time.monotonic()
        await pair.ask(pair.first, pair.prompt(PROMPT))
        return await pair.first.steps(), time.monotonic() - began_s

    steps, passed_s = pair.run(work())
    prefill, *decodes = steps
    assert (prefill.prompts, prefill.new_tokens, prefill.cached_tokens, prefill.batch) == (1, PROMPT, 0, 0)
    assert len(decodes) in (OUTPUT - 1, OUTPUT)  # one more where the next step is composed before the end is known
    assert [(step.batch, step.context_tokens) for step in decodes] == [(1, PROMPT + 1 + i) for i in range(len(decodes))]
    assert all(step.seconds > 0 for step in steps)
    assert sum(step.seconds for step in steps) <= passed_s
    assert abs(steps[-1].at_s - time.time()) < 60


def test_a_second_turn_is_cached_and_a_pulled_one_is_no_prefill(pair: Pair) -> None:
    async def work() -> None:
        prompt = pair.prompt(PROMPT)
        first = await told(pair, pair.first, prompt)
        again = await told(pair, pair.first, [*prompt, 1, 2, 3])
        assert first.cached_tokens == 0
        assert again.cached_tokens >= PROMPT - 32  # whole blocks
        assert first.prefill_s > 0
        kept = await pair.ask(pair.first, prompt, keep_kv=True)
        await pair.second.steps()
        pulled = await told(pair, pair.second, prompt, kept.kv)
        assert pulled.queue_s > 0
        steps = await pair.second.steps()
        assert [(step.prompts, step.batch) for step in steps] == [(0, 1)] * len(steps)
        assert steps[0].context_tokens == PROMPT

    pair.run(work())
