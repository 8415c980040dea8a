"""A seat: one worker, the actor behind it, and the jobs that it does one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pearl.core.cluster import Zone
from pearl.core.plan import Step
from pearl.live.control.fleet import WorkerHandle
from pearl.live.control.progress import Phase

_log = logging.getLogger("pearl.control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job came out; `because` says why where it did not end well."""

    phase: Phase
    because: str = ""
    failure: Exception | None = None
    """What the worker raised; None where the job was interrupted, or dealt with its failure itself."""


ENDED = Outcome(phase=Phase.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One thing to do on one worker. `begin` runs at once and may refuse; `work` takes its time."""

    what: str
    begin: Callable[[], str | None]
    """Changes the ledger; returns why there is nothing to do, or None."""
    work: Callable[[], Coroutine[Any, Any, str]] | None = None
    """Returns what went wrong and was dealt with, or nothing; raises where the worker is of no use any more. None:
    all is done when it has begun."""
    over: Callable[[Outcome], None] = lambda _: None
    """Told once, whatever becomes of the job."""
    step: Step | None = None
    """The step of a plan, where it is one."""
    ends: bool = False
    """Whether it ends the engine: nothing is then gained by calling it off."""


@dataclass(slots=True, eq=False)
class Seat:
    """Jobs of one worker never overlap; each begins when the one before it is over."""

    id: str
    zone: Zone
    handle: WorkerHandle | None = None
    """Its actor; None where none lives."""
    up: bool = False
    """Whether its engine runs and passed its canary."""
    asleep: bool = False
    """Whether it confirmed that it freed its memory."""
    joining: bool = False
    """Whether its engine starts, or waits for its group."""
    serve_on: bool = False
    """Whether it is to serve again after the weight update under way."""
    current: Job | None = field(default=None, init=False)
    waiting: deque[Job] = field(default_factory=deque, init=False)
    _task: asyncio.Task[str] | None = field(default=None, init=False)
    _quiet: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _why: str = field(default="", init=False)
    _closed: bool = field(default=False, init=False)
    _abandoned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._quiet.set()

    def submit(self, job: Job) -> bool:
        """Do `job` now, or after those before it; whether it is still to be over."""
        if self._closed:
            job.over(Outcome(phase=Phase.DROPPED, because="the worker is gone"))
            return False
        if self.current is not None or self.waiting:
            self.waiting.append(job)
            return True
        return self._begin(job)

    @property
    def last(self) -> Job | None:
        """The job after which the worker will be idle; None where that has been called off."""
        if self.waiting:
            return self.waiting[-1]
        return None if self._why else self.current

    def interrupt(self, why: str) -> None:
        """Call off the job under way: the worker may be in any state, and whoever calls this says what follows."""
        if self._task is not None and not self._task.done():
            self._why = why
            self._task.cancel()

    def drop_waiting(self, why: str, drop: Callable[[Job], bool] = lambda _: True) -> None:
        """Drop jobs that have not begun."""
        dropped = [job for job in self.waiting if drop(job)]
        self.waiting = deque(job for job in self.waiting if not drop(job))
        for job in dropped:
            job.over(Outcome(phase=Phase.DROPPED, because=why))

    def close(self, why: str) -> None:
        """No more jobs: the worker is gone."""
        self._closed = True
        self.drop_waiting(why)
        self.interrupt(why)

    def abandon(self) -> None:
        """Stop doing jobs and tell nobody, as if this process had been killed."""
        self._closed = self._abandoned = True
        self.waiting.clear()
        self.interrupt("abandoned")

    @property
    def task(self) -> asyncio.Task[str] | None:
        """What does the job under way."""
        return self._task

    async def idle(self) -> None:
        """Wait until nothing is under way and nothing waits."""
        await self._quiet.wait()

    @asynccontextmanager
    async def held(self, what: str) -> AsyncIterator[None]:
        """Keep every other job out. Raises `asyncio.CancelledError` where the worker goes before it is free."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        released = asyncio.Event()

        def begin() -> str | None:
            if begun.cancelled():
                return "nobody waits for it"
            begun.set_result(None)
            return None

        async def work() -> str:
            await released.wait()
            return ""

        self.submit(Job(what=what, begin=begin, work=work, over=lambda _: void(begun.cancel())))
        try:
            await begun
            yield
        finally:
            begun.cancel()
            released.set()

    def _begin(self, job: Job) -> bool:
        why_not = job.begin()
        if why_not is not None:
            job.over(Outcome(phase=Phase.DROPPED, because=why_not))
            return False
        if job.work is None:
            job.over(ENDED)
            return False
        self.current = job
        self._quiet.clear()
        self._task = asyncio.get_running_loop().create_task(job.work(), name=f"{job.what} {self.id}")
        self._task.add_done_callback(partial(self._over, job))
        return True

    def _over(self, job: Job, task: asyncio.Task[str]) -> None:
        outcome = self._outcome(job, task)
        self.current = self._task = None
        self._why = ""
        if self._abandoned:
            return
        job.over(outcome)
        while self.waiting and self.current is None:
            self._begin(self.waiting.popleft())
        if self.current is None:
            self._quiet.set()

    def _outcome(self, job: Job, task: asyncio.Task[str]) -> Outcome:
        if task.cancelled():
            return Outcome(phase=Phase.FAILED, because=self._why or "cancelled")
        error = task.exception()
        if isinstance(error, Exception):
            _log.warning(
                "%s of %s failed: %s", job.what, self.id, describe(error), exc_info=None if str(error) else error
            )
            return Outcome(phase=Phase.FAILED, because=describe(error), failure=error)
        return Outcome(phase=Phase.FAILED, because=task.result()) if task.result() else ENDED


def describe(error: BaseException) -> str:
    """An error in one line."""
    text = str(error)
    return text.splitlines()[0] if text else type(error).__name__


def void(_: object) -> None:
    """Drop a value, where a callback must return none."""
