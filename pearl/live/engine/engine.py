"""A worker's engine: legs while it is active, and transitions that leave it consistent or report it unfit.

Every leg has one weight version from its first token to its last: an update ends the legs that are open, with the
tokens they have, and the router resumes them. So the version of each token is known without asking the engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pearl.core.cluster import Status
from pearl.core.telemetry import EngineRecord, StepRecord
from pearl.errors import PearlError
from pearl.live.engine.backend import Backend, Counters, Output
from pearl.live.engine.config import EngineConfig
from pearl.live.engine.handover import Roles, make_handle, open_handle
from pearl.live.protocol import Chunk, EngineUnavailableError, FinishReason, Leg

SETTLE_POLL_S = 0.1
"""Between looks at a pause under way; an engine's step takes less."""


class UnfitError(PearlError):
    """A transition failed half-way: the worker must leave the pool, and its engine must be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionLimits:
    """How long the parts of a transition may take, in seconds."""

    legs_s: float = 0.0
    """Open legs may finish on their own for this long; then they end with the tokens they have."""
    kept_s: float = 5.0
    """KV caches kept for others may be pulled for this long; then they are given up. At least the router's margin:
    a handle that it dispatched is pulled by then, and it dispatches none of a worker in transition."""
    total_s: float = 120.0
    """Past this the transition has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What a worker says of itself."""

    worker: str
    pid: int
    """Of the process that holds the engine; vLLM's own are its children."""
    status: Status
    weight_version: int
    asleep: bool
    open_legs: int
    unfit: str | None
    """Why it cannot serve again; None while it is fit."""
    counters: Counters


@dataclass(slots=True, kw_only=True)
class Engine:
    """One engine over a backend. It starts inactive; `admit` lets it serve. Every operation is idempotent."""

    config: EngineConfig
    backend: Backend
    roles: Roles
    wall_s: Callable[[], float] = time.time
    """Wall clock, for limits that other hosts read."""
    status: Status = field(default=Status.INACTIVE, init=False)
    weight_version: int = field(init=False)
    asleep: bool = field(default=False, init=False)
    unfit: str | None = field(default=None, init=False)
    _weights: Path = field(init=False)
    _open: set[str] = field(default_factory=set, init=False)
    _aborted: set[str] = field(default_factory=set, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self.weight_version = self.config.weight_version
        self._weights = self.config.model
        self._idle.set()

    # Legs

    async def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        """Chunks of the leg; see `EngineClient`. Refused with `EngineUnavailableError` unless active."""
        if self.status is not Status.ACTIVE:
            raise EngineUnavailableError(f"{self.config.worker} is {self.unfit or self.status.value}")
        async with aclosing(self._run(leg)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def probe(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        """The same for a canary, before the worker is active. Refused where it is asleep, in transition or unfit."""
        if self.asleep or self.unfit or self.status is Status.TRANSITIONING:
            raise EngineUnavailableError(f"{self.config.worker} is {self.unfit or 'asleep or in transition'}")
        async with aclosing(self._run(leg)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def abort(self, legs: Collection[str]) -> None:
        """End these legs with the tokens they have; those that are not open are skipped."""
        here = self._open.intersection(legs)
        self._aborted |= here
        if here:
            await self.backend.abort(here)

    async def _run(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        version, began_s = self.weight_version, self.wall_s()
        sampling = replace(leg.sampling, max_tokens=1, min_tokens=0) if leg.keep_kv else leg.sampling
        outputs = self.backend.generate(leg.id, leg.prompt, sampling, self._kv_params(leg))
        self._open.add(leg.id)
        self._idle.clear()
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    if self.weight_version != version or leg.id in self._aborted:
                        yield self._cut(output, version, leg)
                        return
                    yield self._chunk(output, version=version, began_s=began_s)
        finally:
            self._aborted.discard(leg.id)
            self._open.discard(leg.id)
            if not self._open:
                self._idle.set()

    def _cut(self, output: Output, version: int, leg: Leg) -> Chunk:
        """The last chunk of an interrupted leg. Tokens that may be of newer weights are dropped, and made again."""
        if leg.id in self._aborted and self.weight_version == version:
            ended = replace(output, finish=output.finish or FinishReason.ABORT, kv_params=None)
            return self._chunk(ended, version=version, began_s=0.0)
        return Chunk(weight_version=version, finish=FinishReason.ABORT)

    def _kv_params(self, leg: Leg) -> Mapping[str, Any] | None:
        if leg.keep_kv:
            return self.roles.keep_params()
        if leg.kv is not None:
            return open_handle(leg.kv, weight_version=self.weight_version, now_s=self.wall_s())
        return None

    def _chunk(self, output: Output, *, version: int, began_s: float) -> Chunk:
        handle = None
        if output.kv_params and self.roles.names_kept(output.kv_params):
            handle = make_handle(
                output.kv_params,
                worker=self.config.worker,
                weight_version=version,
                now_s=began_s,
                keep_s=self.config.kv_lease_s - self.config.kv_margin_s,
            )
        return Chunk(
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            weight_version=version,
            finish=output.finish,
            kv=handle,
            prompt=output.prompt,
        )

    # Status

    async def admit(self) -> None:
        """Serve from now on. Raises `EngineUnavailableError` where it is asleep or unfit."""
        async with self._changing:
            if self.asleep or self.unfit:
                raise EngineUnavailableError(f"{self.config.worker} is {self.unfit or 'asleep'}")
            self.status = Status.ACTIVE

    async def drain(self, grace_s: float) -> int:
        """Serve no more; returns the number of legs that did not finish in `grace_s` seconds and were cut short."""
        async with self._changing:
            if self.status is Status.INACTIVE:
                return 0
            self.status = Status.TRANSITIONING
            try:
                await self._wait_idle(grace_s)
            finally:
                self.status = Status.INACTIVE
            cut = frozenset(self._open)
            await self.abort(cut)
            return len(cut)

    def report(self) -> EngineReport:
        """What this worker says of itself."""
        return EngineReport(
            worker=self.config.worker,
            pid=os.getpid(),
            status=self.status,
            weight_version=self.weight_version,
            asleep=self.asleep,
            open_legs=len(self._open),
            unfit=self.unfit,
            counters=self.backend.counters(),
        )

    # Telemetry

    def describe(self) -> EngineRecord:
        """What this engine is, for the Runtime Tracker; `at_s` on the wall clock."""
        facts = self.backend.facts()
        return EngineRecord(
            worker=self.config.worker,
            model=self.config.model.name,
            gpu=facts.gpu,
            kv_tokens=facts.kv_tokens,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            at_s=self.wall_s(),
            tensor_parallel=self.config.tensor_parallel,
            chunk_tokens=self.config.max_batched_tokens,
            max_sequences=self.config.max_sequences,
        )

    def take_steps(self) -> tuple[StepRecord, ...]:
        """Steps since the last call, oldest first, the newest where they are too many; `at_s` on the wall clock."""
        return tuple(
            StepRecord(
                worker=self.config.worker,
                seconds=step.seconds,
                at_s=step.ended_unix_s,
                batch=step.batch,
                context_tokens=step.context_tokens,
                prompts=step.prompts,
                new_tokens=step.new_tokens,
                cached_tokens=step.cached_tokens,
            )
            for step in self.backend.take_steps()
        )

    # Transitions

    async def update_weights(self, *, version: int, directory: Path, limits: TransitionLimits) -> None:
        """Serve the weights in `directory` as `version`, from the next leg on. Raises `UnfitError` where it fails.

        Order: legs end, kept KV is pulled or given up, weights, prefix cache, version, serve again.
        """
        async with self._changing:
            if version == self.weight_version:
                return
            if version < self.weight_version:
                raise EngineUnavailableError(
                    f"{self.config.worker} has weights {self.weight_version}, newer than {version}"
                )
            if self.asleep:
                raise EngineUnavailableError(f"{self.config.worker} is asleep: wake it first")
            async with self._transition(f"update to weights {version}", limits):
                await self._quiesce(limits)
                await self.backend.reload_weights(directory, version)
                await self._forget_prefixes()
                self.weight_version, self._weights = version, directory
                await self.backend.resume()

    async def sleep(self, limits: TransitionLimits) -> int:
        """End all legs and give memory back; returns the bytes freed. Inactive from then on, also after waking."""
        async with self._changing:
            if self.asleep:
                return 0
            async with self._transition("falling asleep", limits, after=Status.INACTIVE):
                await self._quiesce(limits)
                freed = await self.backend.sleep()
                self.asleep = True
            return freed

    async def wake(self, limits: TransitionLimits) -> None:
        """Take the memory again; inactive until admitted. Raises `UnfitError` where it fails."""
        async with self._changing:
            if not self.asleep:
                return
            async with self._transition("waking", limits, after=Status.INACTIVE):
                await self.backend.wake(self._weights)
                await self._forget_prefixes()
                await self.backend.resume()
                await self.backend.register_anew()
                self.asleep = False

    @asynccontextmanager
    async def _transition(
        self, what: str, limits: TransitionLimits, *, after: Status | None = None
    ) -> AsyncIterator[None]:
        """A change within its limit, then the status before it, or `after`. Any end but a good one leaves it unfit."""
        if self.unfit:
            raise UnfitError(f"{self.config.worker} is unfit: {self.unfit}")
        before, self.status = self.status, Status.TRANSITIONING
        try:
            async with asyncio.timeout(limits.total_s):
                yield
        except BaseException as e:
            self.status = Status.INACTIVE
            self.unfit = f"{what} failed: {type(e).__name__} {e}".strip()
            if isinstance(e, Exception):
                raise UnfitError(f"{self.config.worker}: {self.unfit}") from e
            raise
        self.status = after or before

    async def _quiesce(self, limits: TransitionLimits) -> None:
        """No leg open, no KV block in use, none to come."""
        await self._wait_idle(limits.legs_s)
        await self.abort(self._open)
        pausing = asyncio.ensure_future(self.backend.pause())
        try:
            await self._settle(pausing, limits.kept_s)
        finally:
            pausing.cancel()

    async def _settle(self, pausing: asyncio.Future[None], kept_s: float) -> None:
        """Wait for the pause. A leg that reaches the backend only after the first abort would hold it: abort again."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + kept_s
        while not pausing.done():
            await asyncio.wait({pausing}, timeout=min(SETTLE_POLL_S, max(0.0, give_up_s - loop.time())))
            await self.abort(self._open)
            if loop.time() >= give_up_s:
                await self.backend.release_kept()
                give_up_s = loop.time() + SETTLE_POLL_S
        await pausing

    async def _forget_prefixes(self) -> None:
        """Cached prefixes are of other weights, or of memory that was given back."""
        if not await self.backend.reset_prefix_cache():
            raise PearlError("the prefix cache could not be reset: KV blocks are still in use")

    async def _wait_idle(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return

    async def aclose(self) -> None:
        """End the engine and its processes."""
        self.status = Status.INACTIVE
        self.unfit = self.unfit or "stopped"
        await asyncio.to_thread(self.backend.shutdown)
