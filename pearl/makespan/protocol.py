"""What every makespan predictor offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pearl.core.cluster import Counts
from pearl.core.decision import PathTimes
from pearl.core.engine import EngineProfile
from pearl.core.problem import MakespanTables
from pearl.core.workload import Workload


class Predictor(Protocol):
    """Predicts the expected completion of the last of a batch's trajectories. Pure: same input, same output."""

    id: str

    def tables(self, workload: Workload, engine: EngineProfile, *, workers: int) -> MakespanTables:
        """Makespans for every count up to `workers`."""
        ...

    def paths(self, workload: Workload, engine: EngineProfile, counts: Counts) -> PathTimes:
        """Parts of the makespan of one configuration, in seconds; its makespan agrees with `tables` to the ms."""
        ...


TablesFor = Callable[[int], MakespanTables]
"""Tables of one pair of profiles, by number of workers."""


@runtime_checkable
class SharingPredictor(Predictor, Protocol):
    """A predictor whose tables of one pool have much in common with those of the next."""

    def tables_for(self, workload: Workload, engine: EngineProfile) -> TablesFor:
        """`tables` by number of workers; what they have in common is computed once."""
        ...
