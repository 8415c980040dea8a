"""Fakes of what the control plane drives: workers, the fleet that makes them, the router. No engine runs here.

Time is virtual (`virtually`): a wait of 300 s takes none, and `loop.time()` is the clock of the test.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.core.cluster import ClusterState, Status, Worker
from pearl.core.event import Event
from pearl.live.control.fleet import Node
from pearl.live.control.ledger import Ledger, Record
from pearl.live.engine.backend import Counters
from pearl.live.engine.engine import EngineReport, TransitionLimits, UnfitError
from pearl.live.protocol import EngineFailedError, EngineLostError, EngineUnavailableError
from pearl.live.router.pool import Pool

FOREVER = float("inf")
"""A delay after which a call never answers; whoever asks must have a limit."""


# Virtual time


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping, moves the clock of its loop on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("the test waits for something that nobody will do")
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing is left to do."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def virtually(work: Coroutine[Any, Any, Any], *, within_s: float = 1e6) -> Any:
    """Run `work` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(work, within_s))


def now_s() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


# Workers


@dataclass(eq=False)
class FakeWorker:
    """A `WorkerHandle` that does what an engine's statuses allow, after `delays[method]` seconds.

    `failures[method]` is raised by that method, each time; `once` by the next call alone. `dead` is a process that has
    gone. `calls` are the methods asked for, in order.
    """

    name: str
    version: int = 0
    status: Status = Status.INACTIVE
    asleep: bool = False
    unfit: str | None = None
    dead: bool = False
    running: bool = False
    """Whether an engine runs in it."""
    open_legs: int = 0
    delays: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    once: dict[str, Exception] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    asked: list[tuple[str, float]] = field(default_factory=list)
    """Method and virtual time of each call."""
    ids: set[str] = field(default_factory=set)
    cut_by_stop: Callable[[], None] = lambda: None

    async def start(self, timeout_s: float) -> EngineReport:
        async with asyncio.timeout(timeout_s):
            await self._called("start")
        self.running = True
        return self._report()

    async def admit(self) -> None:
        await self._called("admit")
        if self.asleep or self.unfit or not self.running:
            raise EngineUnavailableError(f"{self.name} is {self.unfit or 'asleep or not started'}")
        self.status = Status.ACTIVE

    async def drain(self, grace_s: float) -> int:
        await self._called("drain")
        self.status = Status.INACTIVE
        cut, self.open_legs = self.open_legs, 0
        return cut

    async def update_weights(self, *, version: int, directory: Path, limits: TransitionLimits) -> None:
        await self._transition("update_weights", limits)
        if self.asleep:
            raise EngineUnavailableError(f"{self.name} is asleep: wake it first")
        if version < self.version:
            raise EngineUnavailableError(f"{self.name} has weights {self.version}, newer than {version}")
        self.version = version

    async def sleep(self, limits: TransitionLimits) -> int:
        await self._transition("sleep", limits)
        self.status, self.asleep = Status.INACTIVE, True
        return 1 << 20

    async def wake(self, limits: TransitionLimits) -> None:
        await self._transition("wake", limits)
        self.status, self.asleep = Status.INACTIVE, False

    async def report(self) -> EngineReport:
        await self._called("report")
        if not self.running:
            raise EngineUnavailableError(f"{self.name} has not started")
        return self._report()

    async def canary(self, *, id: str, timeout_s: float) -> None:
        await self._probe("canary", id, timeout_s)

    async def canary_from(self, prefill: FakeWorker, *, id: str, timeout_s: float) -> None:
        if prefill.dead or prefill.asleep or not prefill.running:
            raise EngineLostError(f"{prefill.name} cannot be probed")
        await self._probe("canary_from", id, timeout_s)

    async def stop(self) -> None:
        self.calls.append("stop")
        self.asked.append(("stop", now_s()))
        await asyncio.sleep(self.delays.get("stop", 0.0))
        if error := self.once.pop("stop", None) or self.failures.get("stop"):
            raise error
        self.dead, self.running, self.status = True, False, Status.INACTIVE
        self.cut_by_stop()

    async def _transition(self, method: str, limits: TransitionLimits) -> None:
        try:
            async with asyncio.timeout(limits.total_s):
                await self._called(method)
        except TimeoutError:
            self.unfit = f"{method} failed: TimeoutError"
            raise UnfitError(f"{self.name}: {self.unfit}") from None

    async def _probe(self, method: str, id: str, timeout_s: float) -> None:
        assert id not in self.ids, "ids of canaries must be new"
        self.ids.add(id)
        try:
            async with asyncio.timeout(timeout_s):
                await self._called(method)
        except TimeoutError:
            raise EngineFailedError(f"{self.name}: no answer to {method}") from None
        if self.asleep or not self.running:
            raise EngineUnavailableError(f"{self.name} is asleep")

    async def _called(self, method: str) -> None:
        self.calls.append(method)
        self.asked.append((method, now_s()))
        if self.dead:
            raise EngineLostError(f"{self.name} is dead")
        await asyncio.sleep(self.delays.get(method, 0.0))
        if self.dead:
            raise EngineLostError(f"{self.name} is dead")
        if error := self.once.pop(method, None) or self.failures.get(method):
            raise error

    def _report(self) -> EngineReport:
        return EngineReport(
            worker=self.name,
            pid=1,
            status=self.status,
            weight_version=self.version,
            asleep=self.asleep,
            open_legs=self.open_legs,
            unfit=self.unfit,
            counters=Counters(computed=0, cached=0, transferred=0, kv_usage=0.0),
        )


@dataclass(eq=False)
class FakeFleet:
    """A `Fleet` of `FakeWorker`s; `prepare` sets a new one up, `fails` are ids that cannot be launched."""

    prepare: Callable[[FakeWorker], None] = lambda _: None
    fails: dict[str, Exception] = field(default_factory=dict)
    alive: set[str] | None = None
    """Names of the nodes that are alive; None: all."""
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    """The newest of each id, dead ones included."""
    launched: list[str] = field(default_factory=list)

    def launch(self, worker: Worker) -> FakeWorker:
        if worker.id in self.fails:
            raise self.fails[worker.id]
        assert self.find(worker.id) is None, f"an actor named {worker.id} lives"
        made = FakeWorker(name=worker.id, version=0)
        self.prepare(made)
        self.launched.append(worker.id)
        self.workers[worker.id] = made
        return made

    def find(self, worker_id: str) -> FakeWorker | None:
        known = self.workers.get(worker_id)
        return None if known is None or known.dead else known

    async def nodes(self) -> tuple[Node, ...]:
        names = self.alive if self.alive is not None else {"n", "n1", "n2"}
        return tuple(Node(name=name, id=f"id-{name}") for name in sorted(names))

    def adopt(self, state: ClusterState, versions: Mapping[str, int] | None = None) -> None:
        """Workers as they are behind a state: started ones run; idle overlap ones sleep."""
        for worker in state.workers:
            if worker.started:
                self.workers[worker.id] = FakeWorker(
                    name=worker.id,
                    version=(versions or {}).get(worker.id, 0),
                    status=Status.INACTIVE if worker.status is Status.INACTIVE else Status.ACTIVE,
                    asleep=worker.zone == "overlap" and worker.status is Status.INACTIVE,
                    running=True,
                )

    def asked(self) -> Counter[str]:
        """How often each worker was asked for anything, `report` apart."""
        return Counter({name: sum(c != "report" for c in w.calls) for name, w in self.workers.items() if w.calls})


@dataclass(eq=False)
class FakeDispatch:
    """A `Dispatch` whose legs take `busy_s[worker]` seconds to finish by themselves."""

    pool: Pool = field(default_factory=Pool)
    pools: list[Pool] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    emptied: list[tuple[str, float]] = field(default_factory=list)
    """Worker and deadline of each call."""

    def set_pool(self, proposed: Pool) -> Pool:
        self.pool = proposed
        self.pools.append(proposed)
        return proposed

    async def empty(self, worker: str, *, deadline_s: float) -> int:
        self.emptied.append((worker, deadline_s))
        left_s = self.busy_s.get(worker, 0.0)
        await asyncio.sleep(min(left_s, deadline_s))
        self.busy_s.pop(worker, None)
        return int(left_s > deadline_s)


@dataclass(eq=False)
class FakeWorld:
    """A ledger with its workers and a router that follows it; events are applied as the controller does."""

    state: ClusterState
    versions: Mapping[str, int] = field(default_factory=dict)
    latest: int = 0
    oldest: int = 0
    fleet: FakeFleet = field(default_factory=FakeFleet)
    dispatch: FakeDispatch = field(default_factory=FakeDispatch)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        record = Record(state=self.state, versions=self.versions, latest=self.latest, oldest=self.oldest)
        self.ledger = Ledger(record)
        self.ledger.listen(lambda record: void(self.dispatch.set_pool(record.pool())))
        self.fleet.adopt(self.state, self.versions)

    def raise_event(self, event: Event) -> None:
        self.events.append(event)
        self.ledger.happen(event)

    def __getitem__(self, worker_id: str) -> FakeWorker:
        return self.fleet.workers[worker_id]

    def now(self, worker_id: str) -> Worker:
        return self.ledger.state.by_id[worker_id]


def void(_: object) -> None:
    """Drop a value."""


def state_of(workers: Iterable[Worker], *, epoch: int = 0) -> ClusterState:
    return ClusterState(workers=tuple(workers), epoch=epoch)
