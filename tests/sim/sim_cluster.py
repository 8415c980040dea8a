"""Small clusters for the tests: workers by name, a bare cluster without a pipeline, and its clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.event import Event
from pearl.core.workload import Routing
from pearl.sim.cluster import SimCluster
from pearl.sim.events import EventQueue
from pearl.sim.pool import Pool
from pearl.sim.session import Session
from tests.sim.sim_samples import profile

COSTS = TransitionCosts()


def worker(name: str, role: Role = Role.COLOCATED, zone: Zone = Zone.RESERVED, **changes) -> Worker:
    status = Status.INACTIVE if role is Role.INACTIVE else Status.ACTIVE
    return Worker(**({"id": name, "node": name, "zone": zone, "role": role, "status": status} | changes))


def pool_of(*workers: Worker) -> ClusterState:
    return ClusterState(workers=workers)


@dataclass
class Bench:
    """A cluster on its own, with trajectories put in by hand."""

    state: ClusterState
    engine: object = field(default_factory=profile)
    routing: Routing = Routing.AFFINITY

    def __post_init__(self) -> None:
        self.queue = EventQueue()
        self.finish_s: dict[int, float] = {}
        self.heard: list[Event] = []
        self.pool = Pool(queue=self.queue, routing=self.routing, done=self._done)
        self.cluster = SimCluster(
            state=self.state,
            profile=self.engine,
            costs=COSTS,
            pool=self.pool,
            queue=self.queue,
            listener=self.heard.append,
        )

    def start(self, *trajectories) -> None:
        for index, trajectory in enumerate(trajectories):
            self.pool.start(Session(index, trajectory))

    def happen_at(self, at_s: float, event: Event) -> None:
        self.queue.at(at_s, 0, self.cluster.happen, event)

    def apply_at(self, at_s: float, *steps) -> None:
        for step in steps:
            self.queue.at(at_s, 0, self.cluster.apply, step)

    def run(self, until_s: float = float("inf")) -> Bench:
        self.queue.run(until_s=until_s)
        return self

    def now(self, name: str) -> tuple[Role, Status]:
        found = self.cluster.state.by_id[name]
        return found.role, found.status

    def _done(self, session: Session) -> None:
        self.finish_s[session.index] = self.queue.now_s
