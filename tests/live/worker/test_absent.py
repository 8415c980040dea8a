from __future__ import annotations

import asyncio

import pytest

from pearl.errors import UsageError
from pearl.live.protocol import EngineUnavailableError, Leg, Sampling
from pearl.live.worker import RayEngines, RayWorker


def test_a_pool_with_a_worker_that_died_can_be_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, **_: str) -> RayWorker:
        raise EngineUnavailableError(f"no worker {name!r} in this Ray cluster")

    monkeypatch.setattr(RayWorker, "find", staticmethod(find))
    engine = RayEngines()(worker="w0", url="ray:w0")

    async def work() -> None:
        leg = Leg(id="leg-1", prompt=(1,), sampling=Sampling(max_tokens=1))
        with pytest.raises(EngineUnavailableError, match="leg leg-1 did not begin: no worker 'w0'"):
            await anext(engine.generate(leg))
        await engine.aclose()

    asyncio.run(work())


def test_an_address_that_is_no_workers_is_refused() -> None:
    with pytest.raises(UsageError, match="expected ray:NAME"):
        RayEngines()(worker="w0", url="http://x")
