"""The router without HTTP: accepts calls, keeps them running, changes the pool, survives its own restart."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pearl.live.journal import Accept, Append, End, Journal, JournalError, Record, SetPool, Store, understood
from pearl.live.protocol import EngineClient, EngineFactory
from pearl.live.router.call import Call, RefusedError
from pearl.live.router.config import RouterConfig
from pearl.live.router.dispatch import Dispatcher, Sessions
from pearl.live.router.generation import Generation, Segment
from pearl.live.router.lease import LeaseTable
from pearl.live.router.legs import Cause, Legs
from pearl.live.router.log import log
from pearl.live.router.metrics import Labels, Metrics
from pearl.live.router.pool import Pool, drain_worker, replace_pool
from pearl.live.router.pool_wire import pool_from_json, pool_to_text
from pearl.live.router.runner import Runner
from pearl.live.router.ticket import Ending, Ticket
from pearl.live.router.turns import IgnoreTurns, TurnListener, TurnTimer

ACCEPTED_WITHIN_S = 0.005
"""When an acceptance is in the journal: often together with the first token, which comes about this soon."""
SWEEP_S = 1.0
"""How often stalled legs are looked for; short against any sensible stall limit."""
LAST_LEGS_S = 5.0
"""How long interrupted legs may take to close their streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What a drain did: `moved` legs were interrupted at the deadline, and their requests go on elsewhere."""

    worker: str
    epoch: int
    moved: int
    idle: bool
    """Whether nothing runs on the worker any more."""


class Router:
    """One router. `start` it on a running event loop, and `stop` it."""

    def __init__(
        self,
        config: RouterConfig,
        engines: EngineFactory,
        *,
        turns: TurnListener | None = None,
        now_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.stopping = False
        self._make_engine = engines
        self._turns = turns or IgnoreTurns()
        self._unix_s = unix_s
        self._now_s = now_s
        self._dispatcher = Dispatcher(slots=config.slots_per_worker, now_s=now_s)
        self._legs = Legs()
        self._leases = LeaseTable()
        self._engines: dict[str, EngineClient] = {}
        self._open: dict[str, Ticket] = {}
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the journal, take up the pool and the requests in it, and run. Raises `JournalError`."""
        store = Store(self.config.journal)
        self._journal = Journal(store)
        self._runner = Runner(
            config=self.config,
            dispatcher=self._dispatcher,
            sessions=Sessions(),
            leases=self._leases,
            legs=self._legs,
            engines=self._engines,
            journal=self._journal,
            metrics=self.metrics,
            now_s=self._now_s,
            run_id=uuid.uuid4().hex[:8],
            conclude=self._conclude,
        )
        if document := store.pool():
            with understood("the pool"):
                pool = pool_from_json(json.loads(document))
            self._use(pool)
        records = store.unfinished()
        for record in records:
            ticket = self._restored(record, keep=True)
            self._turns.resumed(ticket)
            self._begin(ticket)
        log("started", resumed=len(records), epoch=self.pool.epoch)
        self._spawn(self._sweep())

    # calls

    @property
    def pool(self) -> Pool:
        """The pool in force."""
        return self._dispatcher.pool

    async def failed(self) -> None:
        """Wait until nothing can be accepted any more, for as long as it takes, and raise the `JournalError`."""
        while self._journal.failure is None:
            await asyncio.sleep(SWEEP_S)
        raise self._journal.failure

    @property
    def healthy(self) -> bool:
        """Whether calls are accepted."""
        return not self.stopping and self._journal.failure is None

    def submit(self, call: Call, request_id: str | None) -> Ticket:
        """Accept a call, or attach to the request of that id. Raises `RefusedError` (409, 429, 503).

        Whoever gets a ticket gives it back by `leave`.
        """
        if not self.healthy:
            why = "the router is stopping" if self.stopping else f"the journal failed: {self._journal.failure}"
            raise RefusedError(503, "unavailable", why, retry_after_s=self.config.retry_after_s)
        ticket = self._known(request_id) if request_id else None
        if ticket is not None:
            if ticket.call != call:
                raise RefusedError(409, "request_id_conflict", f"request id {request_id!r} belongs to another request")
            self.metrics.count("pearl_router_requests_attached_total")
        else:
            ticket = self._accept(call, request_id)
        ticket.clients += 1
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A client no longer waits. A request whose id nobody can come back with ends with its last client."""
        ticket.clients -= 1
        task = self._tasks.get(ticket)
        if ticket.clients == 0 and not ticket.keep and not ticket.over and task:
            task.cancel()

    def _known(self, request_id: str) -> Ticket | None:
        if ticket := self._open.get(request_id):
            return ticket
        record = self._journal.store.find(request_id)
        return self._restored(record, keep=True) if record else None

    def _accept(self, call: Call, request_id: str | None) -> Ticket:
        limit = self._dispatcher.capacity + self.config.max_queued
        if len(self._open) >= limit:
            message = f"{len(self._open)} requests are open, and {limit} may be"
            raise RefusedError(429, "too_many_requests", message, retry_after_s=self.config.retry_after_s)
        ticket = Ticket(
            id=request_id or uuid.uuid4().hex,
            call=call,
            generation=self._generation(call),
            accepted_unix_s=self._unix_s(),
            timer=TurnTimer(since_s=self._now_s()),
            keep=request_id is not None,
        )
        entry = Accept(id=ticket.id, call=call.to_json(), accepted_unix_s=ticket.accepted_unix_s)
        self._journal.add(entry, within_s=ACCEPTED_WITHIN_S)
        self.metrics.count("pearl_router_requests_accepted_total")
        log("accepted", request_id=ticket.id, prompt=len(call.prompt), max_tokens=call.sampling.max_tokens)
        self._turns.asked(ticket)
        self._begin(ticket)
        return ticket

    def _generation(self, call: Call) -> Generation:
        return Generation(prompt=call.prompt, sampling=call.sampling, eos_token_ids=self.config.eos_token_ids)

    def _restored(self, record: Record, *, keep: bool) -> Ticket:
        with understood(f"request {record.id!r}"):
            call = Call.from_json(record.call)
            generation = self._generation(call)
            generation.restore(_segment(entry) for entry in record.segments)
            ending = Ending.from_json(record.ending) if record.ending else None
        ago_s = max(0.0, self._unix_s() - record.accepted_unix_s)
        ticket = Ticket(
            id=record.id,
            call=call,
            generation=generation,
            accepted_unix_s=record.accepted_unix_s,
            timer=TurnTimer(since_s=self._now_s() - ago_s),
            keep=keep,
        )
        ticket.publish(len(generation.token_ids))
        if ending:
            ticket.end(ending)
        return ticket

    def _begin(self, ticket: Ticket) -> None:
        self._open[ticket.id] = ticket
        task = asyncio.get_running_loop().create_task(self._run(ticket), name=f"request {ticket.id}")
        self._tasks[ticket] = task
        task.add_done_callback(lambda _: self._tasks.pop(ticket, None))

    async def _run(self, ticket: Ticket) -> None:
        left_s = ticket.accepted_unix_s + self.config.request_lifetime_s - self._unix_s()
        try:
            async with asyncio.timeout(max(left_s, 0)):
                ending = await self._runner.run(ticket)
        except TimeoutError:
            message = f"the request was not complete after {self.config.request_lifetime_s:g} s"
            ending = Ending(status=504, code="lifetime", message=message)
        except asyncio.CancelledError:
            if ticket.suspended:
                return
            ending = Ending(status=499, code="cancelled", message="its client went away")
        except Exception:
            log("internal_error", level=logging.ERROR, request_id=ticket.id, exc_info=True)
            ending = Ending(status=500, code="internal_error", message="the router failed; its log says where")
        self._conclude(ticket, ending)

    def _conclude(self, ticket: Ticket, ending: Ending) -> None:
        """Journal how a request ends, and tell once that is there; of several endings the first counts."""
        if ticket.concluded:
            return
        ticket.concluded = True
        entry = End(id=ticket.id, ending=ending.to_json(), ended_unix_s=self._unix_s())
        self._journal.add(entry, lambda: self._end(ticket, ending))

    def _end(self, ticket: Ticket, ending: Ending) -> None:
        self._open.pop(ticket.id, None)
        ticket.end(ending)
        self._turns.done(ticket, ending)
        outcome = ending.finish.value if ending.finish else ending.code
        seconds = self._unix_s() - ticket.accepted_unix_s
        self.metrics.count("pearl_router_requests_ended_total", outcome=outcome)
        self.metrics.observe("pearl_router_request_seconds", seconds)
        tokens, interruptions = len(ticket.generation.token_ids), ticket.interruptions
        log("ended", request_id=ticket.id, outcome=outcome, tokens=tokens, interruptions=interruptions, seconds=seconds)

    # pool

    def set_pool(self, proposed: Pool) -> Pool:
        """Replace the pool as a whole. Raises `StalePoolError`, or `InputError` for an address that cannot be one.

        Legs on workers that are gone, serve nothing, or hold weights older than allowed are moved at once.
        """
        pool = replace_pool(self.pool, proposed)
        if pool is not self.pool:
            self._use(pool)
            self._journal.add(SetPool(document=pool_to_text(pool)))
            log("pool_set", epoch=pool.epoch, counts=pool.state.counts.label(), workers=len(pool.state.workers))
        self._journal.flush()
        return pool

    async def drain(self, worker: str, *, deadline_s: float) -> Drained:
        """Give `worker` nothing new, wait until it is idle, and move what still runs at the deadline.

        Raises `KeyError` for a worker that is not in the pool. Draining twice is the same as once.
        """
        self.set_pool(drain_worker(self.pool, worker))
        moved = await self.empty(worker, deadline_s=deadline_s)
        return Drained(worker=worker, epoch=self.pool.epoch, moved=moved, idle=not self._legs.on(worker))

    async def empty(self, worker: str, *, deadline_s: float) -> int:
        """Wait until nothing runs on `worker`, and move what still does at the deadline; returns the legs moved.

        That it gets nothing new is for the pool to say. A worker that is not in the pool is idle, or soon will be.
        """
        moved = 0
        try:
            async with asyncio.timeout(deadline_s):
                await self._legs.idle(worker)
        except TimeoutError:
            moved = self._legs.interrupt(worker, Cause.DRAINED)
            await self._idle_soon(worker)
        log("drained", worker=worker, moved=moved, idle=not self._legs.on(worker))
        return moved

    async def _idle_soon(self, worker: str) -> None:
        try:
            async with asyncio.timeout(LAST_LEGS_S):
                await self._legs.idle(worker)
        except TimeoutError:
            return

    def _use(self, pool: Pool) -> None:
        before = self.pool
        changed = [w for w, endpoint in pool.endpoints.items() if _url(before, w) != endpoint.url]
        made = {worker: self._make_engine(worker=worker, url=pool.endpoints[worker].url) for worker in changed}
        retired = {w: self._engines.pop(w) for w in tuple(self._engines) if w in made or w not in pool.endpoints}
        self._engines |= made
        self._dispatcher.set_pool(pool)
        for worker in self._legs.workers():
            if worker in retired or not pool.may_run(worker):
                version = pool.weight_version(worker)
                stale = version is not None and version < pool.oldest_weight_version
                self._legs.interrupt(worker, Cause.WEIGHTS if stale else Cause.REMOVED)
        for worker, engine in retired.items():
            self._leases.drop_from(worker)
            self._spawn(self._retire(worker, engine))

    async def _retire(self, worker: str, engine: EngineClient) -> None:
        if worker not in self._engines:
            await self._idle_soon(worker)
        await engine.aclose()

    # life

    def gauges(self) -> dict[str, dict[Labels, float]]:
        """What the router holds now, for the metrics page."""
        loads = self._dispatcher.loads.items()
        running: dict[Labels, float] = {(("worker", worker),): load.running for worker, load in loads}
        return {
            "pearl_router_requests_open": {(): len(self._open)},
            "pearl_router_requests_waiting": {(): self._dispatcher.waiting},
            "pearl_router_kv_leases": {(): len(self._leases)},
            "pearl_router_pool_epoch": {(): self.pool.epoch},
            "pearl_router_worker_running": running,
        }

    @property
    def open_requests(self) -> int:
        """Requests accepted and not ended."""
        return len(self._open)

    async def stop(self) -> None:
        """Accept nothing more, let open requests finish for a while, and keep the rest for the next start."""
        self.stopping = True
        log("stopping", open=len(self._open))
        tasks = tuple(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=self.config.shutdown_grace_s)
        self._suspend_all()
        tasks = (*self._tasks.values(), *self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(engine.aclose() for engine in self._engines.values()), return_exceptions=True)
        try:
            self._journal.close()
        except JournalError as e:
            log("journal_failed", level=logging.CRITICAL, error=str(e))
        log("stopped")

    def _suspend_all(self) -> None:
        for ticket in self._open.values():
            ticket.suspend()

    async def _sweep(self) -> None:
        """Interrupt stalled legs, forget old endings, and send clients away once the journal failed."""
        while self._journal.failure is None:
            await asyncio.sleep(SWEEP_S)
            self._legs.interrupt_stalled(before_s=self._now_s() - self.config.stall_s)
            try:
                self._journal.store.prune(ended_before_unix_s=self._unix_s() - self.config.keep_finished_s)
            except JournalError as e:
                self._journal.failure = e
        log("journal_failed", level=logging.CRITICAL, error=str(self._journal.failure))
        self._suspend_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _url(pool: Pool, worker: str) -> str | None:
    endpoint = pool.endpoints.get(worker)
    return endpoint.url if endpoint else None


def _segment(entry: Append) -> Segment:
    return Segment(
        start=entry.start,
        token_ids=entry.token_ids,
        logprobs=entry.logprobs,
        weight_version=entry.weight_version,
    )
