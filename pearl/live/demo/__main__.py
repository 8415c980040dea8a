"""`python -m pearl.live.demo`: exit 0 only if no request was lost, every token is right, and nothing is left behind."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

from pearl.errors import PearlError

LIBRARIES = ("aiohttp", "ray", "vllm", "nixl")
GONE_S = 20.0
"""Processes that were ended have gone by then."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pearl.live.demo", description="Real vLLM workers on CPUs.")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="form of the summary")
    options = parser.parse_args(arguments)
    if missing := [name for name in LIBRARIES if find_spec(name) is None]:
        print(f"error: not installed: {', '.join(missing)}; run `make demo-live`", file=sys.stderr)
        return 2
    try:
        return _run(as_json=options.format == "json")
    except PearlError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code


def _run(*, as_json: bool) -> int:
    from pearl.live.demo.processes import descendants, left_after, name_of, shared_memory
    from pearl.live.demo.story import COLOCATED, Story
    from pearl.live.demo.system import SystemPlan, live_system

    began_s = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {words}", file=sys.stderr if as_json else sys.stdout, flush=True)

    with ExitStack() as stack:
        if as_json:  # what Ray says of nodes that go is not part of the summary
            stack.enter_context(redirect_stdout(sys.stderr))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pearl-demo-"))
        say("a Ray cluster starts on this machine: one reserved node, one that may be taken away, one of the trainer")
        with live_system(SystemPlan(policy=COLOCATED, state_dir=Path(folder))) as system:
            system.serve()
            say(f"pearl serve answers at {system.url}")
            summary = asyncio.run(Story(system, say).tell())
            below = descendants(os.getpid())
            shared = shared_memory(below)
            system.stop_controller(workers=True)
        left = left_after(below, limit_s=GONE_S)
        files = [path for path in shared if path.exists()]
        say("everything ended" if not left and not files else "something is left behind")
    for process in left:
        say(f"  left: {process.pid} {name_of(process)}")
    for path in files:
        say(f"  left: {path}")
    document = summary.document()
    print(json.dumps(document) if as_json else "\n".join(f"{name:>22}  {value}" for name, value in document.items()))
    return 0 if summary.good and not left and not files else 1


if __name__ == "__main__":
    raise SystemExit(main())
