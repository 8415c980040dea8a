"""Canaries: small requests whose answer is known to be right or wrong. A worker is admitted after they pass.

A restarted peer can poison a KV transfer while its own health says ready (vllm#49238): only a transfer proves one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from pearl.errors import PearlError
from pearl.live.protocol import Chunk, EngineClient, FinishReason, Leg, Sampling

CANARY_TOKENS = 4
CANARY_PROMPT_TOKENS = 80
"""More than two blocks of 32, so that whole blocks move, and less than any model's context."""
_GREEDY = Sampling(max_tokens=CANARY_TOKENS, temperature=0.0, ignore_eos=True)


class CanaryError(PearlError):
    """A canary died: the worker must not be admitted."""


def canary_prompt(id: str) -> tuple[int, ...]:
    """A prompt that no cache holds, as long as `id` is new. Its tokens are below 256: every vocabulary has them."""
    rng = random.Random(id)
    return tuple(rng.randrange(256) for _ in range(CANARY_PROMPT_TOKENS))


async def canary(engine: EngineClient, *, id: str, timeout_s: float) -> None:
    """Generate a few tokens. Raises `CanaryError` where that fails, or takes longer than `timeout_s`."""
    await _collect(engine, Leg(id=id, prompt=canary_prompt(id), sampling=_GREEDY), timeout_s)


async def canary_transfer(
    prefill: EngineClient,
    decode: EngineClient,
    *,
    id: str,
    pulled: Callable[[], Awaitable[int]],
    timeout_s: float,
) -> None:
    """Prefill on one engine and decode on the other. Raises `CanaryError` unless KV moved and the tokens are right.

    `id` must be new; `pulled` gives the prompt tokens that `decode` received from others so far. Each of the three
    legs may take `timeout_s`.
    """
    plain = Leg(id=f"{id}-plain", prompt=canary_prompt(id), sampling=_GREEDY)
    prefilled = await _collect(prefill, replace(plain, id=f"{id}-prefill", keep_kv=True), timeout_s)
    handle = prefilled[-1].kv
    if handle is None:
        raise CanaryError(f"{id}: the prefill engine kept no KV cache")
    before = await pulled()
    received = _tokens(await _collect(decode, replace(plain, id=f"{id}-decode", kv=handle), timeout_s))
    if await pulled() <= before:
        raise CanaryError(f"{id}: the decode engine computed the prompt itself: no KV cache was moved")
    expected = _tokens(await _collect(prefill, plain, timeout_s))
    if received != expected:
        raise CanaryError(f"{id}: tokens after the transfer are {received}, and {expected} without it")


async def _collect(engine: EngineClient, leg: Leg, timeout_s: float) -> list[Chunk]:
    chunks: list[Chunk] = []
    try:
        async with asyncio.timeout(timeout_s), aclosing(engine.generate(leg)) as stream:
            async for chunk in stream:
                chunks.append(chunk)
    except TimeoutError:
        raise CanaryError(f"{leg.id}: no answer in {timeout_s:g} s") from None
    except PearlError as e:
        raise CanaryError(f"{leg.id}: {e}") from e
    if not chunks or chunks[-1].finish is not FinishReason.LENGTH:
        raise CanaryError(f"{leg.id}: ended as {chunks[-1].finish if chunks else None}, not at its length")
    return chunks


def _tokens(chunks: Sequence[Chunk]) -> tuple[int, ...]:
    return tuple(token for chunk in chunks for token in chunk.token_ids)
