"""The controller: events in; decisions, plans and answers to trainers, rollout and operators out.

Everything runs on one event loop, but for the ticks. It acts only while it holds its lease and can write its store:
where either fails it takes nothing more, hands no plan over, and `run` raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.api import choose_predictor, choose_solver
from pearl.core.cluster import Status, Worker
from pearl.core.engine import TransitionCosts
from pearl.core.event import Event, EventKind
from pearl.core.ports import Clock
from pearl.errors import UsageError
from pearl.live.control.bootstrap import bootstrap_plan
from pearl.live.control.decider import Decider, Rulebook
from pearl.live.control.documents import compact
from pearl.live.control.drains import Drains
from pearl.live.control.intake import ClosedError, Intake
from pearl.live.control.lease import Lease
from pearl.live.control.ledger import Ledger
from pearl.live.control.limits import ControlLimits
from pearl.live.control.log import log
from pearl.live.control.metrics import ControlMetrics, Gauges
from pearl.live.control.pipeline import PipelineScheduler, Rules, StaleError
from pearl.live.control.policies import PolicyShelf
from pearl.live.control.ports import Executor, Observer, Published
from pearl.live.control.progress_log import ProgressLog
from pearl.live.control.recovery import Beginning, close_plans
from pearl.live.control.store import ControlStore, Fact, SetFact
from pearl.live.control.trainer import TrainerDesk
from pearl.live.weights import WeightRef, WeightStore
from pearl.policy.model import Policy

LAST_TASKS_S = 10.0
"""How long calls under way may take to roll back once the controller stops."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a controller is put together from.

    Ledger, intake and progress log exist before the executor does, which tells them what happens.
    """

    directory: Path
    """The state directory."""
    store: ControlStore
    ledger: Ledger
    intake: Intake
    progress: ProgressLog
    metrics: ControlMetrics
    executor: Executor
    observer: Observer
    clock: Clock
    lease: Lease
    rules: Rulebook
    pipeline: Rules
    limits: ControlLimits
    weights: WeightStore | None = None
    """Where published weights may be; None where the job publishes none."""
    shadow: bool = False


class Controller:
    """One controller. `start` it on a running event loop, `run` it until it fails or is closed, `aclose` it."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.began_s = parts.clock.now_s()
        store, ledger, intake = parts.store, parts.ledger, parts.intake
        self._shelf = PolicyShelf(directory=parts.directory, store=store, started=parts.rules.policy)
        policy = self._shelf.in_force()
        rules = parts.rules if policy is parts.rules.policy else _rulebook(policy)
        self.decider = Decider(
            rules=rules,
            executor=parts.executor,
            observer=parts.observer,
            store=store,
            metrics=parts.metrics,
            clock=parts.clock,
            check=parts.lease.check,
            shadow=parts.shadow,
        )
        self.trainer = TrainerDesk(
            store=store,
            executor=parts.executor,
            raise_event=intake.raise_event,
            marked=lambda: ledger.record.training,
            on_finish=self._look,
        )
        self.pipeline = PipelineScheduler(
            rules=parts.pipeline,
            store=store,
            observer=parts.observer,
            clock=parts.clock,
            latest=lambda: ledger.record.latest,
            training=lambda: self.trainer.running,
            raise_event=intake.raise_event,
            record=parts.progress.record,
        )
        self.drains = Drains(store=store, ledger=ledger, raise_event=intake.raise_event)
        ledger.listen(lambda _: self._look())
        intake.listen(self._heard)
        self._publishing: dict[int, asyncio.Task[Published]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    # life

    def start(self, beginning: Beginning) -> None:
        """Take up where `beginning` says: raise what happened meanwhile, and let the first decision be due."""
        close_plans(self.parts.store, at_unix_s=self.parts.clock.now_s())
        if not any(worker.started for worker in self.parts.ledger.state.workers):
            self._bootstrap()
        for event in beginning.events:
            self.parts.intake.raise_event(event)
        if beginning.resumed:
            self.parts.intake.raise_event(Event(kind=EventKind.OPERATOR))
        log("controller_started", resumed=beginning.resumed, term=self.parts.lease.term, shadow=self.parts.shadow)

    async def run(self) -> None:
        """Tick for every event. Raises `LeaseError` or `StoreError` once this controller may act no more."""
        store, failed = self.parts.store, asyncio.Event()
        store.on_failure = failed.set
        ticks = asyncio.create_task(self._tick_forever(), name="ticks")
        tasks = (
            ticks,
            asyncio.create_task(self.parts.lease.lost.wait(), name="lease lost"),
            asyncio.create_task(failed.wait(), name="store failed"),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if ticks.done():
                ticks.result()
            if store.failure:
                raise store.failure
            self.parts.lease.check()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """Take nothing more, let calls under way roll back, and let the workers be as they are. Idempotent."""
        self.parts.intake.close()
        self.decider.close()
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_TASKS_S)
        await self.parts.executor.aclose()

    async def _tick_forever(self) -> None:
        queue = self.parts.intake.queue
        while True:
            number, event = await queue.get()
            unknown = await self.decider.tick(number, event)
            if unknown and not self.parts.shadow:
                self._bootstrap()
            queue.task_done()
            self._decide_again()

    def _bootstrap(self) -> None:
        """Start reserved workers that nothing is known to decide on."""
        state = self.parts.ledger.state
        plan = bootstrap_plan(state, TransitionCosts())
        if not plan.empty:
            self.decider.carry_out(plan, because="no workload is known: all reserved workers serve")

    def _look(self) -> None:
        self.pipeline.look()
        self._decide_again()

    def _decide_again(self) -> None:
        """A decision left workers in transition as they were: another is due once they have come to rest."""
        at_rest = all(worker.status is not Status.TRANSITIONING for worker in self.parts.ledger.state.workers)
        if self.decider.left_alone and at_rest:
            self.decider.left_alone = False
            asyncio.get_running_loop().call_soon(self._raise_quietly, Event(kind=EventKind.OPERATOR))

    def _raise_quietly(self, event: Event) -> None:
        """What a controller that ends has no use for."""
        with suppress(ClosedError):
            self.parts.intake.raise_event(event)

    def _heard(self, number: int, event: Event) -> None:
        self.parts.metrics.event(event.kind.value)
        self.parts.observer.hear(event)
        self.drains.heard(number, event)
        if event.kind is EventKind.GPUS_LOST:
            self._spawn(self.parts.executor.lose(event.workers), name=f"lose {', '.join(event.workers)}")

    # what is asked

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.decider.rules.policy

    def raise_event(self, event: Event, key: str | None = None) -> int:
        """Accept an event; returns its number. See `Intake.raise_event`."""
        return self.parts.intake.raise_event(event, key)

    def add_workers(self, workers: Iterable[Worker], key: str | None = None) -> int:
        """GPUs joined; workers that are here already are left as they are."""
        added = tuple(workers)
        event = Event(kind=EventKind.GPUS_ADDED, workers=tuple(w.id for w in added), added=added)
        return self.raise_event(event, key)

    def reclaim(
        self, *, workers: Iterable[str] = (), node: str | None = None, grace_s: float, key: str | None = None
    ) -> int:
        """GPUs go back within `grace_s`: those of workers, or of a node. Raises `UsageError` for unknown ones."""
        state = self.parts.ledger.state
        names = tuple(workers) or tuple(worker.id for worker in state.workers if worker.node == node)
        if unknown := [name for name in names if name not in state.by_id]:
            raise UsageError(f"no worker {unknown[0]!r} is in the state")
        if not names:
            raise UsageError(f"node {node!r} holds no worker")
        return self.raise_event(Event(kind=EventKind.RECLAIM_NOTICE, workers=names, within_s=grace_s), key)

    async def publish(self, *, version: int, directory: Path) -> Published:
        """Let every worker serve these weights; the same version again is the same answer.

        It goes on when its caller goes away: weights that are out stay out. Raises `UsageError` for a directory that
        is not that version's in the weight store, and `StaleError` for a version that is older than the newest.
        """
        root = self.parts.weights
        if root is None:
            raise UsageError("this cluster has no weight store: name one in the cluster file")
        ref = await asyncio.to_thread(root.published, WeightRef(version=version, directory=directory))
        latest = self.parts.ledger.record.latest
        if version < latest:
            raise StaleError(f"weights {version} are older than the newest, {latest}")
        self.parts.lease.check()
        task = self._publishing.get(version)
        if version > latest:
            document = compact({"version": version, "directory": str(ref.directory)})
            self.parts.store.write(SetFact(fact=Fact.WEIGHTS, document=document))
        if task is None:
            task = self._spawn(self.parts.executor.publish(ref), name=f"weights {version}")
            self._publishing[version] = task
            task.add_done_callback(lambda _: self._publishing.pop(version, None))
        return await asyncio.shield(task)

    async def set_policy(self, text: str, *, name: str) -> Policy:
        """Decide by another policy from now on. Raises `PolicyError` with every fault, and `SolverError`.

        Where its caller goes away it is kept and in force, or neither.
        """
        policy, path = await asyncio.to_thread(self._shelf.read, text, name=name)
        rules = await asyncio.to_thread(_rulebook, policy)
        await self.decider.try_out(rules)
        self._shelf.keep(path)
        self.decider.use(rules)
        log("policy_set", policy=policy.name, sha256=policy.sha256)
        self.raise_event(Event(kind=EventKind.OPERATOR))
        return policy

    def metrics_text(self) -> str:
        """The control plane's part of the metrics page."""
        gauges = Gauges(
            record=self.parts.ledger.record,
            calibration_error=self.parts.observer.calibration_error,
            lease_term=self.parts.lease.term,
            training=self.trainer.running,
        )
        return self.parts.metrics.text(gauges)

    def _spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log("task_failed", level=logging.ERROR, task=task.get_name(), error=f"{type(error).__name__}: {error}")


def _rulebook(policy: Policy) -> Rulebook:
    return Rulebook(policy=policy, solver=choose_solver(policy, None), predictor=choose_predictor(policy, None))
