"""Restarts: what was accepted is resumed or answered, whether the router stopped or was killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from pearl.live.journal import JournalError, Store
from pearl.live.router.pool import Pool
from pearl.live.router.pool_wire import pool_to_json
from tests.live.router.rig import TOKEN, colocated, disaggregated, rig, run, until
from tests.live.stub_engine import Misfortune, StubEngine, continuation, serve_stub

WANTED = continuation((1, 2, 3), 12)
ROOT = Path(__file__).resolve().parents[3]


def test_a_stop_keeps_what_is_open_and_a_start_resumes_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig("a", "b", start=disaggregated(["a"], ["b"]), journal=tmp_path / "j.db") as r:
            r.engines["b"].script.append((5, Misfortune.HANGS))
            first = asyncio.create_task(r.complete(request_id="r1"))
            await until(lambda: r.router.metrics.value("pearl_router_tokens_total") == 5)
            stop = asyncio.create_task(r.router.stop())
            status, answer = await first
            assert (status, answer["error"]["code"]) == (503, "restarting")
            await stop
        async with rig("a", "b", journal=tmp_path / "j.db") as r:
            assert r.router.pool == disaggregated(["a"], ["b"])
            assert await r.tokens(request_id="r1") == WANTED
            assert list(r.engines["a"].legs[0].prompt) == [1, 2, 3, *WANTED[:5]]
            assert (await r.complete(request_id="r1", max_tokens=9))[0] == 409

    run(main())


def test_answers_outlive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), journal=tmp_path / "j.db") as r:
            first = await r.complete(request_id="r1", logprobs=0)
        async with rig("a", journal=tmp_path / "j.db") as r:
            assert await r.complete(request_id="r1", logprobs=0) == first
            assert r.engines["a"].legs == []

    run(main())


def test_a_request_that_was_complete_but_for_its_end_needs_no_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), journal=tmp_path / "j.db") as r:
            await r.tokens(request_id="r1")
        db = sqlite3.connect(tmp_path / "j.db")
        db.execute("UPDATE requests SET ending = NULL, ended_unix_s = NULL")
        db.commit()
        db.close()
        async with rig("a", journal=tmp_path / "j.db") as r:
            assert await r.tokens(request_id="r1") == WANTED
            assert r.engines["a"].legs == []

    run(main())


def test_a_lifetime_counts_from_acceptance_across_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig("a", journal=tmp_path / "j.db") as r:
            first = asyncio.create_task(r.complete(request_id="r1", headers={"X-Deadline-S": "0.05"}))
            assert (await first)[0] == 504
        async with rig("a", start=colocated("a"), journal=tmp_path / "j.db", request_lifetime_s=0.01) as r:
            status, answer = await r.complete(request_id="r1")
            assert (status, answer["error"]["code"]) == (504, "lifetime")

    run(main())


def test_a_broken_journal_stops_acceptance_and_sends_clients_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].pace_s = 0.01
            first = asyncio.create_task(r.complete(request_id="r1"))
            await until(lambda: r.router.metrics.value("pearl_router_tokens_total") > 2)

            def broken(*_: object) -> None:
                raise JournalError("disk full")

            monkeypatch.setattr(Store, "write", broken)
            status, answer = await first
            assert (status, answer["error"]["code"]) == (503, "restarting")
            status, answer = await r.complete()
            assert status == 503
            assert "disk full" in answer["error"]["message"]
            async with r.http.get(f"{r.url}/health") as response:
                assert response.status == 503

    run(main())


@asynccontextmanager
async def router_process(journal: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    fields = json.dumps({"admin_token": TOKEN, "shutdown_grace_s": 0.1})
    command = (sys.executable, "-m", "tests.live.router.router_process", str(journal), str(port), fields)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def healthy(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                async with http.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


def http_pool(pool: Pool, urls: dict[str, str]) -> dict[str, object]:
    data = pool_to_json(pool)
    for entry in data["workers"]:
        entry["url"] = urls[entry["id"]]
    return data


@pytest.mark.slow
def test_a_killed_router_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL with 30 requests in mid-flight, among them streams; after the restart each id gets exactly its tokens."""

    async def main() -> None:
        engines = {name: StubEngine(name=name, pace_s=0.02) for name in ("a", "b", "c")}
        served = {name: await serve_stub(engine) for name, engine in engines.items()}
        urls = {name: url for name, (_, url) in served.items()}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        budgets = {f"r{i}": 80 + i for i in range(30)}

        async with aiohttp.ClientSession() as http:

            async def ask(name: str) -> list[int]:
                body = {"model": "stub", "prompt": [1, 2, 3], "max_tokens": budgets[name], "request_id": name}
                async with http.post(f"{url}/v1/completions", json=body) as response:
                    answer = await response.json()
                    assert response.status == 200, answer
                    tokens: list[int] = answer["choices"][0]["token_ids"]
                    return tokens

            async with router_process(tmp_path / "j.db", port) as process:
                await healthy(http, url)
                pool = http_pool(disaggregated(["a"], ["b", "c"]), urls)
                headers = {"Authorization": f"Bearer {TOKEN}"}
                async with http.put(f"{url}/pearl/v1/pool", json=pool, headers=headers) as response:
                    assert response.status == 200
                tasks = [asyncio.create_task(ask(name)) for name in budgets]
                await until(lambda: engines["b"].running + engines["c"].running >= 25, 10)
                await asyncio.sleep(0.15)
                os.kill(process.pid, signal.SIGKILL)
                gone = await asyncio.gather(*tasks, return_exceptions=True)
                for result, budget in zip(gone, budgets.values(), strict=True):
                    assert isinstance(result, aiohttp.ClientError) or result == continuation((1, 2, 3), budget)
            legs_before = sum(len(engine.legs) for engine in engines.values())
            async with router_process(tmp_path / "j.db", port) as process:
                await healthy(http, url)
                for name, budget in budgets.items():
                    assert await ask(name) == continuation((1, 2, 3), budget)
                resumed = [leg for e in engines.values() for leg in e.legs if len(leg.prompt) > 3]
                assert resumed, "nothing was in mid-flight"
                assert sum(len(engine.legs) for engine in engines.values()) <= legs_before + 2 * len(budgets)
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 10) == 0
        for runner, _ in served.values():
            await runner.cleanup()

    run(main(), 60)
