"""What the router adds to a request, against the same request straight to the engine, in one run on 127.0.0.1.

    python benchmarks/router.py [--pairs N] [--sessions N]

Engine: the stub of the tests, in a process of its own, which generates nothing and paces its tokens. Router: in a
process of its own, with its journal on disk. The client streams in both cases and alternates between the two, so that
the load of the machine falls on both. Exit code 1 where a goal is missed or any answer is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "benchmark"
LONGEST_ADDED_MS = 3.0
LEAST_THROUGHPUT = 0.9

STEP_S = 0.02
"""Between two tokens of a sequence in the throughput case: a decode step of an 8B model on one H100 at a batch of
some dozens takes 10 to 20 ms."""
CONCURRENT = 32
TOKENS = 64
ROUNDS = 4

HELD_STEP_S = 1.0
"""Between two chunks of a held session: what counts there is that the sessions are open, not their rate."""
HELD_CHUNK = 16
HELD_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request gave, and how long it took: to the first token, and to the end."""

    token_ids: tuple[int, ...]
    first_s: float
    total_s: float


async def ask(http: aiohttp.ClientSession, url: str, prompt: list[int], tokens: int) -> Answer:
    """Stream one completion; raises where it is not complete."""
    start = time.perf_counter()
    first_s = 0.0
    found: list[int] = []
    finish = None
    body = {"model": "stub", "prompt": prompt, "max_tokens": tokens, "stream": True}
    async with http.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            first_s = first_s or time.perf_counter() - start
            found += event["choices"][0]["token_ids"]
            finish = event["choices"][0]["finish_reason"]
    if finish != "length" or len(found) != tokens:
        raise RuntimeError(f"{len(found)} of {tokens} tokens, finish reason {finish!r}")
    return Answer(token_ids=tuple(found), first_s=first_s, total_s=time.perf_counter() - start)


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python module that runs until the block ends."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield started
    finally:
        started.terminate()
        await started.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An engine and a router in front of it."""

    direct: str
    routed: str
    router_pid: int

    def router_cpu_s(self) -> float:
        """CPU seconds of the router's process so far: unlike wall time, hardly touched by what else runs here."""
        fields = Path(f"/proc/{self.router_pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def pair(http: aiohttp.ClientSession, step_s: float, per_chunk: int) -> AsyncIterator[Pair]:
    """Start an engine that paces its chunks, and a router whose pool it is."""
    engine_module = ("tests.live.stub_engine", "--pace-s", str(step_s), "--per-chunk", str(per_chunk))
    with tempfile.TemporaryDirectory() as folder:
        fields = json.dumps({"admin_token": TOKEN, "slots_per_worker": 4096, "shutdown_grace_s": 0.1})
        journal = str(Path(folder) / "journal.db")
        async with (
            process(*engine_module) as engine,
            process("tests.live.router.router_process", journal, "0", fields) as router,
        ):
            direct, routed = await first_line(engine), await first_line(router)
            worker = {"id": "w", "url": direct, "weight_version": 1, "role": "colocated", "status": "active"}
            pool = {"epoch": 1, "workers": [{**worker, "node": "n", "zone": "reserved"}]}
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with http.put(f"{routed}/pearl/v1/pool", json=pool, headers=headers) as response:
                response.raise_for_status()
            yield Pair(direct=direct, routed=routed, router_pid=router.pid)


async def first_line(started: asyncio.subprocess.Process) -> str:
    """The URL that a process prints once it listens."""
    assert started.stdout is not None
    return (await asyncio.wait_for(started.stdout.readline(), 60)).decode().strip()


async def latency(http: aiohttp.ClientSession, pairs: int) -> bool:
    """One request at a time, an engine that does not wait; 16 tokens in one chunk, prompt of 1,024."""
    added: dict[str, list[float]] = {"first": [], "total": []}
    prompt = list(range(1024))
    async with pair(http, 0.0, 16) as both:
        for _ in range(10):
            await ask(http, both.direct, prompt, 16)
            await ask(http, both.routed, prompt, 16)
        straight, cpu_s = [], both.router_cpu_s()
        for _ in range(pairs):
            one, two = await ask(http, both.direct, prompt, 16), await ask(http, both.routed, prompt, 16)
            assert one.token_ids == two.token_ids
            straight.append(one.total_s)
            added["first"].append(two.first_s - one.first_s)
            added["total"].append(two.total_s - one.total_s)
        cpu_ms = (both.router_cpu_s() - cpu_s) / pairs * 1e3
    base = statistics.median(straight) * 1e3
    first, total = (statistics.median(added[key]) * 1e3 for key in ("first", "total"))
    tail = statistics.quantiles(added["total"], n=20)[-1] * 1e3
    print(f"latency     {pairs} pairs: straight {base:.2f} ms; added {first:.2f} ms to the first token, ", end="")
    print(f"{total:.2f} ms in all (95 % below {tail:.2f} ms), ", end="")
    print(f"router CPU {cpu_ms:.2f} ms a request; goal {LONGEST_ADDED_MS:g} ms")
    return total <= LONGEST_ADDED_MS


async def throughput(http: aiohttp.ClientSession) -> bool:
    """Concurrent sequences at the pace of a decode step."""
    rates: dict[str, list[float]] = {"direct": [], "routed": []}
    async with pair(http, STEP_S, 1) as both:
        cpu_s = both.router_cpu_s()
        for _ in range(ROUNDS):
            for name, url in (("direct", both.direct), ("routed", both.routed)):
                start = time.perf_counter()
                await asyncio.gather(*(ask(http, url, [i], TOKENS) for i in range(CONCURRENT)))
                rates[name].append(CONCURRENT * TOKENS / (time.perf_counter() - start))
        cpu_us = (both.router_cpu_s() - cpu_s) / (ROUNDS * CONCURRENT * TOKENS) * 1e6
    one, two = (statistics.median(rates[name]) for name in ("direct", "routed"))
    print(
        f"throughput  {CONCURRENT} sequences, a token every {STEP_S * 1e3:g} ms: straight {one:.0f} tokens/s, ", end=""
    )
    print(f"routed {two:.0f}, router CPU {cpu_us:.0f} µs a token; ratio {two / one:.3f}, goal {LEAST_THROUGHPUT:g}")
    return two / one >= LEAST_THROUGHPUT


async def sessions(http: aiohttp.ClientSession, count: int) -> bool:
    """Many sessions at once, all of them open for seconds."""
    async with pair(http, HELD_STEP_S, HELD_CHUNK) as both:
        start = time.perf_counter()
        work = (ask(http, both.routed, [i], HELD_TOKENS) for i in range(count))
        done = await asyncio.gather(*work, return_exceptions=True)
        took_s = time.perf_counter() - start
    errors = [item for item in done if isinstance(item, BaseException)]
    least_s = HELD_STEP_S * HELD_TOKENS / HELD_CHUNK
    print(
        f"sessions    {count} at once, {HELD_TOKENS} tokens each in chunks of {HELD_CHUNK} every {HELD_STEP_S:g} s: ",
        end="",
    )
    print(f"{len(errors)} errors, {took_s:.1f} s (no less than {least_s:g} s)")
    for error in errors[:3]:
        print(f"            {type(error).__name__}: {error}")
    return not errors


async def run(pairs: int, count: int) -> int:
    """All three; 1 where one misses its goal."""
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"machine     {cores} cores, load {load:.1f} before the start: others' load counts against both sides")
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        met = [await latency(http, pairs), await throughput(http), await sessions(http, count)]
    return 0 if all(met) else 1


def main() -> int:
    """Raise the limit of open files for this process and its children, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=2000)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * options.sessions + 256
    if hard != resource.RLIM_INFINITY and hard < needed:
        parser.error(f"--sessions {options.sessions} needs {needed} open files in the router; the limit here is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    return asyncio.run(run(options.pairs, options.sessions))


if __name__ == "__main__":
    sys.exit(main())
