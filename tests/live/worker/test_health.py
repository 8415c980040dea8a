"""Canaries: each way in which a worker can be ill, and the word for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pearl.errors import UsageError
from pearl.live.devices import CPU
from pearl.live.engine.config import EngineConfig
from pearl.live.engine.engine import Engine
from pearl.live.engine.handover import NixlRoles
from pearl.live.engine.health import CANARY_PROMPT_TOKENS, CanaryError, canary, canary_prompt, canary_transfer
from pearl.live.protocol import Chunk, FinishReason, Leg
from pearl.live.worker import RayEngines
from tests.live.worker.fake_backend import FakeBackend

CONFIG = EngineConfig(worker="w", model=Path("m0"), device=CPU, kv_port=5000)


@dataclass(slots=True)
class Probed:
    """An engine before it is admitted, with chunks changed on their way."""

    engine: Engine
    change: Callable[[Leg, Chunk], Chunk] = lambda _, chunk: chunk

    async def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        async for chunk in self.engine.probe(leg):
            yield self.change(leg, chunk)

    async def aclose(self) -> None:
        return None


def probed(change: Callable[[Leg, Chunk], Chunk] = lambda _, chunk: chunk, *, pace_s: float = 0.0) -> Probed:
    return Probed(Engine(config=CONFIG, backend=FakeBackend(pace_s=pace_s), roles=NixlRoles(lease_s=30)), change)


def counting(*values: int) -> Callable[[], Awaitable[int]]:
    rest = iter(values)

    async def pulled() -> int:
        return next(rest)

    return pulled


def test_prompts_are_new_for_every_id_and_the_same_for_one() -> None:
    assert canary_prompt("a") == canary_prompt("a") != canary_prompt("b")
    assert len(canary_prompt("a")) == CANARY_PROMPT_TOKENS
    assert all(0 <= token < 256 for token in canary_prompt("a"))


def test_a_healthy_pair_passes() -> None:
    async def main() -> None:
        await canary(probed(), id="c", timeout_s=1)
        counts = counting(0, 80, -1)
        await canary_transfer(probed(), probed(), id="c", pulled=counts, timeout_s=1)
        assert await counts() == -1, "it was asked before and after"

    asyncio.run(main())


def test_a_worker_that_does_not_answer_or_is_cut_dies() -> None:
    async def main() -> None:
        with pytest.raises(CanaryError, match=r"c: no answer in 0\.05 s"):
            await canary(probed(pace_s=1.0), id="c", timeout_s=0.05)
        cut = probed(lambda _, chunk: replace(chunk, finish=FinishReason.ABORT if chunk.finish else None))
        with pytest.raises(CanaryError, match="c: ended as abort"):
            await canary(cut, id="c", timeout_s=1)
        asleep = probed()
        asleep.engine.asleep = True
        with pytest.raises(CanaryError, match="c: w is asleep"):
            await canary(asleep, id="c", timeout_s=1)

    asyncio.run(main())


def poison(leg: Leg, chunk: Chunk) -> Chunk:
    return chunk if leg.kv is None else replace(chunk, token_ids=tuple(token + 1 for token in chunk.token_ids))


@pytest.mark.parametrize(
    ("prefill", "decode", "pulled", "why"),
    [
        (probed(lambda _, chunk: replace(chunk, kv=None)), probed(), (0, 80), "kept no KV cache"),
        (probed(), probed(), (80, 80), "computed the prompt itself"),
        (probed(), probed(poison), (0, 80), "tokens after the transfer"),
    ],
)
def test_a_transfer_that_moves_nothing_or_the_wrong_thing_dies(
    prefill: Probed, decode: Probed, pulled: tuple[int, int], why: str
) -> None:
    with pytest.raises(CanaryError, match=why):
        asyncio.run(canary_transfer(prefill, decode, id="c", pulled=counting(*pulled), timeout_s=1))


@pytest.mark.parametrize("url", ["http://host:1", "ray:", "w0"])
def test_only_ray_urls_name_workers_of_the_cluster(url: str) -> None:
    with pytest.raises(UsageError, match="expected ray:NAME"):
        RayEngines()(worker="w0", url=url)
