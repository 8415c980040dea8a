"""A stub of an engine, for tests and benchmarks: no model, yet tokens that depend on everything before them.

Its "model" is a rolling hash of the context, so a request that is resumed from its prefix gets the same tokens as one
that ran through, and any lost, repeated or foreign token changes all that follow. Like a real engine, it hands out
wrong tokens for a KV handle that expired. Faults are scripted leg by leg. `stub_app` serves it over HTTP, and
`python -m tests.live.stub_engine` in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web

from pearl.errors import UsageError
from pearl.live.protocol import (
    Chunk,
    EngineClient,
    EngineFailedError,
    EngineLostError,
    EngineRefusedError,
    EngineUnavailableError,
    FinishReason,
    KvHandle,
    Leg,
    Sampling,
)

VOCABULARY = 997
_MODULUS = (1 << 61) - 1


def fold(tokens: Iterable[int], state: int = 7) -> int:
    """The context as one number."""
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % _MODULUS
    return state


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """What the stub generates after `prompt`, were it never to stop."""
    state, tokens = fold(prompt), []
    for _ in range(count):
        tokens.append(state % VOCABULARY)
        state = fold(tokens[-1:], state)
    return tokens


class Misfortune(StrEnum):
    """How a leg goes wrong."""

    LOST = "lost"
    FAILED = "failed"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    CUT = "cut"
    ABORTED = "aborted"
    HANGS = "hangs"
    OVERRUNS = "overruns"
    """Ignores its budget."""


@dataclass(slots=True, kw_only=True)
class StubEngine:
    """One engine. `script` holds (tokens before it happens, what) for its coming legs."""

    name: str = "stub"
    weight_version: int | None = 1
    pace_s: float = 0.0
    """Between two chunks, and before the first."""
    per_chunk: int = 1
    kv_lease_s: float = 30.0
    announces_lease: bool = False
    script: deque[tuple[int, Misfortune] | None] = field(default_factory=deque)
    dead: bool = False
    legs: list[Leg] = field(default_factory=list)
    running: int = 0
    pulled: int = 0
    kept: dict[str, float] = field(default_factory=dict)

    async def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        self.legs.append(leg)
        fate = self.script.popleft() if self.script else None
        if self.dead or (fate and fate[1] is Misfortune.UNAVAILABLE):
            raise EngineUnavailableError(f"{self.name} is down")
        self.running += 1
        try:
            async with aclosing(self._chunks(leg, fate)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.running -= 1

    async def _chunks(self, leg: Leg, fate: tuple[int, Misfortune] | None) -> AsyncGenerator[Chunk, None]:
        state = fold(leg.prompt)
        if leg.kv is not None:
            self.pulled += 1
            if leg.kv.params["expires_s"] <= time.monotonic():
                state += 1
        budget = leg.sampling.max_tokens
        limit = budget + 5 if fate and fate[1] is Misfortune.OVERRUNS else budget
        done = 0
        while done < limit:
            if fate and done >= fate[0] and fate[1] is not Misfortune.OVERRUNS:
                if await self._befall(fate[1]):
                    yield Chunk(finish=FinishReason.ABORT, weight_version=self.weight_version)
                return
            await asyncio.sleep(self.pace_s)
            if self.dead:
                raise EngineLostError(f"{self.name} died")
            tokens: list[int] = []
            while len(tokens) < self.per_chunk and done + len(tokens) < limit:
                tokens.append(state % VOCABULARY)
                state = fold(tokens[-1:], state)
            done += len(tokens)
            last = done >= limit
            yield Chunk(
                token_ids=tuple(tokens),
                logprobs=tuple(-token / VOCABULARY for token in tokens) if leg.sampling.logprobs else (),
                weight_version=self.weight_version,
                finish=FinishReason.LENGTH if last else None,
                kv=self._keep(leg) if last and leg.keep_kv else None,
            )

    async def _befall(self, what: Misfortune) -> bool:
        match what:
            case Misfortune.LOST:
                raise EngineLostError(f"{self.name} lost the leg")
            case Misfortune.FAILED:
                raise EngineFailedError(f"{self.name} failed the leg")
            case Misfortune.REFUSED:
                raise EngineRefusedError("the prompt is too long for this model")
            case Misfortune.HANGS:
                await asyncio.sleep(3600)
        return what is Misfortune.ABORTED

    def _keep(self, leg: Leg) -> KvHandle:
        params = {"engine": self.name, "leg": leg.id, "expires_s": time.monotonic() + self.kv_lease_s}
        return KvHandle(params=params, lease_s=self.kv_lease_s if self.announces_lease else None)

    async def aclose(self) -> None:
        return None


@dataclass(slots=True)
class StubEngines:
    """The factory of in-process stubs: `stub:NAME` finds the engine of that name."""

    engines: dict[str, StubEngine]

    def __call__(self, *, worker: str, url: str) -> EngineClient:
        name = url.removeprefix("stub:")
        if name not in self.engines:
            raise UsageError(f"worker {worker}: no stub {url!r}")
        return self.engines[name]


def stub_app(engine: StubEngine) -> web.Application:
    """The stub behind vLLM's dialect of `/v1/completions`, streaming only."""

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        started = False
        try:
            async with aclosing(engine.generate(_leg(body))) as chunks:
                async for chunk in chunks:
                    if not started:
                        await response.prepare(request)
                        started = True
                    await response.write(
                        b"data: " + json.dumps(_event(chunk, body), separators=(",", ":")).encode() + b"\n\n"
                    )
        except EngineLostError:
            assert request.transport is not None
            request.transport.abort()
            return response
        except EngineUnavailableError as e:
            return web.Response(status=503, text=str(e))
        except EngineRefusedError as e:
            return web.Response(status=400, text=str(e))
        except EngineFailedError as e:
            if not started:
                return web.Response(status=500, text=str(e))
            await response.write(b'data: {"error": {"message": "failed"}}\n\n')
        if not started:
            await response.prepare(request)
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/completions", completions)
    return app


def _leg(body: dict[str, Any]) -> Leg:
    params = body.get("kv_transfer_params") or {}
    return Leg(
        id=body.get("request_id", ""),
        prompt=body["prompt"],
        sampling=Sampling(max_tokens=body["max_tokens"], logprobs=body.get("logprobs") is not None),
        kv=KvHandle(params=params) if "leg" in params else None,
        keep_kv=bool(params.get("do_remote_decode")),
    )


def _event(chunk: Chunk, body: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "text": "", "token_ids": chunk.token_ids, "finish_reason": chunk.finish}
    if body.get("logprobs") is not None:
        choice["logprobs"] = {"token_logprobs": chunk.logprobs}
    event: dict[str, Any] = {"object": "text_completion", "choices": [choice]}
    if chunk.weight_version is not None:
        event["weight_version"] = chunk.weight_version
    if chunk.kv is not None:
        event |= {"kv_transfer_params": chunk.kv.params, "kv_lease_s": chunk.kv.lease_s}
    return event


async def serve_stub(engine: StubEngine, port: int = 0) -> tuple[web.AppRunner, str]:
    """Serve the stub on 127.0.0.1; the runner to clean up, and the base URL."""
    runner = web.AppRunner(stub_app(engine), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def main() -> None:
    """Serve a stub until killed; its URL is the first line printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pace-s", type=float, default=0.0)
    parser.add_argument("--per-chunk", type=int, default=1)
    options = parser.parse_args()

    async def run() -> None:
        engine = StubEngine(pace_s=options.pace_s, per_chunk=options.per_chunk)
        _, url = await serve_stub(engine)
        print(url, flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
