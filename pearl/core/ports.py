"""Seams to the world: simulation, replay, shadow and live differ in these alone."""

from __future__ import annotations

from typing import Protocol

from pearl.core.cluster import ClusterState
from pearl.core.plan import Step


class Clock(Protocol):
    """Where the time comes from."""

    def now_s(self) -> float:
        """Seconds since an origin of the clock's own."""
        ...


class Executor(Protocol):
    """Who carries a plan out."""

    def observe(self) -> ClusterState:
        """The state as it is now."""
        ...

    def apply(self, step: Step) -> None:
        """Carry out one step; doing it twice changes nothing the second time."""
        ...
