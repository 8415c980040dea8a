"""Runs one request: leg after leg, until it is complete or cannot be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from pearl.core.cluster import Role
from pearl.live.journal import Append, Journal
from pearl.live.protocol import (
    Chunk,
    EngineClient,
    EngineFailedError,
    EngineLostError,
    EngineRefusedError,
    EngineUnavailableError,
    FinishReason,
    KvHandle,
    Leg,
)
from pearl.live.router.choose import Ask, Choice, Path, Stage
from pearl.live.router.config import RouterConfig
from pearl.live.router.dispatch import Dispatcher, Sessions
from pearl.live.router.generation import Segment
from pearl.live.router.lease import Lease, LeaseTable, Refusal, lease_end_s
from pearl.live.router.legs import Cause, Legs
from pearl.live.router.log import log
from pearl.live.router.metrics import Metrics
from pearl.live.router.ticket import Ending, Ticket

MAX_FRUITLESS_LEGS = 8
"""Legs in a row that an engine began and lost without a token. A request that kills its engines must not be handed
through the whole pool; one that meets a restarting pool is safe, since legs that never began do not count."""
SHOWN_WITHIN_S = 0.002
"""Tokens between a request's first and last may wait this long, so that those of many requests share a commit."""
BACKOFF_FIRST_S = 0.05
BACKOFF_LONGEST_S = 2.0

_MAY_BE_THE_REQUESTS_FAULT = frozenset({Cause.LOST, Cause.FAILED, Cause.CUT, Cause.ABORTED, Cause.STALLED})


@dataclass(slots=True, kw_only=True)
class Runner:
    """What running a request needs; one for all requests."""

    config: RouterConfig
    dispatcher: Dispatcher
    sessions: Sessions
    leases: LeaseTable
    legs: Legs
    engines: Mapping[str, EngineClient]
    journal: Journal
    metrics: Metrics
    now_s: Callable[[], float]
    conclude: Callable[[Ticket, Ending], None]
    """Called as soon as a request is complete, which `run` may outlive by the end of its last leg's stream."""
    run_id: str
    """Tells the legs of this process from those of the one before, which engines may still be ending."""

    async def run(self, ticket: Ticket) -> Ending:
        """How the request ends. Every token it keeps goes to the journal first, and then to its clients."""
        try:
            ticket.generation.settle()
            while ticket.generation.finish is None:
                if ticket.fruitless >= MAX_FRUITLESS_LEGS:
                    message = f"{ticket.fruitless} workers in a row failed on this request without a token"
                    return Ending(status=502, code="workers_failed", message=message)
                await self._advance(ticket)
            return Ending(finish=ticket.generation.finish)
        except EngineRefusedError as e:
            return Ending(status=e.status, code="engine_refused", message=str(e))
        finally:
            self.leases.drop(ticket.id)

    async def _advance(self, ticket: Ticket) -> None:
        """One leg, and what follows from how it ended."""
        generation = ticket.generation
        before = len(generation.token_ids)
        ask = Ask(stage=ticket.stage, homes=self.sessions.homes(ticket.call.session))
        choice = await self.dispatcher.acquire(ask, resumed=before > 0 or ticket.interruptions > 0)
        try:
            self._note_dispatch(ticket, choice)
            if choice.path is Path.PREFILL:
                cause = await self._prefill(ticket, choice.worker)
            else:
                cause = await self._generate(ticket, choice)
        finally:
            ticket.timer.ended(self.now_s())
            self.dispatcher.release(choice.worker)
        progress = len(generation.token_ids) > before
        if progress:
            ticket.stage, ticket.fruitless = Stage.PROMPT, 0
        if generation.settle() or cause is None:
            return
        self._note_interruption(ticket, choice, cause)
        if not progress and cause in _MAY_BE_THE_REQUESTS_FAULT:
            ticket.fruitless += 1
            await asyncio.sleep(min(BACKOFF_FIRST_S * 2**ticket.fruitless, BACKOFF_LONGEST_S))

    async def _prefill(self, ticket: Ticket, worker: str) -> Cause | None:
        """Compute the prompt on `worker`, and note the lease of its KV cache. The token it samples is not kept."""
        dispatched_s = self.now_s()
        last: Chunk | None = None

        def remember(chunk: Chunk) -> None:
            nonlocal last
            last = chunk
            self._note_answer(ticket, chunk)

        ticket.timer.dispatched(dispatched_s, worker=worker, role=self._role(worker), keeps=True)
        whole = self._next_leg(ticket, kv=None)
        sampling = replace(whole.sampling, max_tokens=1, min_tokens=0, logprobs=False)
        if cause := await self._stream(worker, replace(whole, sampling=sampling, keep_kv=True), remember):
            return cause
        if last is None or last.finish in (None, FinishReason.ABORT):
            return Cause.CUT if last is None or last.finish is None else Cause.ABORTED
        ticket.stage = Stage.DECODE
        version = last.weight_version
        if version is None:
            version = self.dispatcher.pool.weight_version(worker)
        if last.kv is not None and version is not None:
            end_s = lease_end_s(
                last.kv,
                dispatched_s=dispatched_s,
                engine_lease_s=self.config.kv_lease_s,
                margin_s=self.config.kv_margin_s,
            )
            lease = Lease(handle=last.kv, source=worker, weight_version=version, expires_s=end_s)
            self.leases.grant(ticket.id, lease)
        return None

    async def _generate(self, ticket: Ticket, choice: Choice) -> Cause | None:
        """Decode on the chosen worker, keeping every token."""
        kv = self._take_handle(ticket, choice.worker) if choice.path is Path.DECODE else None
        leg = self._next_leg(ticket, kv=kv)
        number = ticket.generation.leg
        version = self.dispatcher.pool.weight_version(choice.worker) or 0
        finish: FinishReason | None = None
        role = self._role(choice.worker)
        ticket.timer.dispatched(self.now_s(), worker=choice.worker, role=role, pulls=kv is not None)

        def keep(chunk: Chunk) -> None:
            nonlocal finish
            finish = chunk.finish or finish
            self._note_answer(ticket, chunk)
            self._keep(ticket, number, chunk, version)

        cause = await self._stream(choice.worker, leg, keep)
        return cause or (Cause.ABORTED if finish is FinishReason.ABORT else Cause.CUT)

    def _keep(self, ticket: Ticket, number: int, chunk: Chunk, version: int) -> None:
        oldest = self.dispatcher.pool.oldest_weight_version
        if chunk.weight_version is not None and chunk.weight_version < oldest:
            raise EngineFailedError(f"tokens of weight version {chunk.weight_version}; {oldest} or later is allowed")
        if len(chunk.logprobs) != (len(chunk.token_ids) if ticket.call.sampling.logprobs else 0):
            raise EngineFailedError(f"{len(chunk.token_ids)} tokens came with {len(chunk.logprobs)} log-probabilities")
        segment = ticket.generation.accept(number, chunk, weight_version=version)
        if segment is not None:
            self._show(ticket, segment)
        if chunk.finish is not None and ticket.generation.finish is not None:
            # The stream's own end may be one packet away: it is still read, so that its connection can be used again,
            # but the client need not wait for it, and tokens and ending share a commit.
            ticket.timer.ended(self.now_s())
            self.conclude(ticket, Ending(finish=ticket.generation.finish))

    def _show(self, ticket: Ticket, segment: Segment) -> None:
        """Journal tokens, and show them once they are there."""
        shown = segment.start + len(segment.token_ids)
        entry = Append(
            id=ticket.id,
            start=segment.start,
            token_ids=segment.token_ids,
            logprobs=segment.logprobs,
            weight_version=segment.weight_version,
        )
        self.metrics.count("pearl_router_tokens_total", len(segment.token_ids))
        between = segment.start > 0 and ticket.generation.finish is None
        self.journal.add(entry, lambda: ticket.publish(shown), within_s=SHOWN_WITHIN_S if between else 0.0)

    async def _stream(self, worker: str, leg: Leg, take: Callable[[Chunk], None]) -> Cause | None:
        """Give every chunk of a leg to `take`; why the stream was interrupted, or None where it ended by itself."""
        engine = self.engines.get(worker)
        if engine is None:
            return Cause.REMOVED
        running = None
        try:
            async with asyncio.timeout(None) as scope, aclosing(engine.generate(leg)) as chunks:
                with self.legs.run(worker, scope, now_s=self.now_s()) as running:
                    async for chunk in chunks:
                        running.last_s = self.now_s()
                        self.dispatcher.reached(worker)
                        take(chunk)
        except TimeoutError:
            if running is None or running.cause is None:
                raise
            return running.cause
        except EngineUnavailableError as e:
            self.dispatcher.lost(worker)
            return _explained(Cause.UNAVAILABLE, worker, leg, e)
        except EngineLostError as e:
            self.dispatcher.lost(worker)
            self.leases.drop_from(worker)
            return _explained(Cause.LOST, worker, leg, e)
        except EngineFailedError as e:
            return _explained(Cause.FAILED, worker, leg, e)
        return None

    def _next_leg(self, ticket: Ticket, *, kv: KvHandle | None) -> Leg:
        generation = ticket.generation
        number = generation.begin_leg()
        prompt, sampling = generation.leg_prompt(), generation.leg_sampling()
        return Leg(id=f"{ticket.id}#{self.run_id}.{number}", prompt=prompt, sampling=sampling, kv=kv)

    def _take_handle(self, ticket: Ticket, worker: str) -> KvHandle | None:
        found = self.leases.take(ticket.id, pool=self.dispatcher.pool, decode=worker, now_s=self.now_s())
        if isinstance(found, Refusal):
            self.metrics.count("pearl_router_kv_handles_total", result=found.value)
            return None
        self.metrics.count("pearl_router_kv_handles_total", result="dispatched")
        return found

    def _role(self, worker: str) -> Role:
        known = self.dispatcher.pool.state.by_id.get(worker)
        return known.role if known else Role.INACTIVE

    def _note_answer(self, ticket: Ticket, chunk: Chunk) -> None:
        if chunk.token_ids:
            ticket.timer.answered(self.now_s(), chunk.prompt)

    def _note_dispatch(self, ticket: Ticket, choice: Choice) -> None:
        self.sessions.note(ticket.call.session, choice.worker)
        self.metrics.count("pearl_router_legs_total", path=choice.path.value)
        if choice.degraded:
            self.metrics.count("pearl_router_degraded_legs_total")
        log(
            "dispatched",
            level=logging.DEBUG,
            request_id=ticket.id,
            worker=choice.worker,
            path=choice.path.value,
            epoch=self.dispatcher.pool.epoch,
            tokens=len(ticket.generation.token_ids),
        )

    def _note_interruption(self, ticket: Ticket, choice: Choice, cause: Cause) -> None:
        ticket.interruptions += 1
        self.metrics.count("pearl_router_interruptions_total", cause=cause.value)
        log(
            "interrupted",
            request_id=ticket.id,
            worker=choice.worker,
            path=choice.path.value,
            cause=cause.value,
            tokens=len(ticket.generation.token_ids),
        )


def _explained(cause: Cause, worker: str, leg: Leg, error: Exception) -> Cause:
    log("leg_failed", level=logging.WARNING, leg=leg.id, worker=worker, cause=cause.value, error=str(error))
    return cause
