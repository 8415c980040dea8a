"""An engine behind HTTP, in the dialect of vLLM's OpenAI server.

`POST {url}/v1/completions` with `prompt` as token ids, `return_token_ids` and, for hand-over, `kv_transfer_params`.
Beyond that dialect, a stream event may carry `weight_version`, and `kv_lease_s` next to `kv_transfer_params`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from pydantic_core import from_json, to_json

from pearl.errors import Fault, UsageError
from pearl.live.protocol import (
    Chunk,
    EngineFailedError,
    EngineLostError,
    EngineRefusedError,
    EngineUnavailableError,
    FinishReason,
    KvHandle,
    Leg,
)

CONNECT_S = 30.0
"""Dead hosts are told by the system within seconds; this must outlast the start of a rollout, when thousands of
connections wait for their turn on the loop."""
KEEP_IDLE_S = 2.0
"""Idle connections go before the server drops them (uvicorn: 5 s), or a leg would be sent into a closing one."""
MAX_EVENT_BYTES = 8 << 20
"""A chunk of a million tokens with log-probabilities; past this the stream is something else."""
MAX_ERROR_CHARS = 500
MAX_VERSION = (1 << 53) - 1
"""Largest integer that every JSON reader keeps exact."""
_JSON = {"Content-Type": "application/json"}
_HAND_OVER = {"do_remote_decode": True, "do_remote_prefill": False}
"""What vLLM's NIXL connector takes as the order to keep the KV cache for a decode engine."""


@dataclass(slots=True, kw_only=True)
class HttpEngine:
    """The client of one engine. One connection per running leg, kept for the next."""

    url: str
    model: str
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        """Chunks of the leg; see `EngineClient`. Closing it closes the connection, which aborts the leg."""
        try:
            body = to_json(_body(leg, self.model))
            async with self._open().post(f"{self.url}/v1/completions", data=body, headers=_JSON) as response:
                await _check_status(response)
                async with aclosing(_events(response.content)) as events:
                    async for event in events:
                        yield _chunk(event)
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as e:
            raise EngineUnavailableError(f"{self.url}: {e}") from None
        except (aiohttp.ClientError, ConnectionError) as e:
            raise EngineLostError(f"{self.url}: {e or type(e).__name__}") from None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEngines:
    """Makes clients of engines that serve `model`."""

    model: str

    def __call__(self, *, worker: str, url: str) -> HttpEngine:
        """The client for the engine of `worker`; raises `UsageError` where `url` is not an HTTP address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            fault = Fault(message=f"worker {worker}: url is {url!r}", expected="http://host:port, without a query")
            raise UsageError(fault)
        return HttpEngine(url=url.rstrip("/"), model=self.model)


def _body(leg: Leg, model: str) -> dict[str, Any]:
    sampling = leg.sampling
    body: dict[str, Any] = {
        "model": model,
        "request_id": leg.id,
        "prompt": list(leg.prompt),
        "stream": True,
        "return_token_ids": True,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logprobs:
        body["logprobs"] = 0
    if leg.keep_kv:
        body["kv_transfer_params"] = _HAND_OVER
    elif leg.kv is not None:
        body["kv_transfer_params"] = dict(leg.kv.params)
    return body


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    detail = (await response.content.read(4 * MAX_ERROR_CHARS)).decode(errors="replace")[:MAX_ERROR_CHARS]
    message = f"the engine answered {response.status}: {detail}"
    match response.status:
        case 429 | 503:
            raise EngineUnavailableError(message)
        case status if 400 <= status < 500:
            raise EngineRefusedError(message, status=status)
        case _:
            raise EngineFailedError(message)


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[dict[str, Any], None]:
    """Data of the server-sent events, up to `[DONE]`."""
    rest = b""
    while piece := await content.readany():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise EngineFailedError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or not data or data == b"[DONE]":
                continue
            yield _event(data)


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = from_json(data)
    except ValueError:
        raise EngineFailedError(f"an event that is not JSON: {data[:MAX_ERROR_CHARS]!r}") from None
    if not isinstance(event, dict):
        raise EngineFailedError("an event that is not an object")
    if error := event.get("error"):
        raise EngineFailedError(f"the engine says: {str(error)[:MAX_ERROR_CHARS]}")
    return event


def _chunk(event: dict[str, Any]) -> Chunk:
    try:
        choices = event["choices"]
        choice = choices[0] if choices else {}
        logprobs = choice.get("logprobs") or {}
        finish = choice.get("finish_reason")
        version = event.get("weight_version")
        params = event.get("kv_transfer_params")
        lease_s = event.get("kv_lease_s")
        return Chunk(
            token_ids=tuple(int(token) for token in choice.get("token_ids") or ()),
            logprobs=tuple(_finite(value) for value in logprobs.get("token_logprobs") or ()),
            weight_version=None if version is None else _version(version),
            finish=FinishReason(finish) if finish else None,
            kv=KvHandle(params=dict(params), lease_s=None if lease_s is None else float(lease_s)) if params else None,
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
        raise EngineFailedError(f"an event that is not a completion: {type(e).__name__}: {e}") from None


def _version(value: Any) -> int:
    if not 0 <= int(value) <= MAX_VERSION:
        raise ValueError(f"weight_version {value!r}")
    return int(value)


def _finite(value: Any) -> float:
    """A log-probability; -inf, which JSON cannot hold, becomes the lowest number that vLLM itself sends."""
    number = float(value)
    return number if math.isfinite(number) else -9999.0
