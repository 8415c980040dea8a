"""The admin plane of a running controller, for scripts, trainers and the command line. Standard library alone.

Every call has a deadline, and fails in one of four ways:

    ClientError
    ├── NotRunningError      nobody answers at the address, or the connection broke (exit 5)
    ├── LateError            no answer within the call's deadline (exit 5)
    ├── UnauthorisedError    the token is missing or wrong (exit 2)
    └── RejectedError        the controller refused the call; has its status, code and message (exit 2; 5 where it
                             stops, or could not do it in time)
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from pearl.errors import Fault, PearlError, UsageError
from pearl.live.endpoint import DEFAULT_STATE_DIR, TOKEN_VARIABLE, read_endpoint, read_token, sendable

API = "/pearl/v1"
CALL_S = 10.0
"""Limit of a call that waits for nothing: the controller answers these within milliseconds."""
ANSWER_S = 10.0
"""How much later than its own deadline a call that waits may be answered: the controller winds up first."""
CONNECT_S = 5.0
"""A host that takes longer to accept is not there."""
LONGEST_S = 86_400.0
LONGEST_ANSWER_BYTES = 64 << 20
"""The longest listing of the API is far below; past this it is not the API that answers."""
UNAVAILABLE = 503
LATE = 504
SET_POLICY_S = 60.0
"""A decision that is under way ends first."""
_CHUNK_BYTES = 1 << 16

Json = dict[str, Any]


class ClientError(PearlError):
    """A call to the controller came to nothing."""

    exit_code = 5


class NotRunningError(ClientError):
    """Nobody answers at the address, or the connection broke: whether the call was carried out is unknown."""


class LateError(ClientError):
    """No answer within the call's deadline."""


class UnauthorisedError(ClientError):
    """The token is missing or wrong."""

    exit_code = 2


class RejectedError(ClientError):
    """The controller refused the call."""

    exit_code = 2

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        if status in (UNAVAILABLE, LATE):
            self.exit_code = ClientError.exit_code

    @property
    def passing(self) -> bool:
        """Whether the controller only stops or starts now: asked again, under the same key, it will answer."""
        return self.status == UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminClient:
    """Calls of the admin plane. Thread-safe: every call has a connection of its own."""

    url: str
    token: str | None = None

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise UsageError(Fault(message=f"url {self.url[:256]!r}", expected="http://HOST:PORT"))
        if self.token is not None:
            sendable(self.token, "the admin token")

    @classmethod
    def find(cls, *, state_dir: Path | None = None, url: str | None = None, token: str | None = None) -> Self:
        """The controller at `url`, or the one that runs with `state_dir` (default `pearl-state`).

        The token is the one given, that of `PEARL_ADMIN_TOKEN`, or that of the state folder. Raises `NotRunningError`
        where no controller is known there.
        """
        folder = state_dir or DEFAULT_STATE_DIR
        token = token or read_token(folder)
        if url is not None:
            return cls(url=url.rstrip("/"), token=token)
        endpoint = read_endpoint(folder)
        if endpoint is None:
            hint = f"start one with `pearl serve … --state {folder}`, or say where it is with --state or --url"
            raise NotRunningError(f"no controller is known in {folder} ({hint})")
        return cls(url=endpoint.url, token=token)

    # what is

    def state(self) -> Json:
        """Workers, mode, weights, training, batch, and plan under way."""
        return self.call("GET", "/state")

    def decisions(self, *, limit: int | None = None, after: str | None = None) -> Json:
        """Decisions, newest last."""
        return self.call("GET", "/decisions", query={"limit": limit, "after": after})

    def decision(self, decision_id: str) -> Json:
        """One decision in full."""
        return self.call("GET", f"/decisions/{quote(decision_id, safe='')}")

    def plans(self, *, limit: int | None = None) -> Json:
        """Plans, newest last."""
        return self.call("GET", "/plans", query={"limit": limit})

    def plan(self, plan_id: str) -> Json:
        """One plan with the progress of each step."""
        return self.call("GET", f"/plans/{quote(plan_id, safe='')}")

    def events(self, *, after: int | None = None, limit: int | None = None, wait_s: float = 0.0) -> Json:
        """Events after a sequence number; waits up to `wait_s` for the first."""
        query = {"after": after, "limit": limit, "wait_s": f"{wait_s:g}" if wait_s else None}
        return self.call("GET", "/events", query=query, deadline_s=wait_s + ANSWER_S)

    # what is asked for

    def drain(self, worker: str, *, deadline_s: float) -> Json:
        """Take a worker out of service; answers when it has left."""
        body = {"worker": worker, "deadline_s": deadline_s}
        return self.call("POST", "/drain", body, deadline_s=deadline_s + ANSWER_S)

    def undo_drain(self, worker: str) -> Json:
        """A drained worker may serve again."""
        return self.call("POST", "/drain", {"worker": worker, "undo": True})

    def set_policy(self, *, text: str, name: str) -> Json:
        """Decide by another policy from now on; `name` is what messages call the text."""
        return self.call("PUT", "/policy", {"text": text, "name": name}, deadline_s=SET_POLICY_S)

    def stop(self, *, workers: bool) -> Json:
        """End the controller, and its workers too unless they shall be found again by the next one."""
        return self.call("POST", "/stop", {"workers": workers})

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
        deadline_s: float = CALL_S,
    ) -> Json:
        """One call below `/pearl/v1`; `key` makes a repetition of it the same call. Raises `ClientError`."""
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{urlsplit(self.url).path}{API}{path}" + (f"?{urlencode(asked)}" if asked else "")
        headers = {"Accept": "application/json", "Connection": "close"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if key is not None:
            headers["Idempotency-Key"] = key
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        status, raw = self._exchange(method, target, content, headers, min(deadline_s, LONGEST_S))
        return self._answer(status, raw)

    def _exchange(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str], deadline_s: float
    ) -> tuple[int, bytes]:
        until_s = time.monotonic() + deadline_s
        parts = urlsplit(self.url)
        assert parts.hostname
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=min(CONNECT_S, max(deadline_s, 0.001)))
        try:
            connection.connect()
            assert connection.sock
            connection.sock.settimeout(_left_s(until_s))
            connection.request(method, target, body=content, headers=dict(headers))
            response = connection.getresponse()
            return response.status, self._read(response, connection.sock, until_s)
        except TimeoutError:
            raise LateError(f"{self.url}: no answer to {method} {target} within {deadline_s:g} s") from None
        except (OSError, HTTPException) as e:
            raise NotRunningError(self._silent(e)) from None
        finally:
            connection.close()

    def _read(self, response: HTTPResponse, sock: socket.socket | None, until_s: float) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while size <= LONGEST_ANSWER_BYTES:
            if sock is not None:
                with suppress(OSError):  # http.client closed its own handle: the answer is there already
                    sock.settimeout(_left_s(until_s))
            chunk = response.read1(_CHUNK_BYTES)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
        raise NotRunningError(f"{self.url}: an answer of more than {LONGEST_ANSWER_BYTES} bytes is not a controller's")

    def _silent(self, error: Exception) -> str:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"no controller answers at {self.url}: {words} (is `pearl serve` running?)"

    def _answer(self, status: int, raw: bytes) -> Json:
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise NotRunningError(f"{self.url} answers {status}, and not as a controller does (is the URL right?)")
        if status < 400:
            return answer
        raise self._refusal(status, answer.get("error"))

    def _refusal(self, status: int, error: Any) -> ClientError:
        fields = error if isinstance(error, dict) else {}
        message = str(fields.get("message") or f"the controller answers {status}")
        if status == 401:
            hint = f"the token is in STATE_DIR/token of the controller, or in its {TOKEN_VARIABLE}"
            return UnauthorisedError(f"{self.url}: {message} ({hint})")
        return RejectedError(message, status=status, code=str(fields.get("code") or status))


def _is_address(url: str) -> bool:
    if any(not char.isprintable() or char == " " for char in url):
        return False
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - is worked out here, and raises for what is none
        (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
