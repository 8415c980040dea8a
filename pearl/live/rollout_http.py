"""Requests of a rollout to a router, over HTTP: the same id until it is answered, within a deadline.

A request is asked again, under its id, where the connection broke, the stream ended without its end marker, the router
is full (429), restarts (503), or the call's own deadline passed (504): the router attaches the call to what it runs, or
gives the answer that it has. What the router says is wrong with a request is not repeated.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from pearl.errors import PearlError
from pearl.live.http_engine import MAX_ERROR_CHARS, MAX_EVENT_BYTES
from pearl.live.rollout import Answer, Ask, LostError

AGAIN = frozenset({429, 503, 504})
"""Answers after which the same request may be asked again."""
AGAIN_CODES = frozenset({"restarting", "deadline"})
"""The same, of errors that end a stream."""
CONNECT_S = 5.0
PAUSE_FIRST_S = 0.1
"""Before a broken connection is tried again; it doubles up to `PAUSE_LONGEST_S`."""
PAUSE_LONGEST_S = 2.0


class _BrokenError(PearlError):
    """A try that did not end well, and may be repeated after `pause_s`."""

    def __init__(self, message: str, *, status: int | None = None, pause_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.pause_s = pause_s


@dataclass(slots=True, kw_only=True)
class _Tries:
    """What the tries of one request brought so far."""

    tokens: list[int] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    accepted: bool = False
    contradicted: bool = False
    count: int = 0
    refused: int = 0

    def take(self, tokens: list[int], versions: list[int | None]) -> None:
        """A try gave these, from the first token on; what an earlier one gave must be the beginning of them."""
        both = min(len(tokens), len(self.tokens))
        if tokens[:both] != self.tokens[:both]:
            self.contradicted = True
        if len(tokens) >= len(self.tokens):
            self.tokens, self.versions = tokens, versions


@dataclass(slots=True, kw_only=True)
class HttpAnswerer:
    """Asks a router; use it as an asynchronous context manager."""

    url: str
    model: str
    deadline_s: float = 120.0
    """Of a request over all its tries; past it the request counts as lost."""
    call_s: float = 30.0
    """Of one try, told to the router."""
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def answer(self, ask: Ask) -> Answer:
        """The whole answer; raises `LostError`."""
        tries = _Tries()
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self.deadline_s):
                await self._until_answered(ask, tries)
        except TimeoutError:
            message = f"{ask.id}: no answer within {self.deadline_s:g} s, {tries.count} tries"
            raise LostError(message, accepted=tries.accepted) from None
        return Answer(
            token_ids=tuple(tries.tokens),
            weight_versions=tuple(tries.versions),
            seconds=time.monotonic() - began_s,
            tries=tries.count,
            refused=tries.refused,
            contradicted=tries.contradicted,
        )

    async def _until_answered(self, ask: Ask, tries: _Tries) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            tries.count += 1
            try:
                return await self._try(ask, tries)
            except _BrokenError as e:
                tries.refused += e.status == 429
                wait_s = pause_s if e.pause_s is None else e.pause_s
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, PAUSE_LONGEST_S)

    async def _try(self, ask: Ask, tries: _Tries) -> None:
        assert self._session is not None, "used outside of its context"
        tokens: list[int] = []
        versions: list[int | None] = []
        try:
            async with (
                asyncio.timeout(2 * self.call_s),
                self._session.post(
                    f"{self.url}/v1/completions", json=self._body(ask), headers=self._headers(ask)
                ) as response,
            ):
                if response.status != 200:
                    raise await _refusal(ask, response, accepted=tries.accepted)
                tries.accepted = True
                async for event in _events(response.content):
                    choice = event["choices"][0]
                    tokens += choice["token_ids"]
                    versions += choice["weight_versions"]
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as e:
            raise _BrokenError(f"{ask.id}: {type(e).__name__}: {e}") from None
        finally:
            tries.take(tokens, versions)

    def _headers(self, ask: Ask) -> dict[str, str]:
        return {"X-Request-Id": ask.id, "X-Session-Id": ask.session, "X-Deadline-S": f"{self.call_s:g}"}

    def _body(self, ask: Ask) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }


async def _refusal(ask: Ask, response: aiohttp.ClientResponse, *, accepted: bool) -> PearlError:
    """The error of an answer that is none."""
    detail = (await response.content.read(4 * MAX_ERROR_CHARS)).decode(errors="replace")[:MAX_ERROR_CHARS]
    message = f"{ask.id}: the router answered {response.status}: {detail}"
    if response.status not in AGAIN:
        return LostError(message, accepted=accepted or response.status >= 500)
    try:
        pause_s = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        pause_s = None
    return _BrokenError(message, status=response.status, pause_s=pause_s)


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
        error = event.get("error")
    except (ValueError, AttributeError):
        raise _BrokenError(f"an event that is no object: {data[:MAX_ERROR_CHARS]!r}") from None
    if error is None:
        return dict(event)
    message = f"the stream ended with {str(error)[:MAX_ERROR_CHARS]}"
    raise _BrokenError(message) if error.get("code") in AGAIN_CODES else LostError(message, accepted=True)


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Events of the stream, up to its end marker; raises `_BrokenError` where that does not come."""
    rest = b""
    while piece := await content.readany():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise _BrokenError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or not data:
                continue
            if data == b"[DONE]":
                return
            yield _event(data)
    raise _BrokenError("the stream ended without its end marker")
