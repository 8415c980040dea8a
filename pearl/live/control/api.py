"""The admin plane over HTTP: every route of the controller, next to the router's on the same port.

All of them need the bearer token. A call with an `Idempotency-Key` is carried out once: it goes on when its client goes
away, and whoever repeats it gets the same answer. Without a key, a call ends with its client, and what it had begun is
taken back where that can be.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from pearl.errors import Fault, InputError, PearlError, PolicyError, SolverError
from pearl.live.control import bodies
from pearl.live.control.bodies import read_body
from pearl.live.control.controller import Controller
from pearl.live.control.documents import Document, compact
from pearl.live.control.intake import ClosedError
from pearl.live.control.lease import LeaseError
from pearl.live.control.log import log
from pearl.live.control.pipeline import StaleError
from pearl.live.control.progress_log import number_of
from pearl.live.control.store import AddAnswer, StoreError
from pearl.live.control.views import decision_view, event_view, plan_view, state_view
from pearl.live.control.weights import StaleWeightsError
from pearl.live.journal import JournalError
from pearl.live.router.admin import Extension, authorise
from pearl.live.router.call import RefusedError

MAX_BODY_BYTES = 4 << 20
"""A policy of 1 MiB, escaped, and thousands of workers fit."""
READ_BODY_S = 30.0
KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
LONGEST_POLL_S = 60.0
MOST_ROWS = 1000
BATCH_DEADLINE_S = 3600.0
"""How long a batch waits for its weights where its client names no deadline: longer than any training step."""
DRAIN_DEADLINE_S = 600.0

Answer = tuple[int, Document]
Handler = Callable[[web.Request, bytes], Awaitable[Answer]]


class AdminApi:
    """The routes of one controller."""

    def __init__(
        self, controller: Controller, *, token: str | None, cluster: str, stop: Callable[[bool], None]
    ) -> None:
        """`cluster` is the cluster's name; `stop` is called with whether workers are to be stopped, too."""
        self._controller = controller
        self._parts = controller.parts
        self._token = token
        self._cluster = cluster
        self._stop = stop
        self._calls: dict[str, tuple[str, asyncio.Task[Answer]]] = {}
        """Calls under way that carry a key: what was asked, and the answer to come."""
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._closing = False

    def extension(self) -> Extension:
        """What the router's service takes up."""
        return Extension(routes=self._routes(), metrics=self._controller.metrics_text)

    async def aclose(self) -> None:
        """End the calls under way; their clients are told that the controller stops."""
        self._closing = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _routes(self) -> list[web.RouteDef]:
        root = "/pearl/v1"
        return [
            web.get(f"{root}/state", self._answering(self._state)),
            web.get(f"{root}/decisions", self._answering(self._decisions)),
            web.get(f"{root}/decisions/{{id}}", self._answering(self._decision)),
            web.get(f"{root}/plans", self._answering(self._plans)),
            web.get(f"{root}/plans/{{id}}", self._answering(self._plan)),
            web.get(f"{root}/events", self._answering(self._events)),
            web.post(f"{root}/workers", self._answering(self._add)),
            web.post(f"{root}/workers/reclaim", self._answering(self._reclaim)),
            web.post(f"{root}/drain", self._answering(self._drain)),
            web.post(f"{root}/training/begin", self._answering(self._begin_training)),
            web.post(f"{root}/training/finish", self._answering(self._finish_training)),
            web.post(f"{root}/batches", self._answering(self._begin_batch)),
            web.post(f"{root}/batches/finish", self._answering(self._finish_batch)),
            web.post(f"{root}/weights", self._answering(self._weights)),
            web.put(f"{root}/policy", self._answering(self._policy)),
            web.post(f"{root}/stop", self._answering(self._stop_all)),
        ]

    # reading

    async def _state(self, _: web.Request, __: bytes) -> Answer:
        return 200, state_view(self._controller, cluster=self._cluster)

    async def _decisions(self, request: web.Request, _: bytes) -> Answer:
        after = _id(request.query["after"], "d", "decision") if "after" in request.query else 0
        found = self._parts.store.decisions(limit=_integer(request, "limit", 20, most=MOST_ROWS), after=after)
        return 200, {"decisions": [decision_view(decision) for decision in found]}

    async def _decision(self, request: web.Request, _: bytes) -> Answer:
        name = request.match_info["id"]
        decision = self._parts.store.decision(_id(name, "d", "decision"))
        if decision is None:
            raise RefusedError(404, "unknown_decision", f"no decision {name!r} is kept")
        return 200, decision_view(decision)

    async def _plans(self, request: web.Request, _: bytes) -> Answer:
        store = self._parts.store
        found = store.plans(limit=_integer(request, "limit", 20, most=MOST_ROWS))
        return 200, {"plans": [plan_view(plan, store.progress(plan.number)) for plan in found]}

    async def _plan(self, request: web.Request, _: bytes) -> Answer:
        name, store = request.match_info["id"], self._parts.store
        plan = store.plan(_id(name, "p", "plan"))
        if plan is None:
            raise RefusedError(404, "unknown_plan", f"no plan {name!r} is kept")
        return 200, plan_view(plan, store.progress(plan.number))

    async def _events(self, request: web.Request, _: bytes) -> Answer:
        after = _integer(request, "after", 0, most=bodies.MAX_STEP)
        limit = _integer(request, "limit", 100, most=MOST_ROWS)
        await self._parts.intake.wait_past(after, wait_s=_seconds(request, "wait_s", LONGEST_POLL_S))
        return 200, {"events": [event_view(event) for event in self._parts.store.events(after=after, limit=limit)]}

    # membership

    async def _add(self, request: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.AddBody, raw)
        key = request.headers.get("Idempotency-Key")
        return 202, {"seq": self._controller.add_workers((worker.worker() for worker in body.workers), key)}

    async def _reclaim(self, request: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.ReclaimBody, raw)
        key = request.headers.get("Idempotency-Key")
        workers = body.workers or ()
        return 202, {"seq": self._controller.reclaim(workers=workers, node=body.node, grace_s=body.grace_s, key=key)}

    async def _drain(self, _: web.Request, raw: bytes) -> Answer:
        body, drains = read_body(bodies.DrainBody, raw), self._controller.drains
        if body.undo:
            return 200, {"worker": body.worker, "undone": drains.undo(body.worker)}
        began_s = self._parts.clock.now_s()
        await drains.drain(body.worker, deadline_s=body.deadline_s or DRAIN_DEADLINE_S)
        return 200, {"worker": body.worker, "seconds": self._parts.clock.now_s() - began_s}

    # trainers and rollout

    async def _begin_training(self, _: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.BeginTrainingBody, raw)
        deadline_s = body.deadline_s or self._parts.limits.release_s
        handover = await self._controller.trainer.begin(step=body.step, deadline_s=deadline_s, force=body.force)
        return 200, {"step": body.step, **_plain(asdict(handover))}

    async def _finish_training(self, _: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.FinishTrainingBody, raw)
        new = self._controller.trainer.finish(step=body.step, window_s=body.window_s)
        return 202, {"step": body.step, "new": new}

    async def _begin_batch(self, _: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.BeginBatchBody, raw)
        batch = await self._controller.pipeline.begin(
            step=body.step, trajectories=body.trajectories, deadline_s=body.deadline_s or BATCH_DEADLINE_S
        )
        return 200, {**asdict(batch), "weights": self._parts.ledger.record.latest}

    async def _finish_batch(self, _: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.FinishBatchBody, raw)
        return 200, asdict(self._controller.pipeline.finish(step=body.step))

    async def _weights(self, _: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.WeightsBody, raw)
        done = await self._controller.publish(version=body.version, directory=Path(body.directory))
        answer = {"version": done.version, "updated": done.updated, "left": done.left, "seconds": done.seconds}
        return 200, _plain(answer)

    # operators

    async def _policy(self, _: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.PolicyBody, raw)
        try:
            policy = await self._controller.set_policy(body.text, name=body.name)
        except PolicyError as e:
            return 400, _refusal("bad_policy", str(e), faults=[_fault(fault) for fault in e.faults])
        return 200, {"policy": {"name": policy.name, "sha256": policy.sha256}}

    async def _stop_all(self, _: web.Request, raw: bytes) -> Answer:
        body = read_body(bodies.StopBody, raw) if raw else bodies.StopBody()
        self._stop(body.workers)
        return 202, {"stopping": True, "workers": body.workers}

    # every call

    def _answering(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            authorise(request, self._token)
            raw = await _read(request)
            if self._closing:
                raise _stopping()
            key = request.headers.get("Idempotency-Key") if request.method != "GET" else None
            if key is None:
                status, document = await self._carried_out(handler(request, raw))
            else:
                status, document = await self._once(key, request, raw, handler)
            return web.Response(status=status, text=compact(document), content_type="application/json")

        return answer

    async def _carried_out(self, work: Awaitable[Answer]) -> Answer:
        """The answer of a call that ends with its client."""
        task = self._start(_answered(work))
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if self._closing:
                raise _stopping() from None
            raise

    async def _once(self, key: str, request: web.Request, raw: bytes, handler: Handler) -> Answer:
        """The answer of the first call under `key`, which goes on without its client."""
        if not KEY.match(key):
            raise RefusedError(400, "bad_key", "Idempotency-Key: expected 1 to 128 of letters, digits and . _ : -")
        call = f"{request.method} {request.path} {hashlib.sha256(raw).hexdigest()}"
        try:
            known = self._parts.store.answer(key)
        except StoreError as e:
            raise RefusedError(503, "unavailable", str(e)) from None
        if known is not None:
            _same_call(key, known.call, call)
            return known.status, json.loads(known.body)
        if (running := self._calls.get(key)) is not None:
            _same_call(key, running[0], call)
            task = running[1]
        else:
            task = self._start(self._kept(key, call, handler(request, raw)))
            self._calls[key] = call, task
            task.add_done_callback(lambda _: self._calls.pop(key, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closing:
                raise _stopping() from None
            raise

    async def _kept(self, key: str, call: str, work: Awaitable[Answer]) -> Answer:
        status, document = await _answered(work)
        if status < 500:
            try:
                self._parts.store.write(AddAnswer(key=key, call=call, status=status, body=compact(document)))
            except StoreError as e:
                log("answer_not_kept", level=logging.ERROR, key=key, error=str(e))
        return status, document

    def _start(self, work: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


async def _answered(work: Awaitable[Answer]) -> Answer:
    """The answer, errors that PEARL raises on purpose included."""
    try:
        return await work
    except RefusedError as e:
        return e.status, _refusal(e.code, str(e))
    except TimeoutError as e:
        return 504, _refusal("deadline", str(e) or "the deadline passed; what had begun is taken back")
    except (StaleError, StaleWeightsError) as e:
        return 409, _refusal("stale", str(e))
    except (ClosedError, LeaseError, StoreError, JournalError) as e:
        return 503, _refusal("unavailable", str(e))
    except (InputError, SolverError) as e:
        return 400, _refusal("bad_request", str(e))
    except PearlError as e:
        log("call_failed", level=logging.ERROR, error=f"{type(e).__name__}: {e}")
        return 500, _refusal("failed", str(e))


async def _read(request: web.Request) -> bytes:
    """The body, which may be no larger than a call of the admin plane needs."""
    too_large = RefusedError(413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(READ_BODY_S):
            async for part in request.content.iter_any():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise RefusedError(408, "slow_body", f"the body did not come within {READ_BODY_S:g} s") from None
    return b"".join(parts)


def _refusal(code: str, message: str, **more: Any) -> Document:
    return {"error": {"code": code, "message": message, **more}}


def _fault(fault: Fault) -> Document:
    place = {"file": fault.span.file, "line": fault.span.line, "column": fault.span.column} if fault.span else {}
    return {"message": fault.message, **place, "expected": fault.expected, "hint": fault.hint}


def _stopping() -> RefusedError:
    return RefusedError(503, "stopping", "the controller stops: ask again once it runs, with the same key")


def _same_call(key: str, known: str, call: str) -> None:
    if known != call:
        raise RefusedError(409, "key_conflict", f"Idempotency-Key {key!r} belongs to another call")


def _id(text: str, prefix: str, what: str) -> int:
    number = number_of(text, prefix)
    if number is None:
        raise RefusedError(400, "bad_id", f"{text[:64]!r} is no id of a {what}; expected {prefix}-000001, say")
    return number


def _integer(request: web.Request, name: str, default: int, *, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= most):
        raise RefusedError(400, "bad_query", f"{name} is {text[:64]!r}; expected a whole number from 0 to {most}")
    return int(text)


def _seconds(request: web.Request, name: str, most: float) -> float:
    text = request.query.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or float(text) > most:
        raise RefusedError(400, "bad_query", f"{name} is {text[:64]!r}; expected seconds from 0 to {most:g}")
    return float(text)


def _plain(document: Document) -> Document:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in document.items()}
