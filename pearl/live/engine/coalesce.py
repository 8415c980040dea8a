"""Fewer, larger chunks where sending one is dear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from pearl.live.protocol import Chunk


async def coalesced(chunks: AsyncGenerator[Chunk, None], pause_s: Callable[[], float]) -> AsyncGenerator[Chunk, None]:
    """The same tokens in chunks at least `pause_s()` seconds apart. The first and the last are never held back.

    What was read before an error is sent before it is raised. Closing this closes `chunks`.
    """
    clock = asyncio.get_running_loop().time
    held: list[Chunk] = []
    due_s = clock()
    error: BaseException | None = None
    async with aclosing(chunks):
        reading = asyncio.ensure_future(anext(chunks))
        try:
            while error is None:
                await asyncio.wait({reading}, timeout=max(0.0, due_s - clock()) if held else None)
                if reading.done():
                    error = reading.exception()
                    if error is None:
                        held.append(reading.result())
                        reading = asyncio.ensure_future(anext(chunks))
                if held and (error or held[-1].finish is not None or clock() >= due_s):
                    yield merge(held)
                    held, due_s = [], clock() + pause_s()
        finally:
            reading.cancel()
            await asyncio.wait({reading})
    if not isinstance(error, StopAsyncIteration):
        raise error


def merge(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk with the tokens of all; they are of one leg, and so of one weight version."""
    last = chunks[-1]
    return Chunk(
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
        weight_version=last.weight_version,
        finish=last.finish,
        kv=last.kv,
        prompt=next((chunk.prompt for chunk in chunks if chunk.prompt is not None), None),
    )
