"""The Pipeline Scheduler: batches of trajectories, one at a time, as staleness and training allow.

Batch k is trained on once it is rolled out, and makes weight version k + 1. It may begin when version k - s is out, s
being the allowed staleness: 0 makes rollout and training alternate. `Batches` is the pure part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from pearl.core.event import Event, EventKind
from pearl.core.ports import Clock
from pearl.core.telemetry import BatchRecord
from pearl.errors import PearlError
from pearl.live.control.documents import compact
from pearl.live.control.ports import Observer
from pearl.live.control.store import ControlStore, Fact, SetFact


class StaleError(PearlError):
    """A call that something newer has overtaken, or that another one is in the way of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch that is open."""

    step: int
    trajectories: int
    since_s: float
    """On the controller's clock, which goes on across restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A batch that ended; `predicted_s` is None where nothing was predicted for it."""

    step: int
    makespan_s: float
    predicted_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a batch waits for."""

    max_staleness: int = 0
    """Weight versions by which the oldest weights that serve a batch may lag its step."""
    synchronous: bool = True
    """Whether rollout waits while training runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Which batch is open, and which was the last that ended."""

    open: Batch | None = None
    last: Finished | None = None

    @property
    def step(self) -> int:
        """The rollout step that telemetry belongs to now."""
        if self.open is not None:
            return self.open.step
        return self.last.step if self.last is not None else 0

    def check(self, step: int) -> None:
        """Raises `StaleError` unless batch `step` may be the next, or is open."""
        if self.open is not None and self.open.step != step:
            raise StaleError(f"batch {self.open.step} is open: finish it before batch {step} begins")
        if self.last is not None and step <= self.last.step:
            raise StaleError(f"batch {step} is over: the last that ended is batch {self.last.step}")

    def begun(self, batch: Batch) -> Batches:
        """Once `batch` began."""
        return replace(self, open=batch)

    def finished(self, step: int, *, at_s: float, predicted_s: float | None) -> Batches:
        """Once the open batch ended; the same again changes nothing. Raises `StaleError` for another batch."""
        if self.last is not None and self.last.step == step:
            return self
        if self.open is None or self.open.step != step:
            raise StaleError(f"batch {step} is not open")
        makespan_s = max(at_s - self.open.since_s, 0.0)
        return Batches(last=Finished(step=step, makespan_s=makespan_s, predicted_s=predicted_s))


def waits_for(step: int, rules: Rules, *, latest: int, training: bool) -> str | None:
    """What batch `step` has to wait for; None where it may begin."""
    needed = step - rules.max_staleness
    if latest < needed:
        return f"weights {needed} (newest: {latest}), staleness being at most {rules.max_staleness}"
    if rules.synchronous and training:
        return "the training step that runs"
    return None


class PipelineScheduler:
    """Begins and ends batches; on the event loop alone."""

    def __init__(
        self,
        *,
        rules: Rules,
        store: ControlStore,
        observer: Observer,
        clock: Clock,
        latest: Callable[[], int],
        training: Callable[[], bool],
        raise_event: Callable[[Event], int],
        record: Callable[[BatchRecord], None],
    ) -> None:
        """`latest` is the newest weight version, `training` whether training runs; call `look` when either changes."""
        self._rules = rules
        self._store = store
        self._observer = observer
        self._clock = clock
        self._latest = latest
        self._training = training
        self._raise_event = raise_event
        self._record = record
        self._moved = asyncio.Event()
        self.batches = store.fact_as(Fact.BATCH, Batches) or Batches()

    def look(self) -> None:
        """Something that batches wait for may have come."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def begin(self, *, step: int, trajectories: int, deadline_s: float) -> Batch:
        """Begin a batch as soon as it may; the same again is the same batch.

        Raises `StaleError`, and `TimeoutError`, which says what it waits for, at the deadline.
        """
        until_s = asyncio.get_running_loop().time() + deadline_s
        while True:
            self.batches.check(step)
            if self.batches.open is not None:
                return self.batches.open
            why = waits_for(step, self._rules, latest=self._latest(), training=self._training())
            if why is None:
                return self._begin(step, trajectories)
            try:
                async with asyncio.timeout_at(until_s):
                    await self._moved.wait()
            except TimeoutError:
                raise TimeoutError(f"batch {step} still waits for {why}") from None

    def _begin(self, step: int, trajectories: int) -> Batch:
        batch = Batch(step=step, trajectories=trajectories, since_s=self._clock.now_s())
        self._become(self.batches.begun(batch))
        self._raise_event(Event(kind=EventKind.BATCH_STARTED))
        return batch

    def finish(self, *, step: int) -> Finished:
        """End the batch, and let the profile be refitted; the same again is the same answer.

        Raises `StaleError`.
        """
        before, now_s = self.batches, self._clock.now_s()
        after = before.finished(step, at_s=now_s, predicted_s=None)
        if after is not before:
            measured = self._observer.batch_ended(now_s)
            predicted_s = measured.predicted_s if measured else None
            after = before.finished(step, at_s=now_s, predicted_s=predicted_s)
            self._become(after)
            if measured is not None:
                self._record(replace(measured, step=step))
            self._raise_event(Event(kind=EventKind.PROFILE_UPDATED))
            self.look()
        assert after.last is not None
        return after.last

    def _become(self, batches: Batches) -> None:
        self._store.write(SetFact(fact=Fact.BATCH, document=compact(asdict(batches))))
        self.batches = batches
