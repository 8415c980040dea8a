"""Watchers: what Ray and the workers themselves say, told as events. The decisions are pure; the loops only poll.

NodeWatcher    nodes that came and nodes that died
HealthWatcher  engines that died, are unfit, or do not answer
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pearl.core.cluster import ClusterState, Status, Worker
from pearl.core.event import Event, EventKind
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.offers import offer
from pearl.live.control.fleet import Node, WorkerHandle
from pearl.live.engine.engine import EngineReport
from pearl.live.protocol import EngineError, EngineLostError

ANSWER_S = 10.0
"""A worker that does not answer by then has failed one look: a step of the engine blocks it for less."""
SILENT_LOOKS = 3
"""Looks in a row without a good answer after which a worker counts as dead: one may fall into a long step."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The nodes at the last look, and the workers that they were granted."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    """Ids by name."""
    granted: tuple[Worker, ...] = ()
    """A worker stays granted until its node dies, also where its GPUs were reclaimed: it is not offered again."""


def look_at_nodes(
    cluster: LiveCluster, before: Seen, nodes: Sequence[Node], state: ClusterState, *, now_s: float
) -> tuple[Seen, tuple[Event, ...]]:
    """What changed since `before`: losses first, so that a node that came back under its name is lost and added."""
    now = {node.name: node.id for node in nodes}
    gone = {name for name, id_ in before.nodes.items() if now.get(name) != id_}
    kept = tuple(worker for worker in before.granted if worker.node not in gone)
    fresh = offer(cluster, nodes, kept)
    lost = tuple(worker.id for worker in state.workers if worker.node in gone)
    events = []
    if lost:
        events.append(Event(kind=EventKind.GPUS_LOST, workers=lost, at_s=now_s))
    if fresh:
        ids = tuple(worker.id for worker in fresh)
        events.append(Event(kind=EventKind.GPUS_ADDED, workers=ids, added=fresh, at_s=now_s))
    return Seen(nodes=now, granted=kept + fresh), tuple(events)


class NodeWatcher:
    """Polls the nodes, and tells what changed. `seen` is what the controller knew when it began."""

    def __init__(
        self,
        *,
        cluster: LiveCluster,
        nodes: Callable[[], Awaitable[Sequence[Node]]],
        state: Callable[[], ClusterState],
        tell: Callable[[Event], None],
        now_s: Callable[[], float],
        seen: Seen,
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._state = state
        self._tell = tell
        self._now_s = now_s
        self._seen = seen

    async def look(self) -> None:
        """One look. Where Ray does not answer nothing is known, and so nothing is told."""
        try:
            nodes = await self._nodes()
        except EngineError:
            return
        self._seen, events = look_at_nodes(self._cluster, self._seen, nodes, self._state(), now_s=self._now_s())
        for event in events:
            self._tell(event)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._cluster.limits.health_every_s)


Answer = EngineReport | EngineError | TimeoutError
"""What came of one look at a worker."""


def judge(answer: Answer, *, status: Status, silent: int) -> str | None:
    """Why a worker is no longer fit to serve; None while it is. `silent` looks in a row were without a good answer.

    A worker in transition may be silent: its own limits are watched by whoever asked for the transition.
    """
    match answer:
        case EngineLostError():
            return str(answer)
        case EngineReport(unfit=str(reason)):
            return reason
        case EngineReport():
            return None
        case EngineError() | TimeoutError() if status is not Status.TRANSITIONING and silent >= SILENT_LOOKS:
            return str(answer) or f"no answer in {silent} looks"
        case _:
            return None


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A handle under watch."""

    handle: WorkerHandle
    silent: int = 0
    told: bool = False
    look: asyncio.Task[None] | None = None


class HealthWatcher:
    """Asks every started worker for its report, each on its own, so that a slow one delays no other.

    `started` gives the handles of the workers whose engines run, and so leaves out those that are starting; `sick` is
    told once of each handle that is dead or unfit, with the reason.
    """

    def __init__(
        self,
        *,
        started: Callable[[], Mapping[str, WorkerHandle]],
        state: Callable[[], ClusterState],
        sick: Callable[[str, str], None],
        every_s: float,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._started = started
        self._state = state
        self._sick = sick
        self._every_s = every_s
        self._answer_s = answer_s
        self._watched: dict[str, _Watched] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                self.begin_looks()
                await asyncio.sleep(self._every_s)
        finally:
            await self.aclose()

    def begin_looks(self) -> None:
        """Begin a look at every worker that none is under way at."""
        self._follow()
        for worker_id, watched in self._watched.items():
            if not watched.told and (watched.look is None or watched.look.done()):
                watched.look = asyncio.create_task(self._look(worker_id, watched))

    async def looks(self) -> None:
        """Wait for the looks under way."""
        await asyncio.gather(*(watched.look for watched in self._watched.values() if watched.look is not None))

    async def aclose(self) -> None:
        """Give up the looks under way."""
        looks = [watched.look for watched in self._watched.values() if watched.look is not None]
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    def _follow(self) -> None:
        started = self._started()
        for worker_id, watched in list(self._watched.items()):
            if started.get(worker_id) is not watched.handle:
                if watched.look is not None:
                    watched.look.cancel()
                del self._watched[worker_id]
        for worker_id, handle in started.items():
            self._watched.setdefault(worker_id, _Watched(handle=handle))

    async def _look(self, worker_id: str, watched: _Watched) -> None:
        answer = await self._ask(watched.handle)
        worker = self._state().by_id.get(worker_id)
        if worker is None or self._watched.get(worker_id) is not watched:
            return
        if self._started().get(worker_id) is not watched.handle:
            return  # its engine was ended on purpose meanwhile
        watched.silent = 0 if isinstance(answer, EngineReport) else watched.silent + 1
        because = judge(answer, status=worker.status, silent=watched.silent)
        if because is not None:
            watched.told = True
            self._sick(worker_id, because)

    async def _ask(self, handle: WorkerHandle) -> Answer:
        try:
            async with asyncio.timeout(self._answer_s):
                return await handle.report()
        except (EngineError, TimeoutError) as e:
            return e
