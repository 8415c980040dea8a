"""What the router's tests share: pools of stub workers, a running router, and calls to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.live.protocol import Sampling
from pearl.live.router.call import Call, Kind
from pearl.live.router.config import RouterConfig
from pearl.live.router.pool import Endpoint, Pool
from pearl.live.router.pool_wire import pool_to_json
from pearl.live.router.server import running_router
from pearl.live.router.service import Router
from tests.live.stub_engine import StubEngine, StubEngines

TOKEN = "a-secret-of-tests"


def worker(name: str, role: Role = Role.COLOCATED, status: Status = Status.ACTIVE, **fields: Any) -> Worker:
    return Worker(id=name, node="n", zone=Zone.RESERVED, role=role, status=status, **fields)


def pool(*workers: Worker, epoch: int = 1, versions: dict[str, int] | None = None, oldest: int = 0) -> Pool:
    return Pool(
        state=ClusterState(workers=workers, epoch=epoch),
        endpoints={w.id: Endpoint(url=f"stub:{w.id}", weight_version=(versions or {}).get(w.id, 1)) for w in workers},
        oldest_weight_version=oldest,
    )


def colocated(*names: str, epoch: int = 1) -> Pool:
    return pool(*(worker(name) for name in names), epoch=epoch)


def disaggregated(prefill: Iterable[str], decode: Iterable[str], epoch: int = 1) -> Pool:
    workers = [worker(name, Role.PREFILL) for name in prefill] + [worker(name, Role.DECODE) for name in decode]
    return pool(*workers, epoch=epoch)


def call(prompt: Iterable[int] = (1, 2, 3), max_tokens: int = 12, session: str | None = None, **fields: Any) -> Call:
    sampling = Sampling(max_tokens=max_tokens, **fields)
    return Call(kind=Kind.COMPLETION, prompt=tuple(prompt), sampling=sampling, session=session)


def config(**fields: Any) -> RouterConfig:
    return RouterConfig(**{"model": "stub", "port": 0, "admin_token": TOKEN, "shutdown_grace_s": 0.0, **fields})


@dataclass(slots=True)
class Rig:
    router: Router
    url: str
    engines: dict[str, StubEngine]
    http: aiohttp.ClientSession

    def set_pool(self, value: Pool) -> None:
        self.router.set_pool(value)

    async def complete(
        self, prompt: Iterable[int] = (1, 2, 3), *, headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        """Status and JSON of a completion."""
        data = {
            "model": "stub",
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": 12,
            **body,
        }
        async with self.http.post(f"{self.url}/v1/completions", json=data, headers=headers) as response:
            return response.status, await response.json()

    async def tokens(self, prompt: Iterable[int] = (1, 2, 3), **body: Any) -> list[int]:
        status, answer = await self.complete(prompt, **body)
        assert status == 200, answer
        found: list[int] = answer["choices"][0]["token_ids"]
        return found

    async def admin(self, method: str, path: str, data: Any = None, token: str | None = TOKEN) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.http.request(method, self.url + path, json=data, headers=headers) as response:
            return response.status, await response.json()

    async def put(self, value: Pool) -> Any:
        return await self.admin("PUT", "/pearl/v1/pool", pool_to_json(value))


@asynccontextmanager
async def rig(*names: str, start: Pool | None = None, tokenizer: Any = None, **fields: Any) -> AsyncIterator[Rig]:
    engines = {name: StubEngine(name=name) for name in names}
    async with (
        running_router(config(**fields), StubEngines(engines), tokenizer=tokenizer) as (router, url),
        aiohttp.ClientSession() as http,
    ):
        if start is not None:
            router.set_pool(start)
        yield Rig(router, url, engines, http)


def run(work: Coroutine[Any, Any, None], limit_s: float = 20.0) -> None:
    """Run a test's coroutine, which must not hang."""
    asyncio.run(asyncio.wait_for(work, limit_s))


async def until(condition: Any, limit_s: float = 5.0) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)
