"""The control plane at work: mounted on the router's service, with its watchers, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from pearl.core.event import Event, EventKind
from pearl.live.cluster.offers import offer
from pearl.live.control.api import AdminApi
from pearl.live.control.assembly import Built, Ground, build
from pearl.live.control.gathering import Gathering
from pearl.live.control.intake import ClosedError
from pearl.live.control.log import log
from pearl.live.control.shelf import WeightShelf
from pearl.live.control.watch import HealthWatcher, NodeWatcher, Seen
from pearl.live.router.admin import Extension
from pearl.live.router.service import Router
from pearl.live.weights import WeightStore

POLL_S = 5.0
"""Between two collections of engine steps: workers keep far more than they take in this time."""


class StopRequest:
    """Whether the service is to end, and its workers with it. Made on the event loop."""

    def __init__(self) -> None:
        self.workers = False
        self._asked = asyncio.Event()

    def ask(self, workers: bool = False) -> None:
        """End it; once the workers are to end, they are."""
        self.workers = self.workers or workers
        self._asked.set()

    async def wait(self) -> None:
        """Until it is asked."""
        await self._asked.wait()


class ControlPlane:
    """Made before the router, which tells it of turns; `mount` begins it, `serve` waits for its end."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._tasks: list[asyncio.Task[Any]] = []
        self._asides: set[asyncio.Task[Any]] = set()
        self.stop = StopRequest()
        self.gathering = Gathering(clock=ground.clock, store=ground.store)

    @asynccontextmanager
    async def mount(self, router: Router) -> AsyncIterator[Extension]:
        """A `pearl.live.router.admin.Mount`; raises what `build` raises."""
        ground = self._ground
        async with AsyncExitStack() as stack:
            built = await build(ground, self.gathering, router)
            stack.push_async_callback(built.controller.aclose)
            api = AdminApi(built.controller, token=ground.token, cluster=ground.cluster.name, stop=self.stop.ask)
            stack.push_async_callback(api.aclose)
            stack.push_async_callback(self._end_tasks)
            built.controller.start(built.beginning)
            if not built.beginning.resumed:
                self._raise(built, Event(kind=EventKind.OPERATOR))  # a workload may be known: decide beside the start
            self._begin_tasks(built)
            self._task(router.failed(), "journal")
            yield api.extension()

    @property
    def policy(self) -> str:
        """Name of the policy that the service was started with."""
        return self._ground.rules.policy.name

    async def serve(self) -> None:
        """Until the service is told to stop. Raises what a part of it failed with: a lost lease, a full disk."""
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait((stopping, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()

    def _begin_tasks(self, built: Built) -> None:
        limits, parts, executor = self._ground.cluster.limits, built.controller.parts, built.executor
        health = HealthWatcher(
            started=lambda: executor.engines,
            state=lambda: parts.ledger.state,
            sick=lambda worker, why: self._sick(built, worker, why),
            every_s=limits.health_every_s,
        )
        weights = self._ground.cluster.weights
        shelf = WeightShelf(store=WeightStore(root=weights.root), keep=weights.keep)
        parts.ledger.listen(shelf.look)
        shelf.look(parts.ledger.record)
        self._task(built.controller.run(), "controller")
        self._task(self._nodes(built).run(), "nodes")
        self._task(health.run(), "health")
        self._task(self.gathering.run(lambda: executor.engines, every_s=POLL_S), "telemetry")
        self._task(shelf.run(), "weight store")
        self._spread(built)

    def _nodes(self, built: Built) -> NodeWatcher:
        parts, fleet = built.controller.parts, self._ground.fleet
        seen = Seen(
            nodes={node.name: node.id for node in built.nodes}, granted=offer(self._ground.cluster, built.nodes)
        )
        return NodeWatcher(
            cluster=self._ground.cluster,
            nodes=fleet.nodes,
            state=lambda: parts.ledger.state,
            tell=lambda event: self._raise(built, event),
            now_s=parts.clock.now_s,
            seen=seen,
        )

    def _raise(self, built: Built, event: Event) -> None:
        """What a watcher saw; nothing is lost by a controller that ends, since the next one looks for itself."""
        with suppress(ClosedError):
            built.controller.raise_event(event)

    def _sick(self, built: Built, worker: str, why: str) -> None:
        log("worker_lost", level=logging.WARNING, worker=worker, because=why)
        self._aside(built.executor.lose((worker,)), f"lose {worker}")

    def _spread(self, built: Built) -> None:
        """Bring workers with older weights to the newest: the controller may have ended before it did."""
        newest, record = built.newest, built.controller.parts.ledger.record
        started = [worker.id for worker in record.state.workers if worker.started]
        if newest is not None and any(record.versions.get(name, 0) < newest.version for name in started):
            publishing = built.controller.publish(version=newest.version, directory=newest.directory)
            self._aside(publishing, f"weights {newest.version}")

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Work that goes on for as long as the service does."""
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    def _aside(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Work whose failure is logged, and harms nothing else."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._asides.add(task)
        task.add_done_callback(self._aside_over)

    def _aside_over(self, task: asyncio.Task[Any]) -> None:
        self._asides.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log("task_failed", level=logging.ERROR, task=task.get_name(), error=f"{type(error).__name__}: {error}")

    async def _end_tasks(self) -> None:
        tasks = (*self._tasks, *self._asides)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
