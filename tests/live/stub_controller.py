"""A stub of the controller's admin plane, for clients: it answers what the test scripts, and remembers the calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TOKEN = "secret"


@dataclass(frozen=True, kw_only=True)
class Call:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    key: str | None


Answer = tuple[int, Any] | Callable[[Call], tuple[int, Any] | None]
"""Status and body; None breaks the connection."""


@dataclass(kw_only=True)
class StubController:
    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    """By `METHOD /path` below /pearl/v1."""
    calls: list[Call] = field(default_factory=list)

    def answer(self, call: Call) -> tuple[int, Any] | None:
        self.calls.append(call)
        found = self.answers.get(f"{call.method} {call.path}")
        if found is None:
            return 404, error("not_found", f"no {call.path}")
        return found(call) if callable(found) else found


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **more}}


@contextmanager
def stub_controller(answers: dict[str, Answer] | None = None) -> Iterator[StubController]:
    stub = StubController(answers=answers or {})

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            parts = urlsplit(self.path)
            call = Call(
                method=self.command,
                path=parts.path.removeprefix("/pearl/v1"),
                query=dict(parse_qsl(parts.query)),
                body=json.loads(raw) if raw else None,
                key=self.headers.get("Idempotency-Key"),
            )
            found: tuple[int, Any] | None
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                found = 401, error("unauthorised", "admin routes need a token")
            else:
                found = stub.answer(call)
            if found is None:
                self.connection.close()
                return
            content = found[1] if isinstance(found[1], bytes) else json.dumps(found[1]).encode()
            self.send_response(found[0])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815  # the names are http.server's

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # broken connections are part of the tests
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
