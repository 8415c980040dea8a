"""Batches of one workload on one engine, simulated when first asked for: what the measures are read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean

from pearl.core.cluster import Counts
from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.sim.batch import BatchResult, simulate_batch
from pearl.sim.trajectories import Trajectory, sample


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Every pool meets the same trajectories: those of `seeds`."""

    workload: Workload
    engine: EngineProfile
    seeds: Sequence[int]
    _done: dict[tuple[Counts, int], tuple[BatchResult, ...]] = field(default_factory=dict, init=False, repr=False)

    def results(self, pool: Counts, batch: int) -> tuple[BatchResult, ...]:
        """One result per seed of a batch of `batch` trajectories; raises UsageError where the pool cannot serve it."""
        key = (pool, batch)
        if key not in self._done:
            self._done[key] = tuple(
                simulate_batch(
                    self.workload, self.engine, counts=pool, seed=seed, trajectories=self.trajectories(batch, seed)
                )
                for seed in self.seeds
            )
        return self._done[key]

    def trajectories(self, batch: int, seed: int) -> tuple[Trajectory, ...]:
        """The batch of one seed."""
        return sample(replace(self.workload, trajectories=batch), Random(seed))

    def makespan_s(self, pool: Counts, batch: int) -> float:
        """Mean over the seeds of the completion of the last trajectory."""
        return fmean(result.makespan_s for result in self.results(pool, batch))

    def best_ratio(self, workers: int, batch: int) -> Counts:
        """The fastest split into prefill and decode workers, found uphill from an even one.

        The makespan over the number of prefill workers falls while prefill is short of workers and rises once decode
        is, so that the walk ends at the optimum, but for noise between neighbours.
        """
        prefill = workers // 2
        for step in (-1, 1):
            while 1 <= prefill + step < workers and self._split_s(workers, prefill + step, batch) < self._split_s(
                workers, prefill, batch
            ):
                prefill += step
        return Counts(prefill=prefill, decode=workers - prefill)

    def _split_s(self, workers: int, prefill: int, batch: int) -> float:
        return self.makespan_s(Counts(prefill=prefill, decode=workers - prefill), batch)
