"""The HTTP client of an engine: every way in which a server can end a leg, mapped to one error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web

from pearl.errors import UsageError
from pearl.live.http_engine import HttpEngine, HttpEngines
from pearl.live.protocol import (
    Chunk,
    EngineError,
    EngineFailedError,
    EngineLostError,
    EngineRefusedError,
    EngineUnavailableError,
    FinishReason,
    KvHandle,
    Leg,
    Sampling,
)
from pearl.live.router.pool import Endpoint, Pool
from pearl.live.router.service import Router
from tests.live.router.rig import call, colocated, config, run, until
from tests.live.stub_engine import Misfortune, StubEngine, continuation, serve_stub

LEG = Leg(id="x#1", prompt=(1, 2, 3), sampling=Sampling(max_tokens=6, logprobs=True))


@asynccontextmanager
async def served(engine: StubEngine) -> AsyncIterator[HttpEngine]:
    runner, url = await serve_stub(engine)
    client = HttpEngines(model="stub")(worker="w", url=url + "/")
    try:
        yield client
    finally:
        await client.aclose()
        await runner.cleanup()


async def chunks_of(client: HttpEngine, leg: Leg = LEG) -> list[Chunk]:
    return [chunk async for chunk in client.generate(leg)]


def test_tokens_log_probabilities_and_versions_come_through() -> None:
    async def main() -> None:
        async with served(StubEngine(per_chunk=2, weight_version=5)) as client:
            chunks = await chunks_of(client)
            assert [t for c in chunks for t in c.token_ids] == continuation((1, 2, 3), 6)
            assert [len(c.logprobs) for c in chunks] == [2, 2, 2]
            assert {c.weight_version for c in chunks} == {5}
            assert [c.finish for c in chunks] == [None, None, FinishReason.LENGTH]

    run(main())


def test_a_handle_goes_out_and_comes_back() -> None:
    async def main() -> None:
        stub = StubEngine(announces_lease=True, kv_lease_s=9.0)
        async with served(stub) as client:
            leg = Leg(id="x", prompt=(1, 2, 3), sampling=Sampling(max_tokens=1), keep_kv=True)
            (last,) = await chunks_of(client, leg)
            assert last.kv
            assert last.kv.lease_s == 9.0
            await chunks_of(client, Leg(id="y", prompt=(1, 2, 3), sampling=LEG.sampling, kv=last.kv))
            assert stub.pulled == 1
            assert stub.legs[1].kv == KvHandle(params=last.kv.params)

    run(main())


@pytest.mark.parametrize(
    ("what", "after", "error"),
    [
        (Misfortune.UNAVAILABLE, 0, EngineUnavailableError),
        (Misfortune.REFUSED, 0, EngineRefusedError),
        (Misfortune.FAILED, 0, EngineFailedError),
        (Misfortune.FAILED, 2, EngineFailedError),
        (Misfortune.LOST, 0, EngineLostError),
        (Misfortune.LOST, 2, EngineLostError),
    ],
)
def test_every_failure_has_its_error(what: Misfortune, after: int, error: type[EngineError]) -> None:
    async def main() -> None:
        stub = StubEngine()
        async with served(stub) as client:
            stub.script.append((after, what))
            with pytest.raises(error):
                await chunks_of(client)
            assert [t for c in await chunks_of(client) for t in c.token_ids] == continuation((1, 2, 3), 6)

    run(main())


def test_nobody_listening_is_unavailable() -> None:
    async def main() -> None:
        client = HttpEngine(url="http://127.0.0.1:9", model="stub")
        with pytest.raises(EngineUnavailableError):
            await chunks_of(client)
        await client.aclose()

    run(main())


@pytest.mark.parametrize(
    "text",
    [
        "data: {\n\n",
        "data: [1]\n\n",
        'data: {"choices": 3}\n\n',
        'data: {"choices": [{"token_ids": ["a"]}]}\n\n',
        'data: {"choices": [{"finish_reason": "bored"}]}\n\n',
        'data: {"choices": [{}], "weight_version": -1}\n\n',
        'data: {"choices": [{}], "weight_version": 1e300}\n\n',
        "data: " + "[" * 100 + "\n\n",
    ],
)
def test_a_garbled_stream_is_a_failed_leg(text: str) -> None:
    async def main() -> None:
        async def garbled(_: web.Request) -> web.StreamResponse:
            return web.Response(text=text, content_type="text/event-stream")

        app = web.Application()
        app.router.add_post("/v1/completions", garbled)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = HttpEngine(url=f"http://127.0.0.1:{runner.addresses[0][1]}", model="stub")
        with pytest.raises(EngineFailedError):
            await chunks_of(client)
        await client.aclose()
        await runner.cleanup()

    run(main())


def test_closing_the_stream_aborts_the_leg() -> None:
    async def main() -> None:
        stub = StubEngine(pace_s=0.01)
        async with served(stub) as client:
            async with aclosing(client.generate(LEG)) as chunks:
                await anext(chunks)
                assert stub.running == 1
            await until(lambda: stub.running == 0)

    run(main())


@pytest.mark.parametrize("url", ["", "w:1", "ftp://x", "http://", "http://x/?q=1", "file:///etc/passwd"])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(UsageError, match="worker w: url"):
        HttpEngines(model="stub")(worker="w", url=url)


def test_an_engine_killed_in_mid_stream_costs_no_token() -> None:
    """The whole server goes, connections and all; the request goes on with the other one."""

    async def main() -> None:
        first, first_url = await serve_stub(StubEngine(pace_s=0.05))
        second, second_url = await serve_stub(StubEngine())
        router = Router(config(), HttpEngines(model="stub"))
        await router.start()
        state = colocated("a", "b").state
        router.set_pool(Pool(state=state, endpoints={"a": Endpoint(url=first_url), "b": Endpoint(url=second_url)}))
        ticket = router.submit(call(max_tokens=20), "r1")
        await until(lambda: ticket.published >= 3)
        await first.cleanup()
        await asyncio.wait_for(ticket.done(), 10)
        assert ticket.generation.token_ids == continuation((1, 2, 3), 20)
        assert ticket.interruptions == 1
        router.leave(ticket)
        await router.stop()
        await second.cleanup()

    run(main())
