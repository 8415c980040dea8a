"""What the controller's tests share. The executor is a fake that carries steps out at once, or holds them back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pearl.api import situation_of
from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.decision import Decision
from pearl.core.event import Event
from pearl.core.plan import Step
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.core.telemetry import BatchRecord, Telemetry
from pearl.live.control.clock import ControlClock
from pearl.live.control.controller import Controller, Parts
from pearl.live.control.decider import Rulebook
from pearl.live.control.intake import Intake
from pearl.live.control.lease import Lease, LeaseTable
from pearl.live.control.ledger import Ledger, Record
from pearl.live.control.limits import ControlLimits
from pearl.live.control.metrics import ControlMetrics
from pearl.live.control.pipeline import Rules
from pearl.live.control.progress import Phase, Progress
from pearl.live.control.progress_log import ProgressLog
from pearl.live.control.recovery import Beginning
from pearl.live.control.store import ControlStore
from pearl.live.weights import WeightRef, WeightStore
from pearl.makespan.registry import get_predictor
from pearl.planning import advance, touched
from pearl.policy.load import load_policy
from pearl.scenario.load import load_scenario
from pearl.solving.protocol import Solver
from pearl.solving.registry import resolve


def worker(name: str, role: Role = Role.COLOCATED, status: Status | None = None, **fields: Any) -> Worker:
    known = Status.INACTIVE if role is Role.INACTIVE else Status.ACTIVE
    facts = {"node": "n", "zone": Zone.RESERVED, **fields}
    return Worker(id=name, role=role, status=status or known, **facts)


def idle(name: str, **fields: Any) -> Worker:
    """GPUs without an engine."""
    return worker(name, Role.INACTIVE, started=False, **fields)


def lent(name: str) -> Worker:
    """An overlap worker that serves."""
    return worker(name, zone=Zone.OVERLAP)


def state(*workers: Worker, epoch: int = 1) -> ClusterState:
    return ClusterState(workers=workers, epoch=epoch)


POOL = (*(worker(f"w{i}", Role.PREFILL) for i in range(3)), worker("w3", Role.DECODE))
"""3P1D, which is 3.0 s worse than 1P3D in this world."""


def beginning(*workers: Worker) -> Beginning:
    """Where a controller begins that takes these workers over."""
    return Beginning(record=Record(state=state(*workers)))


@dataclass(eq=False)
class FakeExecutor:
    """Carries steps out as `pearl.planning.advance` says: at once, or, with `held`, not until `let_go`."""

    ledger: Ledger
    tell: Any
    now_s: Any
    held: bool = False
    plans: dict[str, list[Step]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    published: list[WeightRef] = field(default_factory=list)
    slow_s: float = 0.0
    """How long releasing the overlap zone takes."""
    cancelled: int = 0
    closed: bool = False
    _plan: str = ""
    _pending: list[tuple[str, int, Step]] = field(default_factory=list)

    def observe(self) -> ClusterState:
        return self.ledger.state

    def begin_plan(self, plan_id: str) -> None:
        self._plan = plan_id
        self.plans[plan_id] = []

    def apply(self, step: Step) -> None:
        steps = self.plans[self._plan]
        self._pending.append((self._plan, len(steps), step))
        steps.append(step)
        if not self.held:
            self.let_go()

    def let_go(self, most: int = 1 << 30) -> None:
        now, self._pending = self._pending[:most], self._pending[most:]
        for plan, index, step in now:
            for phase in (Phase.BEGAN, Phase.ENDED):
                self.tell(Progress(plan=plan, index=index, step=step, phase=phase, at_s=self.now_s(), seconds=0.5))
            self.ledger.put(*(advance(self.ledger.state.by_id[name], step) for name in touched(step)))

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    def cancel_pending(self) -> None:
        self._pending.clear()

    async def release_overlap(self, *, deadline_s: float, force: bool) -> Any:
        try:
            await asyncio.sleep(min(self.slow_s, deadline_s))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        late = self.slow_s > deadline_s
        if late and not force:
            raise TimeoutError
        mine = [w for w in self.ledger.state.workers if w.zone is Zone.OVERLAP]
        self.ledger.put(*(replace(w, role=Role.INACTIVE, status=Status.INACTIVE) for w in mine))
        names = tuple(w.id for w in mine)
        return SimpleNamespace(released=names, forced=names if late else (), seconds=self.slow_s)

    async def publish(self, ref: WeightRef) -> Any:
        self.published.append(ref)
        await asyncio.sleep(self.slow_s)
        self.ledger.published(latest=ref.version, oldest=max(0, ref.version - 1))
        for w in self.ledger.state.workers:
            self.ledger.synced(w.id, ref.version)
        names = tuple(w.id for w in self.ledger.state.workers)
        return SimpleNamespace(version=ref.version, updated=names, left=(), seconds=self.slow_s)

    async def lose(self, worker_ids: Collection[str]) -> None:
        self.lost += worker_ids

    async def settle(self) -> None:
        return None

    async def aclose(self) -> None:
        self.closed = True


@dataclass(eq=False)
class FixedObserver:
    """A world that nothing is learnt of; predicts every batch to take `predicted_s`."""

    world: Situation
    heard: list[Event] = field(default_factory=list)
    batches: int = 0
    predicted_s: float = 10.0
    calibration_error: float | None = 0.125

    def hear(self, event: Event) -> None:
        self.heard.append(event)

    def record(self, record: Telemetry) -> None: ...

    def batch_began(self, now_s: float, decision: Decision) -> None:
        self.batches += 1

    def decided(self, now_s: float, decision: Decision) -> None: ...

    def batch_ended(self, at_s: float) -> BatchRecord | None:
        counts = self.world.state.counts
        return BatchRecord(predicted_s=self.predicted_s, measured_s=1.0, at_s=at_s, counts=counts)

    def situation(self, state: ClusterState, now_s: float, changes: Mapping[Change, ChangeAge]) -> Situation:
        return replace(self.world, state=state, changes=changes)


@dataclass(eq=False)
class LocalLeases:
    """A `LeaseAuthority` without Ray; `down` makes it unreachable."""

    table: LeaseTable = field(default_factory=LeaseTable)
    down: bool = False

    async def acquire(self, owner: str, lease_s: float, after_term: int) -> Any:
        return self.table.acquire(owner, lease_s, after_term)

    async def renew(self, owner: str, term: int, lease_s: float) -> Any:
        if self.down:
            await asyncio.sleep(3600)
        return self.table.renew(owner, term, lease_s)

    async def release(self, owner: str, term: int) -> None:
        self.table.release(owner, term)


def world(*, workload: bool = True) -> Situation:
    situation = situation_of(load_scenario("small-4gpu"), None)
    return situation if workload else replace(situation, workload=None)


@dataclass(eq=False)
class Rig:
    """One controller over fakes; `directory` holds what the next one finds."""

    controller: Controller
    executor: Any
    observer: FixedObserver
    store: ControlStore
    ledger: Ledger
    leases: LocalLeases
    lease: Lease
    running: asyncio.Task[None] | None = None

    async def start(self, beginning: Beginning) -> None:
        await self.lease.acquire()
        self.controller.start(beginning)
        self.running = asyncio.create_task(self.controller.run())

    async def idle(self) -> None:
        """Wait until every event so far has had its tick."""
        async with asyncio.timeout(20):
            await self.controller.parts.intake.queue.join()

    def decisions(self) -> list[Any]:
        return [entry.document for entry in self.store.decisions(limit=1000)]

    def kill(self) -> None:
        """As if the process had died: nothing is rolled back, the lock of the file is gone."""
        if self.running is not None:
            self.running.cancel()
        self.store.close()

    async def aclose(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        await self.controller.aclose()
        await self.lease.release()
        self.store.close()


def make(directory: Path, beginning: Beginning, **given: Any) -> Rig:
    """A controller that is not started. Call it on a running loop."""
    store = given.get("store") or ControlStore(directory / "controller.db")
    clock, ledger, metrics = ControlClock(), Ledger(beginning.record), ControlMetrics()
    leases = given.get("leases") or LocalLeases()
    lease = Lease(authority=leases, owner=given.get("owner", "a"), lease_s=given.get("lease_s", 30.0))
    intake = Intake(ledger=ledger, store=store, clock=clock, check=lease.check)
    progress = ProgressLog(store=store, metrics=metrics)
    executor = FakeExecutor(ledger=ledger, tell=progress.tell, now_s=clock.now_s, held=given.get("held", False))
    if real := given.get("executes"):
        executor = real(ledger=ledger, intake=intake, progress=progress, clock=clock)
    observer = FixedObserver(world=world(workload=given.get("workload", True)))
    solver: Solver = given.get("solver") or resolve("enumerate")
    rules = Rulebook(policy=load_policy("pearl"), solver=solver, predictor=get_predictor("network"))
    parts = Parts(
        directory=directory,
        store=store,
        ledger=ledger,
        intake=intake,
        progress=progress,
        metrics=metrics,
        executor=executor,
        observer=observer,
        clock=clock,
        lease=lease,
        rules=rules,
        pipeline=given.get("pipeline", Rules(max_staleness=1, synchronous=False)),
        limits=ControlLimits(),
        weights=WeightStore(root=directory / "weights"),
        shadow=given.get("shadow", False),
    )
    return Rig(Controller(parts), executor, observer, store, ledger, leases, lease)


def snapshot(directory: Path, version: int) -> Path:
    """A complete snapshot of weights: nothing reads its numbers here."""
    with WeightStore(root=directory / "weights").publish(version) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"x")
    return WeightStore(root=directory / "weights").get(version).directory


def run(work: Coroutine[Any, Any, Any], limit_s: float = 30.0) -> Any:
    """Run a test's coroutine, which must not hang."""
    return asyncio.run(asyncio.wait_for(work, limit_s))
