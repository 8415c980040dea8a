"""Legs that run, so that they can be interrupted from outside and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why a leg ended before its request did."""

    UNAVAILABLE = "unavailable"
    LOST = "lost"
    FAILED = "failed"
    CUT = "cut"
    """The stream ended cleanly, without a final marker."""
    ABORTED = "aborted"
    STALLED = "stalled"
    DRAINED = "drained"
    REMOVED = "removed"
    """The worker is no longer in the pool, serves nothing any more, or listens elsewhere."""
    WEIGHTS = "weights"
    """The worker's weights are older than allowed."""


@dataclass(slots=True, eq=False)
class RunningLeg:
    """One leg on one worker. `last_s` is when its last chunk came, in the router's monotonic seconds."""

    worker: str
    scope: asyncio.Timeout
    last_s: float
    cause: Cause | None = None

    def interrupt(self, cause: Cause) -> None:
        """End the leg at once; the first cause counts."""
        if self.cause is None:
            self.cause = cause
            self.scope.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class Legs:
    """All legs that run."""

    _running: dict[str, set[RunningLeg]] = field(default_factory=dict)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def run(self, worker: str, scope: asyncio.Timeout, *, now_s: float) -> Iterator[RunningLeg]:
        """A leg that runs within `scope`, a timeout that is already entered."""
        leg = RunningLeg(worker, scope, now_s)
        self._running.setdefault(worker, set()).add(leg)
        try:
            yield leg
        finally:
            self._running[worker].discard(leg)
            if not self._running[worker]:
                del self._running[worker]
            self._ended.set()
            self._ended = asyncio.Event()

    def on(self, worker: str) -> frozenset[RunningLeg]:
        """The legs on `worker`."""
        return frozenset(self._running.get(worker, ()))

    def workers(self) -> frozenset[str]:
        """Workers on which legs run."""
        return frozenset(self._running)

    def interrupt(self, worker: str, cause: Cause) -> int:
        """Interrupt every leg on `worker`; how many."""
        legs = self.on(worker)
        for leg in legs:
            leg.interrupt(cause)
        return len(legs)

    def interrupt_stalled(self, *, before_s: float) -> None:
        """Interrupt the legs whose last chunk came before `before_s`."""
        for legs in tuple(self._running.values()):
            for leg in tuple(legs):
                if leg.last_s < before_s:
                    leg.interrupt(Cause.STALLED)

    async def idle(self, worker: str) -> None:
        """Wait until no leg runs on `worker`."""
        while worker in self._running:
            await self._ended.wait()
