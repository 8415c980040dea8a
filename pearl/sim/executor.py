"""The seams through which the scheduler drives a simulated cluster as it would a live one."""

from __future__ import annotations

from pearl.core.cluster import ClusterState
from pearl.core.plan import Step
from pearl.sim.cluster import SimCluster
from pearl.sim.events import EventQueue


class SimClock:
    """Simulated time (`pearl.core.ports.Clock`)."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def now_s(self) -> float:
        """Seconds since the start of the simulation."""
        return self._queue.now_s


class SimExecutor:
    """Carries plans out on a simulated cluster (`pearl.core.ports.Executor`).

    `apply` returns at once; the step takes its time on the simulated clock, phase by phase in the order given.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster

    def observe(self) -> ClusterState:
        """The state as it is now; workers that a step is changing are in transition."""
        return self._cluster.state

    def apply(self, step: Step) -> None:
        """Carry out one step after those given before; doing it twice changes nothing the second time."""
        self._cluster.apply(step)

    def cancel_pending(self) -> None:
        """Drop the steps that have not begun: call it before the steps of a newer plan."""
        self._cluster.cancel_pending()

    @property
    def busy(self) -> bool:
        """Whether steps of a plan are still being carried out."""
        return self._cluster.in_transition
