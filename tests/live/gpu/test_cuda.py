"""Two real vLLM workers on one GPU: `make test-gpu`. Skipped, with the reason, where there is none.

PEARL_TEST_MODEL names a model's directory; without it a tiny one with random weights is made.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pearl.live.devices import CUDA
from pearl.live.engine.config import EngineConfig
from pearl.live.engine.engine import TransitionLimits
from pearl.live.tiny_model import TinyModel, write_tiny_model
from pearl.live.worker import RayWorker
from tests.live.worker.real import FIRST_KV_PORT, START_S, Pair, missing, transferred

pytestmark = [pytest.mark.live, pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1800)]

MEMORY_SHARE = 0.35
"""Of the GPU, for each of the two engines: room for both, and for what CUDA itself takes."""
LIMITS = TransitionLimits(total_s=300.0)
LEAST_FREED_BYTES = 1 << 30
"""A sleeping engine gives back its KV cache, which is a third of a GPU, and its weights."""


def no_gpu() -> str | None:
    if reason := missing():
        return reason
    if importlib.util.find_spec("torch") is None:
        return "not installed: torch"
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def used_bytes() -> int:
    """Device memory in use, as the driver says it: of all processes."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True, timeout=30).stdout) << 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if reason := no_gpu():
        pytest.skip(reason)
    import ray

    ray.init(num_cpus=8, num_gpus=1, include_dashboard=False, log_to_driver=False)
    root = tmp_path_factory.mktemp("weights")
    given = os.environ.get("PEARL_TEST_MODEL")
    model = Path(given) if given else write_tiny_model(root / "v0", TinyModel(seed=0))
    newer = model if given else write_tiny_model(root / "v1", TinyModel(seed=1))
    device = replace(CUDA, engine_args={**CUDA.engine_args, "gpu_memory_utilization": MEMORY_SHARE})
    configs = [
        EngineConfig(worker=f"gpu-{i}", model=model, device=device, kv_port=FIRST_KV_PORT + 20 + i) for i in range(2)
    ]
    workers = [RayWorker.launch(config, gpus=0.5) for config in configs]

    async def start() -> None:
        for worker in workers:  # one after the other: each measures what memory is free
            await worker.start(START_S)
            await worker.admit()

    with asyncio.Runner() as runner:
        try:
            runner.run(start())
            yield Pair(first=workers[0], second=workers[1], weights=(model, newer), runner=runner)
        finally:
            runner.run(_stop(workers))
            ray.shutdown()


async def _stop(workers: list[RayWorker]) -> None:
    await asyncio.gather(*(worker.stop() for worker in workers))


def test_prefill_on_one_engine_and_decode_on_the_other_gives_the_tokens_of_one(pair: Pair) -> None:
    async def main() -> None:
        for source, sink in ((pair.first, pair.second), (pair.second, pair.first)):
            prompt = pair.prompt(200)
            before = await transferred(sink)
            handed = await pair.hand_over(prompt, source=source, sink=sink)
            assert await transferred(sink) - before == len(prompt), "the prompt was computed, not pulled"
            assert handed.tokens == (await pair.ask(source, prompt)).tokens

    pair.run(main(), 300)


def test_sleep_frees_device_memory_and_a_woken_engine_gives_the_same_tokens_and_transfers(pair: Pair) -> None:
    async def main() -> None:
        prompt = pair.prompt(200)
        awake = (await pair.ask(pair.second, prompt)).tokens
        before = used_bytes()
        assert await pair.second.sleep(LIMITS) > LEAST_FREED_BYTES
        assert before - used_bytes() > LEAST_FREED_BYTES
        await pair.second.wake(LIMITS)
        await pair.second.canary_from(pair.first, id="woken", timeout_s=60)
        await pair.second.admit()
        handed = await pair.hand_over(pair.prompt(200), source=pair.first, sink=pair.second)
        assert handed.tokens
        assert (await pair.ask(pair.second, prompt)).tokens == awake

    pair.run(main(), 900)


def test_new_weights_raise_the_version_and_forget_what_was_cached(pair: Pair) -> None:
    async def main() -> None:
        prompt = pair.prompt(200)
        await pair.ask(pair.first, prompt)
        cached = (await pair.first.report()).counters.cached
        await pair.first.update_weights(version=1, directory=pair.weights[1], limits=LIMITS)
        after = await pair.ask(pair.first, prompt)
        assert set(after.versions) == {1}
        assert (await pair.first.report()).counters.cached == cached

    pair.run(main(), 900)
