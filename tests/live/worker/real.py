"""What the tests of real workers share: a pair of vLLM workers on Ray, and legs through them."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.live.devices import CPU
from pearl.live.engine.config import EngineConfig
from pearl.live.protocol import Chunk, FinishReason, KvHandle, Leg, Sampling
from pearl.live.worker import RayWorker

START_S = 600.0
"""Twice the imports of vLLM per worker: 20 s each on a free core, minutes on a busy host."""
KV_LEASE_S = 8
KV_CACHE_BYTES = 128 << 20
FIRST_KV_PORT = 15610
GREEDY = Sampling(max_tokens=24, temperature=0.0, ignore_eos=True)


def missing() -> str | None:
    """Why real workers cannot run here; None where they can."""
    if not sys.platform.startswith("linux"):
        return "real workers are tried on Linux only"
    absent = [name for name in ("ray", "vllm", "nixl") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def worker_config(name: str, model: Path, *, index: int) -> EngineConfig:
    return EngineConfig(
        worker=name,
        model=model,
        device=CPU,
        kv_port=FIRST_KV_PORT + index,
        kv_cache_bytes=KV_CACHE_BYTES,
        kv_lease_s=KV_LEASE_S,
    )


@dataclass(slots=True, kw_only=True)
class Pair:
    """Two workers, the directories of weights 0 and 1, and the loop that runs their clients."""

    first: RayWorker
    second: RayWorker
    weights: tuple[Path, Path]
    runner: asyncio.Runner
    _rng: random.Random = field(default_factory=lambda: random.Random(17))
    _legs: int = 0

    def run(self, work: Coroutine[Any, Any, Any], timeout_s: float = 120.0) -> Any:
        return self.runner.run(asyncio.wait_for(work, timeout_s))

    def prompt(self, tokens: int = 100) -> list[int]:
        """One that was not asked before."""
        return [self._rng.randrange(1024) for _ in range(tokens)]

    def leg(self, prompt: Sequence[int], sampling: Sampling = GREEDY, **fields: Any) -> Leg:
        self._legs += 1
        return Leg(id=f"leg-{self._legs}", prompt=prompt, sampling=sampling, **fields)

    async def ask(self, worker: RayWorker, prompt: Sequence[int], sampling: Sampling = GREEDY, **fields: Any) -> Reply:
        reply = Reply()
        async with aclosing(worker.engine().generate(self.leg(prompt, sampling, **fields))) as chunks:
            async for chunk in chunks:
                reply.add(chunk)
        return reply

    async def hand_over(self, prompt: Sequence[int], *, source: RayWorker, sink: RayWorker) -> Reply:
        """Prefill on `source`, decode on `sink`."""
        kept = await self.ask(source, prompt, keep_kv=True)
        assert kept.kv is not None
        return await self.ask(sink, prompt, kv=kept.kv)


@dataclass(slots=True)
class Reply:
    """A leg as its chunks told it."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    finish: FinishReason | None = None
    kv: KvHandle | None = None

    def add(self, chunk: Chunk) -> None:
        assert self.finish is None, "a chunk after the last"
        self.tokens += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.weight_version] * len(chunk.token_ids)
        self.finish, self.kv = chunk.finish, chunk.kv


async def transferred(worker: RayWorker) -> int:
    """Prompt tokens whose KV the worker pulled so far."""
    return (await worker.report()).counters.transferred
