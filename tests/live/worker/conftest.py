"""Real vLLM workers on Ray, one pair for the whole session. Skipped, with the reason, where they cannot run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pearl.live.embedded import set_ray_environment
from pearl.live.tiny_model import TinyModel, write_tiny_model
from pearl.live.worker import RayWorker
from tests.live.worker.real import START_S, Pair, missing, worker_config


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    if reason := missing():
        pytest.skip(reason)
    set_ray_environment(loopback=True)
    import ray

    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def pair(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("weights")
    weights = (
        write_tiny_model(root / "v0", TinyModel(seed=0)),
        write_tiny_model(root / "v1", TinyModel(seed=1)),
    )
    workers = [RayWorker.launch(worker_config(f"w{i}", weights[0], index=i)) for i in range(2)]

    async def start() -> None:
        await asyncio.gather(*(worker.start(START_S) for worker in workers))
        await asyncio.gather(*(worker.admit() for worker in workers))

    async def stop() -> None:
        await asyncio.gather(*(worker.stop() for worker in workers))

    with asyncio.Runner() as runner:
        try:
            runner.run(start())
            yield Pair(first=workers[0], second=workers[1], weights=weights, runner=runner)
        finally:
            runner.run(stop())
