from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.core.cluster import ClusterState, Role, Zone
from pearl.core.telemetry import EngineRecord, StepRecord, Telemetry
from pearl.live.control.clock import ControlClock
from pearl.live.control.gathering import Gathering
from pearl.live.control.ledger import Record
from pearl.live.control.pipeline import Batch, Batches
from pearl.live.control.shelf import WeightShelf
from pearl.live.control.store import AddTelemetry, ControlStore
from pearl.live.protocol import EngineLostError
from pearl.live.weights import WeightStore
from pearl.tracking.jsonl import telemetry_lines
from tests.live.control.rig import idle, worker


@dataclass(eq=False)
class FakeEngine:
    """As much of a worker as telemetry asks for."""

    name: str
    lost: bool = False
    described: int = 0
    took: list[StepRecord] = field(default_factory=list)

    async def describe(self) -> EngineRecord:
        if self.lost:
            raise EngineLostError(self.name)
        self.described += 1
        return EngineRecord(worker=self.name, model="m", gpu="g", kv_tokens=1, kv_bytes_per_token=1.0, at_s=0.0)

    async def steps(self) -> tuple[StepRecord, ...]:
        if self.lost:
            raise EngineLostError(self.name)
        took, self.took = self.took, []
        return tuple(took)


def _step(name: str) -> StepRecord:
    return StepRecord(worker=name, seconds=0.01, at_s=1.0, batch=2, context_tokens=10)


def _gathering(store: ControlStore | None = None) -> Gathering:
    return Gathering(
        clock=ControlClock(unix_s=lambda: 100.0, monotonic_s=lambda: 0.0), store=store or ControlStore(None)
    )


def _attached(gathering: Gathering, batches: Batches) -> list[Telemetry]:
    heard: list[Telemetry] = []
    gathering.attach(batches=lambda: batches, sink=heard.extend)
    return heard


def test_what_comes_before_somebody_listens_is_kept() -> None:
    gathering = _gathering()
    gathering.send(_step("a"))
    gathering.send(_step("b"))
    heard = _attached(gathering, Batches())
    gathering.send(_step("c"))
    assert [record.worker for record in heard if isinstance(record, StepRecord)] == ["a", "b", "c"]


def test_engines_are_described_once_and_polled_each_time() -> None:
    async def work() -> None:
        gathering = _gathering()
        heard = _attached(gathering, Batches(open=Batch(step=7, trajectories=3, since_s=0.0)))
        engine, lost = FakeEngine("a", took=[_step("a")]), FakeEngine("b", lost=True)
        engines: dict[str, Any] = {"a": engine, "b": lost, "c": object()}
        for _ in range(3):
            await gathering.poll(engines)
        assert [type(record).__name__ for record in heard] == ["EngineRecord", "StepRecord"]
        assert heard[1].step == 7  # type: ignore[union-attr]  # a step record has one
        engines["a"] = FakeEngine("a")
        lost.lost = False
        await gathering.poll(engines)
        assert (engine.described, engines["a"].described, lost.described) == (1, 1, 1)
        assert gathering.trajectories() == 3

    asyncio.run(work())


def test_the_store_is_read_back() -> None:
    store = ControlStore(None)
    store.write(*(AddTelemetry(line=line.rstrip("\n")) for line in telemetry_lines([_step("a"), _step("b")])))
    assert [record.worker for record in _gathering(store).restored if isinstance(record, StepRecord)] == ["a", "b"]


def _snapshots(root: Path, count: int) -> WeightStore:
    store = WeightStore(root=root)
    for version in range(1, count + 1):
        with store.publish(version) as directory:
            (directory / "config.json").write_text("{}")
            (directory / "model.safetensors").write_bytes(b"")
    return store


def test_old_weights_go_once_no_worker_wants_them(tmp_path: Path) -> None:
    async def work() -> None:
        store = _snapshots(tmp_path, 6)
        shelf = WeightShelf(store=store, keep=2)
        task = asyncio.create_task(shelf.run())
        sleeper = worker("s", Role.INACTIVE, zone=Zone.OVERLAP)
        state = ClusterState(workers=(worker("a"), sleeper, idle("i")))

        async def after(versions: dict[str, int], *, oldest: int, left: tuple[int, ...]) -> None:
            shelf.look(Record(state=state, versions=versions, latest=6, oldest=oldest))
            await asyncio.sleep(0.05)
            async with asyncio.timeout(5):
                while store.versions() != left:
                    await asyncio.sleep(0.01)

        await after({"a": 6}, oldest=5, left=(1, 2, 3, 4, 5, 6))  # the sleeper wakes up with the model's own
        await after({"a": 6, "s": 3}, oldest=5, left=(3, 4, 5, 6))
        await after({"a": 6, "s": 6}, oldest=6, left=(5, 6))
        task.cancel()

    asyncio.run(work())
