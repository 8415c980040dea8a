"""Telemetry on its way: from the router's turns and the workers' engine steps to the store and the observer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from pearl.core.ports import Clock
from pearl.core.telemetry import Telemetry
from pearl.live.control.fleet import WorkerHandle
from pearl.live.control.pipeline import Batch, Batches
from pearl.live.control.store import ControlStore, Fact
from pearl.live.protocol import EngineError
from pearl.live.telemetry import Measured, TurnTelemetry, poll_steps
from pearl.tracking.jsonl import parse_telemetry

RESTORED = 50_000
"""Newest records read back at a start: several batches, which is all that is not forgotten, in a second or two."""

Sink = Callable[[tuple[Telemetry, ...]], None]


class Gathering:
    """Begins before the router does, and keeps what comes until there is somebody to tell. On the event loop alone."""

    def __init__(self, *, clock: Clock, store: ControlStore) -> None:
        before = store.fact_as(Fact.BATCH, Batches) or Batches()
        self._clock = clock
        self._batches: Callable[[], Batches] = lambda: before
        self._sink: Sink | None = None
        self._waiting: list[Telemetry] = []
        self._trajectories: int | None = None
        self._described: dict[str, WorkerHandle] = {}
        self.turns = TurnTelemetry(send=self.send, now_s=clock.now_s, step=self._open_step)
        self.restored = parse_telemetry("\n".join(store.telemetry()[-RESTORED:]), file="telemetry")
        """What the store has kept, newest last."""
        self.turns.restore(self.restored, step=self._open_step())

    def attach(self, *, batches: Callable[[], Batches], sink: Sink) -> None:
        """Tell `sink` from now on, and first what has waited for it."""
        self._batches, self._sink = batches, sink
        waiting, self._waiting = self._waiting, []
        self.send(*waiting)

    def send(self, *records: Telemetry) -> None:
        """Pass records on, or keep them until `attach`."""
        if not records:
            return
        if self._sink is None:
            self._waiting += records
        else:
            self._sink(records)

    def trajectories(self) -> int | None:
        """Size of the batch that is open, or was last; None before the first."""
        if batch := self._open:
            self._trajectories = batch.trajectories
        return self._trajectories

    def batch_ends(self) -> None:
        """The batch that is open is about to end: no turn follows those held back."""
        if batch := self._open:
            self.turns.batch_ended(batch.step)

    async def run(self, engines: Callable[[], Mapping[str, WorkerHandle]], *, every_s: float) -> None:
        """Poll the engines that are up, until cancelled."""
        while True:
            await self.poll(engines())
            self.turns.expire()
            await asyncio.sleep(every_s)

    async def poll(self, engines: Mapping[str, WorkerHandle]) -> None:
        """What the engines are, where that is new, and what they did since the last poll."""
        measured = {name: handle for name, handle in engines.items() if isinstance(handle, Measured)}
        offset_s = self._clock.now_s() - time.time()
        for name, handle in engines.items():
            if name in measured and self._described.get(name) is not handle:
                await self._describe(name, handle, measured[name], offset_s)
        self._described = {name: handle for name, handle in self._described.items() if name in engines}
        self.send(*await poll_steps(measured, step=self._batches().step, offset_s=offset_s))

    async def _describe(self, name: str, handle: WorkerHandle, measured: Measured, offset_s: float) -> None:
        try:
            record = await measured.describe()
        except EngineError:
            return
        self._described[name] = handle
        self.send(replace(record, at_s=record.at_s + offset_s))

    @property
    def _open(self) -> Batch | None:
        return self._batches().open

    def _open_step(self) -> int | None:
        return self._open.step if self._open else None
