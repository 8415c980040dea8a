"""The parts of one control plane, put together in the order in which they need each other.

store, lease ─► gathering ─► router ─► what the workers say ─► ledger ─► executor ─► controller
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from pearl.core.event import Event, EventKind
from pearl.core.ports import Clock
from pearl.core.telemetry import Telemetry
from pearl.core.workload import Training
from pearl.errors import InputError
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.offers import offer, too_few
from pearl.live.control.controller import Controller, Parts
from pearl.live.control.decider import Rulebook
from pearl.live.control.documents import compact
from pearl.live.control.executor import LiveExecutor
from pearl.live.control.fleet import Fleet, Node, WorkerHandle
from pearl.live.control.gathering import Gathering
from pearl.live.control.intake import ClosedError, Intake
from pearl.live.control.lease import Lease
from pearl.live.control.ledger import Ledger, Record
from pearl.live.control.metrics import ControlMetrics
from pearl.live.control.observer import LiveObserver
from pearl.live.control.pipeline import Rules
from pearl.live.control.progress_log import ProgressLog
from pearl.live.control.recovery import Beginning, begin
from pearl.live.control.store import ControlStore, Fact, SetFact
from pearl.live.recording import event_of
from pearl.live.router.service import Router
from pearl.live.weights import WeightRef, WeightStore
from pearl.tracking.forecasters import Forecaster
from pearl.tracking.history import Source

RESTORED_EVENTS = 512
"""Newest events that forecasts are made from after a restart: no forecaster looks further back."""


class LiveFleet(Fleet, Protocol):
    """A fleet that can say which workers of this cluster live, remembered or not, as `pearl.live.fleet.RayFleet`."""

    async def living(self) -> Mapping[str, WorkerHandle]:
        """By worker id."""
        ...


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a control plane stands on."""

    cluster: LiveCluster
    fleet: LiveFleet
    rules: Rulebook
    store: ControlStore
    lease: Lease
    clock: Clock
    token: str | None
    forecaster: Forecaster
    shadow: bool = False


@dataclass(frozen=True, kw_only=True)
class Built:
    """A control plane that has not begun."""

    controller: Controller
    executor: LiveExecutor
    beginning: Beginning
    nodes: tuple[Node, ...]
    """Those alive when the workers were looked at."""
    newest: WeightRef | None
    """Newest weights; None: the model's own."""


async def build(ground: Ground, gathering: Gathering, router: Router) -> Built:
    """Look at the workers, and put the plane together where they stand.

    Raises `InputError` where the nodes offer less than the cluster needs, and `EngineUnavailableError` where Ray does
    not answer.
    """
    cluster, store = ground.cluster, ground.store
    nodes = await ground.fleet.nodes()
    offered = offer(cluster, nodes)
    if store.fact(Fact.RECORD) is None and (faults := too_few(cluster, offered)):
        raise InputError(faults)
    newest = newest_weights(store, WeightStore(root=cluster.weights.root))
    beginning = await begin(
        store,
        ground.fleet,
        offered=offered,
        orphans=await ground.fleet.living(),
        weights=newest,
        epoch=router.pool.epoch,
    )
    ledger = Ledger(_at_weights(beginning.record, newest, cluster.max_staleness))
    _follow(router, ledger)
    parts, executor = _parts(ground, gathering, router, ledger, newest)
    controller = Controller(parts)
    _connect(gathering, controller, executor)
    return Built(controller=controller, executor=executor, beginning=beginning, nodes=nodes, newest=newest)


def newest_weights(store: ControlStore, weights: WeightStore) -> WeightRef | None:
    """The weights that were published last; at the first start the newest in the weight store, which then count so.

    Raises `UsageError` where what was published is not there any more.
    """
    known = store.fact_as(Fact.WEIGHTS, WeightRef)
    if known is not None:
        return weights.check(known)
    if store.fact(Fact.RECORD) is not None:
        return None
    newest = weights.latest()
    if newest is not None:
        document = compact({"version": newest.version, "directory": str(newest.directory)})
        store.write(SetFact(fact=Fact.WEIGHTS, document=document))
    return newest


def _at_weights(record: Record, newest: WeightRef | None, max_staleness: int) -> Record:
    """The record at the weights that were accepted, also where the controller ended before it said so."""
    if newest is None or newest.version <= record.latest:
        return record
    oldest = max(record.oldest, newest.version - max_staleness)
    return replace(record, latest=newest.version, oldest=oldest)


def _follow(router: Router, ledger: Ledger) -> None:
    """The router has the ledger's pool from now on; it hears of changes before anybody else."""

    def set_pool(record: Record) -> None:
        router.set_pool(record.pool())

    set_pool(ledger.record)
    ledger.listen(set_pool)


def _parts(
    ground: Ground, gathering: Gathering, router: Router, ledger: Ledger, newest: WeightRef | None
) -> tuple[Parts, LiveExecutor]:
    cluster, store, clock = ground.cluster, ground.store, ground.clock
    metrics = ControlMetrics()
    progress = ProgressLog(store=store, metrics=metrics)
    intake = Intake(ledger=ledger, store=store, clock=clock, check=ground.lease.check)

    def tell(event: Event) -> None:
        """Nothing is lost by a controller that ends: the next one looks for itself."""
        with suppress(ClosedError):
            intake.raise_event(event)

    executor = LiveExecutor(
        ledger=ledger,
        fleet=ground.fleet,
        dispatch=router,
        limits=cluster.limits,
        now_s=clock.now_s,
        raise_event=tell,
        tell=progress.tell,
        telemetry=gathering.send,
        weights=newest,
        max_staleness=cluster.max_staleness,
    )
    parts = Parts(
        directory=cluster.state_dir,
        store=store,
        ledger=ledger,
        intake=intake,
        progress=progress,
        metrics=metrics,
        executor=executor,
        observer=_observer(ground, gathering, ledger),
        clock=clock,
        lease=ground.lease,
        rules=ground.rules,
        pipeline=Rules(max_staleness=cluster.max_staleness, synchronous=cluster.training is Training.SYNCHRONOUS),
        limits=cluster.limits,
        weights=WeightStore(root=cluster.weights.root),
        shadow=ground.shadow,
    )
    return parts, executor


def _observer(ground: Ground, gathering: Gathering, ledger: Ledger) -> LiveObserver:
    """Every source is observed, whatever the policy asks for now: another one may be set."""
    observer = LiveObserver(
        world=ground.cluster.situation(ledger.state),
        forecaster=ground.forecaster,
        sources=tuple(Source),
        lives=gathering.turns.lives,
        trajectories=gathering.trajectories,
        on_batch_end=gathering.batch_ends,
        since_s=ground.clock.now_s(),
    )
    after = max(0, ground.store.last("events") - RESTORED_EVENTS)
    observer.restore(gathering.restored, map(event_of, ground.store.events(after=after, limit=RESTORED_EVENTS)))
    return observer


def _connect(gathering: Gathering, controller: Controller, executor: LiveExecutor) -> None:
    """Telemetry goes to the store and the observer; the executor hears of batches."""
    parts = controller.parts

    def keep(records: tuple[Telemetry, ...]) -> None:
        parts.progress.record(*records)
        for record in records:
            parts.observer.record(record)

    gathering.attach(batches=lambda: controller.pipeline.batches, sink=keep)
    parts.intake.listen(lambda _, event: executor.batch_began() if event.kind is EventKind.BATCH_STARTED else None)
