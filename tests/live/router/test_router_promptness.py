"""A complete answer waits for nothing: not for the end of the engine's stream, for no packet and no commit too many."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from pearl.live.journal import Accept, Append, End, Entry, Store
from pearl.live.protocol import Chunk, Leg
from pearl.live.router import server, service
from tests.live.router.rig import Rig, colocated, rig, run, until
from tests.live.stub_engine import Misfortune, StubEngine, continuation

WANTED = continuation((1, 2, 3), 12)


class Lingers(StubEngine):
    """Keeps its stream open after the final marker."""

    async def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().generate(leg):
            yield chunk
        self.running += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.running -= 1


async def streamed(r: Rig) -> tuple[str | None, list[Any]]:
    """The length that a streamed answer announces, and its choices; it must end with `[DONE]`."""
    body = {"model": "stub", "prompt": [1, 2, 3], "max_tokens": 12, "stream": True}
    async with r.http.post(f"{r.url}/v1/completions", json=body) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        *events, done = [line for line in (await response.text()).splitlines() if line]
        assert done == "data: [DONE]"
        found = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
        assert [token for choice in found for token in choice["token_ids"]] == WANTED
        return response.headers.get("Content-Length"), found


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_does_not_end_its_stream_holds_up_no_answer(stream: bool) -> None:
    """Its leg is ended as a stalled one, which interrupts nothing any more."""

    async def main() -> None:
        async with rig("a", stall_s=0.05) as r:
            engine = r.engines["a"] = Lingers(name="a")
            r.set_pool(colocated("a"))
            assert await (streamed(r) if stream else r.tokens())
            assert (engine.running, r.router.open_requests) == (1, 0)
            await until(lambda: engine.running == 0)
            assert r.router.metrics.value("pearl_router_requests_ended_total", outcome="length") == 1
            assert r.router.metrics.value("pearl_router_interruptions_total", cause="stalled") == 0
            assert len(engine.legs) == 1

    run(main())


def test_tokens_and_ending_that_come_together_share_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ACCEPTED_WITHIN_S", 5.0)
    commits: list[list[type[Entry]]] = []
    write = Store.write

    def spied(store: Store, entries: Sequence[Entry]) -> None:
        commits.append([type(entry) for entry in entries])
        write(store, entries)

    monkeypatch.setattr(Store, "write", spied)

    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].per_chunk = 12
            commits.clear()
            _, found = await streamed(r)
            assert commits == [[Accept, Append, End]]
            assert [choice["finish_reason"] for choice in found] == ["length"]

    run(main())


def test_an_answer_that_is_complete_at_once_is_one_packet_and_others_begin_with_their_headers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].per_chunk = 12
            monkeypatch.setattr(server, "HEADERS_WITHIN_S", 5.0)
            length, _ = await streamed(r)
            assert length is not None
            monkeypatch.setattr(server, "HEADERS_WITHIN_S", 0.0)
            r.engines["a"].script.append((0, Misfortune.HANGS))
            body = {"model": "stub", "prompt": [1, 2, 3], "max_tokens": 12, "stream": True}
            async with asyncio.timeout(5), r.http.post(f"{r.url}/v1/completions", json=body) as response:
                assert (response.status, response.headers.get("Content-Length")) == (200, None)
                assert r.router.open_requests == 1

    run(main())
