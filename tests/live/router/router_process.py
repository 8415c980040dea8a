"""A router in a process of its own, over HTTP engines: `-m tests.live.router.router_process JOURNAL PORT FIELDS`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from pearl.live.http_engine import HttpEngines
from pearl.live.router.config import RouterConfig
from pearl.live.router.log import JsonFormatter
from pearl.live.router.server import serve


def main() -> None:
    """Serve until a signal; the URL is the first line printed. FIELDS are those of `RouterConfig`, as JSON."""
    journal, port, fields = sys.argv[1:4]
    path = Path(journal) if journal else None
    config = RouterConfig(model="stub", journal=path, port=int(port), **json.loads(fields))
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    asyncio.run(serve(config, HttpEngines(model="stub"), on_ready=lambda url: print(url, flush=True)))


if __name__ == "__main__":
    main()
