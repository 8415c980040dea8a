"""HTTP in front of the router (aiohttp): routes, authentication, deadlines, streams, and start and stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from typing import Annotated

from aiohttp import web
from aiohttp.http import HttpProcessingError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from pearl.errors import InputError, UsageError
from pearl.live.journal import JournalError
from pearl.live.protocol import EngineFactory, Tokenizer
from pearl.live.router.admin import Extension, Mount, authorise
from pearl.live.router.answer import AnswerStream, error_body, event, refused, whole_answer
from pearl.live.router.call import Delivery, Kind, RefusedError, read_call, read_deadline_s, read_json, refuse_faults
from pearl.live.router.config import RouterConfig
from pearl.live.router.log import log
from pearl.live.router.pool import StalePoolError
from pearl.live.router.pool_wire import pool_from_json, pool_to_json
from pearl.live.router.service import Router
from pearl.live.router.ticket import Ticket
from pearl.live.router.turns import TurnListener

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BACKLOG = 4096
"""Connections that the system may hold before they are taken up: a rollout opens all its sessions at once."""
LAST_CONNECTIONS_S = 2.0
"""For connections once every request is over: one that brings no request would hold up the end for longer."""
HEADERS_WITHIN_S = 0.01
"""A stream's headers wait this long for its first event. An answer that is complete by then is one packet; past it the
client learns that its request was accepted."""
LAST_WRITE_S = 1.0
"""How long a client that stopped reading may hold up the last event, once its deadline has passed."""


class DrainBody(BaseModel):
    """Body of `POST /pearl/v1/drain`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    worker: str
    deadline_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Server:
    """The routes of one router."""

    def __init__(self, router: Router, tokenizer: Tokenizer | None, extension: Extension | None = None) -> None:
        self._router = router
        self._extension = extension
        self._config = router.config
        self._tokenizer = tokenizer

    def application(self) -> web.Application:
        """The application, to be run by aiohttp."""
        app = web.Application(client_max_size=self._config.max_body_bytes, middlewares=[self._errors])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/pearl/v1/pool", self._get_pool)
        if self._extension is not None:
            app.router.add_routes(self._extension.routes)
            return app
        app.router.add_put("/pearl/v1/pool", self._put_pool)
        app.router.add_post("/pearl/v1/drain", self._drain)
        return app

    # what clients use

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Kind.COMPLETION)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Kind.CHAT)

    async def _generate(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        deadline_s = read_deadline_s(request.headers, self._config)
        late = RefusedError(504, "deadline", f"no complete answer within {deadline_s:g} s")
        until_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(until_s):
                raw = await request.read()
                call, delivery = read_call(kind, raw, request.headers, config=self._config, tokenizer=self._tokenizer)
                ticket = self._router.submit(call, delivery.request_id)
        except TimeoutError:
            raise late from None
        try:
            if delivery.stream:
                return await self._stream(request, ticket, delivery, until_s, late)
            async with asyncio.timeout_at(until_s):
                await ticket.done()
        except TimeoutError:
            raise late from None
        finally:
            self._router.leave(ticket)
        if error := refused(ticket, retry_after_s=self._config.retry_after_s):
            raise error
        answer = whole_answer(ticket, model=self._config.model, tokenizer=self._tokenizer)
        return web.Response(body=to_json(answer), content_type="application/json", headers={"X-Request-Id": ticket.id})

    async def _stream(
        self, request: web.Request, ticket: Ticket, delivery: Delivery, until_s: float, late: RefusedError
    ) -> web.StreamResponse:
        """Server-sent events; an answer that is complete within `HEADERS_WITHIN_S` is one piece with its headers."""
        loop = asyncio.get_running_loop()
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Request-Id": ticket.id}
        events = AnswerStream(
            ticket=ticket,
            model=self._config.model,
            tokenizer=self._tokenizer,
            usage_at_end=delivery.usage_at_end,
            retry_after_s=self._config.retry_after_s,
        )
        data = b""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(until_s, loop.time() + HEADERS_WITHIN_S)):
                data = await events.next()
        if events.ended:
            return web.Response(body=data, headers=headers)
        response = web.StreamResponse(headers=headers)
        try:
            await response.prepare(request)
            try:
                async with asyncio.timeout_at(until_s):
                    data = data or await events.next()
                    while not events.ended:
                        await response.write(data)
                        data = await events.next()
            except TimeoutError:
                data = event(error_body(late))
            async with asyncio.timeout_at(max(until_s, loop.time() + LAST_WRITE_S)):
                await response.write_eof(data)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _models(self, _: web.Request) -> web.StreamResponse:
        model = {"id": self._config.model, "object": "model", "created": 0, "owned_by": "pearl"}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.StreamResponse:
        """200 while calls are accepted, workers or not: those wait in the queue."""
        healthy = self._router.healthy
        pool = self._router.pool
        body = {
            "status": "ok" if healthy else "unavailable",
            "epoch": pool.epoch,
            "workers": len(pool.dispatchable),
            "open_requests": self._router.open_requests,
        }
        return web.json_response(body, status=200 if healthy else 503)

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        text = self._router.metrics.text(self._router.gauges())
        if self._extension is not None:
            text += self._extension.metrics()
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    # what the controller uses

    async def _get_pool(self, request: web.Request) -> web.StreamResponse:
        self._authorise(request)
        return web.json_response(pool_to_json(self._router.pool))

    async def _put_pool(self, request: web.Request) -> web.StreamResponse:
        self._authorise(request)
        try:
            pool = self._router.set_pool(pool_from_json(read_json(await request.read())))
        except StalePoolError as e:
            raise RefusedError(409, "stale_epoch", str(e)) from None
        except InputError as e:
            raise RefusedError(400, "bad_pool", str(e)) from None
        return web.json_response({"epoch": pool.epoch})

    async def _drain(self, request: web.Request) -> web.StreamResponse:
        self._authorise(request)
        try:
            body = DrainBody.model_validate(read_json(await request.read()))
        except ValidationError as e:
            raise refuse_faults(e) from None
        if body.worker not in self._router.pool.state.by_id:
            raise RefusedError(404, "unknown_worker", f"no worker {body.worker!r} is in the pool")
        if body.deadline_s > self._config.max_call_deadline_s:
            limit = f"{self._config.max_call_deadline_s:g}"
            raise RefusedError(400, "bad_deadline", f"deadline_s is {body.deadline_s:g}; expected at most {limit}")
        return web.json_response(asdict(await self._router.drain(body.worker, deadline_s=body.deadline_s)))

    def _authorise(self, request: web.Request) -> None:
        authorise(request, self._config.admin_token)

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every error as JSON, none with a traceback."""
        try:
            _check_encoding(request)
            return await handler(request)
        except RefusedError as e:
            error = e
        except web.RequestPayloadError as e:
            error = RefusedError(400, "bad_body", f"the body cannot be read: {' '.join(str(e).split())}")
        except JournalError as e:
            error = RefusedError(503, "journal", str(e), retry_after_s=self._config.retry_after_s)
        except web.HTTPException as e:
            error = RefusedError(e.status, e.reason.lower().replace(" ", "_"), _http_message(e, self._config))
        except Exception:
            log("internal_error", level=logging.ERROR, path=request.path, exc_info=True)
            error = RefusedError(500, "internal_error", "the router failed; its log says where")
        self._router.metrics.count("pearl_router_requests_refused_total", code=error.code)
        headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        return web.json_response(error_body(error), status=error.status, headers=headers)


def _check_encoding(request: web.Request) -> None:
    """A compressed body would be larger than its bound once it is read."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RefusedError(415, "bad_encoding", f"Content-Encoding {encoding[:64]!r} is not taken: send bodies plain")


class _ClientsFaults(logging.Filter):
    """What is wrong with a client's HTTP is answered to the client; a traceback of the parser helps nobody else."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is of something else."""
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (HttpProcessingError, web.RequestPayloadError))


def _http_log() -> logging.Logger:
    logger = logging.getLogger("pearl.router.http")
    logger.addFilter(_CLIENTS_FAULTS)
    return logger


_CLIENTS_FAULTS = _ClientsFaults()


def _http_message(error: web.HTTPException, config: RouterConfig) -> str:
    if error.status == 413:
        return f"the body is larger than {config.max_body_bytes} bytes"
    return error.text or error.reason


@asynccontextmanager
async def running_router(
    config: RouterConfig,
    engines: EngineFactory,
    *,
    tokenizer: Tokenizer | None = None,
    turns: TurnListener | None = None,
    mount: Mount | None = None,
) -> AsyncIterator[tuple[Router, str]]:
    """A router that serves HTTP, and its base URL; on leaving it stops gracefully.

    `mount` makes a controller's part of the service; it is left before the router stops.

    Raises `JournalError`, and `UsageError` where the address cannot be bound.
    """
    async with AsyncExitStack() as stack:
        router = Router(config, engines, turns=turns)
        await router.start()
        stack.push_async_callback(router.stop)
        extension = await stack.enter_async_context(mount(router)) if mount else None
        app = Server(router, tokenizer, extension).application()
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            logger=_http_log(),
            shutdown_timeout=LAST_CONNECTIONS_S,
        )
        try:
            yield router, await _listen(runner, config)
        finally:
            await stack.aclose()
            await runner.cleanup()


async def _listen(runner: web.AppRunner, config: RouterConfig) -> str:
    """Serve, and return the base URL."""
    await runner.setup()
    site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG)
    try:
        await site.start()
    except (OSError, UnicodeError) as e:
        why = getattr(e, "strerror", None) or e
        raise UsageError(f"router: cannot listen on {config.host}:{config.port}: {why}") from None
    host, port = runner.addresses[0][:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


async def serve(
    config: RouterConfig,
    engines: EngineFactory,
    *,
    tokenizer: Tokenizer | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM, and tell `on_ready` the base URL; a second signal does not hurry the first."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running_router(config, engines, tokenizer=tokenizer) as (_, url):
        log("listening", url=url)
        on_ready(url)
        await stop.wait()
