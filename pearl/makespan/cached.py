"""A predictor that remembers its tables, for loops that decide many times on the same profiles."""

from __future__ import annotations

from pearl.core.cluster import Counts
from pearl.core.decision import PathTimes
from pearl.core.engine import EngineProfile
from pearl.core.problem import MakespanTables
from pearl.core.workload import Workload
from pearl.makespan.protocol import Predictor, SharingPredictor, TablesFor


class CachedPredictor:
    """Same answers as the predictor inside; tables are kept for the newest pair of profiles, by number of workers.

    Where the predictor can, it also keeps what the tables of two numbers of workers have in common.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.id = predictor.id
        self._predictor = predictor
        self._profiles: tuple[Workload, EngineProfile] | None = None
        self._tables_for: TablesFor
        self._tables: dict[int, MakespanTables] = {}

    def tables(self, workload: Workload, engine: EngineProfile, *, workers: int) -> MakespanTables:
        """Makespans for every count up to `workers`."""
        if self._profiles is None or self._profiles[0] is not workload or self._profiles[1] is not engine:
            self._profiles, self._tables = (workload, engine), {}
            self._tables_for = self._bound(workload, engine)
        if workers not in self._tables:
            self._tables[workers] = self._tables_for(workers)
        return self._tables[workers]

    def paths(self, workload: Workload, engine: EngineProfile, counts: Counts) -> PathTimes:
        """Parts of the makespan of one configuration."""
        return self._predictor.paths(workload, engine, counts)

    def _bound(self, workload: Workload, engine: EngineProfile) -> TablesFor:
        if isinstance(self._predictor, SharingPredictor):
            return self._predictor.tables_for(workload, engine)
        return lambda workers: self._predictor.tables(workload, engine, workers=workers)
