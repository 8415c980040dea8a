"""A live executor over fakes, in virtual time; and small constructors of its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.core.plan import Activate, AdmitGroup, Borrow, ChangeRole, Deactivate, Drain, Return, Start, Step, Stop
from pearl.core.telemetry import TransitionRecord
from pearl.live.control.executor import LiveExecutor
from pearl.live.control.limits import ControlLimits
from pearl.live.control.progress import Phase, Progress
from pearl.live.weights import WeightRef
from tests.live.control.fakes import FakeWorld, now_s, state_of, virtually

LIMITS = ControlLimits()
C, P, D, IDLE = Role.COLOCATED, Role.PREFILL, Role.DECODE, Role.INACTIVE


def worker(name: str, role: Role = C, zone: Zone = Zone.RESERVED, **fields: Any) -> Worker:
    status = Status.INACTIVE if role is IDLE else Status.ACTIVE
    return Worker(**({"id": name, "node": "n", "zone": zone, "role": role, "status": status} | fields))


def new(name: str, zone: Zone = Zone.PREEMPTIBLE, **fields: Any) -> Worker:
    return worker(name, IDLE, zone, started=False, **fields)


def asleep(name: str) -> Worker:
    return worker(name, IDLE, Zone.OVERLAP)


def weights(version: int) -> WeightRef:
    return WeightRef(version=version, directory=Path(f"w{version}"))


def drain(name: str, deadline_s: float | None = None) -> Step:
    return Drain(worker=name, estimated_s=0, deadline_s=deadline_s)


def change(name: str, before: Role, after: Role) -> Step:
    return ChangeRole(worker=name, before=before, after=after, estimated_s=0)


def start(name: str, role: Role = C) -> Step:
    return Start(worker=name, role=role, estimated_s=0)


def admit(*names: str) -> Step:
    return AdmitGroup(workers=names, estimated_s=0)


def borrow(name: str, role: Role = C) -> Step:
    return Borrow(worker=name, role=role, estimated_s=0)


def give_back(name: str) -> Step:
    return Return(worker=name, estimated_s=0)


def activate(name: str, role: Role = C) -> Step:
    return Activate(worker=name, role=role, estimated_s=0)


def deactivate(name: str) -> Step:
    return Deactivate(worker=name, estimated_s=0)


def stop(name: str) -> Step:
    return Stop(worker=name, estimated_s=0)


def reclaim(*names: str, within_s: float | None = None) -> Event:
    return Event(kind=EventKind.RECLAIM_NOTICE, workers=names, within_s=within_s)


@dataclass
class Rig:
    world: FakeWorld
    max_staleness: int = 0
    newest: WeightRef | None = None
    told: list[Progress] = field(default_factory=list)
    measured: list[TransitionRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = LiveExecutor(
            ledger=self.world.ledger,
            fleet=self.world.fleet,
            dispatch=self.world.dispatch,
            limits=LIMITS,
            now_s=asyncio.get_running_loop().time,
            raise_event=self.world.raise_event,
            tell=self.told.append,
            telemetry=self.measured.append,
            weights=self.newest,
            max_staleness=self.max_staleness,
        )

    def plan(self, *steps: Step, id: str = "p1") -> None:
        self.executor.begin_plan(id)
        for step in steps:
            self.executor.apply(step)

    async def carry_out(self, *steps: Step, id: str = "p1") -> None:
        self.plan(*steps, id=id)
        await self.executor.settle()

    def now(self, name: str) -> tuple[Role, Status]:
        found = self.world.now(name)
        return found.role, found.status

    def phases(self, step: Step) -> list[Phase]:
        return [progress.phase for progress in self.told if progress.step == step]

    def why(self, step: Step) -> str:
        return [progress.because for progress in self.told if progress.step == step][-1]

    def kinds(self) -> list[str]:
        return [record.kind.value for record in self.measured]

    def lost(self) -> list[tuple[str, ...]]:
        return [event.workers for event in self.world.events if event.kind is EventKind.GPUS_LOST]


def rigged(
    test: Callable[[Rig], Coroutine[Any, Any, None]],
    *workers: Worker,
    versions: Mapping[str, int] | None = None,
    newest: WeightRef | None = None,
    oldest: int = 0,
    max_staleness: int = 0,
) -> None:
    """Run `test` over these workers, in virtual time."""

    async def main() -> None:
        world = FakeWorld(
            state=state_of(workers),
            versions=versions or {},
            latest=newest.version if newest else 0,
            oldest=oldest,
        )
        rig = Rig(world, newest=newest, max_staleness=max_staleness)
        await test(rig)
        await rig.executor.settle()
        await rig.executor.aclose()

    virtually(main())


async def at(time_s: float) -> None:
    """Wait until that time of the test."""
    await asyncio.sleep(max(0.0, time_s - now_s()))
