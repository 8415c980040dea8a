"""Chunks put together: the same tokens, in order, and nothing held back at the ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.live.engine.coalesce import coalesced
from pearl.live.protocol import Chunk, EngineLostError, FinishReason


class Source:
    """Chunks of one token each, with a delay before each; then an error, an end, or a last chunk."""

    def __init__(self, delays_ms: list[float], *, finish: bool = True, error: Exception | None = None) -> None:
        self.delays_ms, self.finish, self.error, self.closed = delays_ms, finish, error, False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        try:
            for number, delay_ms in enumerate(self.delays_ms):
                await asyncio.sleep(delay_ms / 1000)
                last = self.finish and number + 1 == len(self.delays_ms)
                yield Chunk(
                    token_ids=(number,),
                    logprobs=(-float(number),),
                    weight_version=3,
                    finish=FinishReason.LENGTH if last else None,
                )
            if self.error:
                raise self.error
        finally:
            self.closed = True


async def collect(source: Source, pause_s: float) -> list[Chunk]:
    return [chunk async for chunk in coalesced(source.chunks(), lambda: pause_s)]


@given(
    delays_ms=st.lists(st.sampled_from([0.0, 0.2, 1.0]), max_size=12),
    pause_s=st.sampled_from([0.0, 0.001, 0.005]),
    finish=st.booleans(),
)
def test_the_tokens_are_those_of_the_source(delays_ms: list[float], pause_s: float, finish: bool) -> None:
    chunks = asyncio.run(collect(Source(delays_ms, finish=finish), pause_s))
    assert [token for chunk in chunks for token in chunk.token_ids] == list(range(len(delays_ms)))
    assert [value for chunk in chunks for value in chunk.logprobs] == [-float(n) for n in range(len(delays_ms))]
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(chunk.weight_version == 3 for chunk in chunks)
    if finish and delays_ms:
        assert chunks[-1].finish is FinishReason.LENGTH


def test_what_comes_between_is_put_together_and_the_ends_are_not_held_back() -> None:
    async def main() -> tuple[list[Chunk], float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        return await collect(Source([0.0] + [1.0] * 8), pause_s=60.0), loop.time() - began

    chunks, seconds = asyncio.run(main())
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 8]
    assert seconds < 5


def test_an_error_comes_after_the_tokens_before_it() -> None:
    tokens: list[int] = []

    async def main() -> None:
        source = Source([0.0] * 3, finish=False, error=EngineLostError("gone"))
        async for chunk in coalesced(source.chunks(), lambda: 60.0):
            tokens.extend(chunk.token_ids)

    with pytest.raises(EngineLostError, match="gone"):
        asyncio.run(main())
    assert tokens == [0, 1, 2]


def test_closing_closes_the_source_in_the_middle_of_a_read() -> None:
    async def main() -> bool:
        source = Source([0.0, 60_000.0])
        stream = coalesced(source.chunks(), lambda: 0.0)
        await anext(stream)
        await stream.aclose()
        return source.closed

    assert asyncio.run(main())
