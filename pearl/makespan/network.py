"""The predictor `network`: a closed queueing network of the batch's trajectories, solved by mean value analysis.

The trajectories circulate between prefill, transfer, decode and environment. The batch is cut into stages of progress;
for each stage and each configuration a fixed point gives the mean turn. The completion of each representative
trajectory follows, and from those the expected completion of the last of B. docs/mathematics.md derives every formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pearl.core.cluster import Counts, Mode
from pearl.core.decision import PathTimes
from pearl.core.engine import EngineProfile
from pearl.core.problem import MakespanTables, PairRung
from pearl.core.workload import Routing, Workload
from pearl.makespan.cache import AffinityCache, Cache, affinity_cache, round_robin_cache
from pearl.makespan.colocated import ColocatedNetwork
from pearl.makespan.completion import (
    Company,
    company_at_same_stage,
    company_of_last,
    completions_s,
    expected_last_s,
    last_weights,
    rates_of,
)
from pearl.makespan.cycle import Cycle
from pearl.makespan.disaggregated import DisaggregatedNetwork
from pearl.makespan.ladder import LARGEST_EXACT_POOL, between_rungs, every_pair, ladder, ladder_pairs
from pearl.makespan.memo import Integers, Memo
from pearl.makespan.protocol import TablesFor
from pearl.makespan.sample import Floats, Sample, representative_trajectories
from pearl.makespan.stages import Stages, stages_of
from pearl.makespan.table import column_ms, to_ms, unserved

SAMPLE_SIZE = 512
"""Representative trajectories: the last of a batch is read from the sample's tail, which 256 leave 5 % noisier."""


class Network:
    """The predictor `network`."""

    id = "network"

    def tables(self, workload: Workload, engine: EngineProfile, *, workers: int) -> MakespanTables:
        """Makespans for every count up to `workers`.

        Up to LARGEST_EXACT_POOL workers every pair is exact; beyond, a geometric ladder of pairs stands for them. The
        prefill column has as many decode workers as there are at all, and the other way round.
        """
        return self.tables_for(workload, engine)(workers)

    def tables_for(self, workload: Workload, engine: EngineProfile) -> TablesFor:
        """Tables by number of workers: a pair that one pool has in common with the next is computed once."""
        return _Batch(workload, engine).tables

    def paths(self, workload: Workload, engine: EngineProfile, counts: Counts) -> PathTimes:
        """Parts of the makespan of one configuration, in seconds: those of the last trajectory, which add up to it."""
        batch = _Batch(workload, engine)
        match counts.mode:
            case Mode.COLOCATED if counts.colocated == counts.serving and batch.fits_colocated:
                forecast = batch.colocated(np.array([counts.colocated]))
                return forecast.paths(counts.colocated, counts.colocated)
            case Mode.DISAGGREGATED if counts.prefill and counts.decode and batch.fits_colocated and batch.fits_decode:
                forecast = batch.disaggregated(np.array([counts.prefill]), np.array([counts.decode]))
                return forecast.paths(counts.prefill, counts.decode)
            case _:
                return unserved()


def _pair_rungs(pairs: tuple[Integers, Integers], seconds: Floats) -> tuple[PairRung, ...]:
    return tuple(
        PairRung(prefill=prefill, decode=decode, makespan_ms=ms)
        for prefill, decode, ms in zip(pairs[0].tolist(), pairs[1].tolist(), to_ms(seconds), strict=True)
    )


class _Batch:
    """One workload on one engine."""

    def __init__(self, workload: Workload, engine: EngineProfile) -> None:
        self.workload = workload
        self.engine = engine
        self.sample: Sample = representative_trajectories(workload, SAMPLE_SIZE)
        self.stages: Stages = stages_of(self.sample)
        longest = float(self.stages.final_tokens.max())
        self.fits_colocated = longest <= engine.kv_colocated_tokens
        self.fits_decode = longest <= engine.kv_decode_tokens

        self._colocated_s = Memo(lambda workers: self.colocated(workers).makespan_s)
        self._disaggregated_s = Memo(lambda prefill, decode: self.disaggregated(prefill, decode).makespan_s)

    def tables(self, workers: int) -> MakespanTables:
        """Makespans for every count up to `workers`."""
        exact = workers <= LARGEST_EXACT_POOL
        rungs = np.arange(1, workers + 1) if exact else ladder(workers)
        pairs = every_pair(workers) if exact else ladder_pairs(rungs, workers)
        full = np.full_like(rungs, workers)
        seconds = self._disaggregated_s(
            np.concatenate((pairs[0], rungs, full)), np.concatenate((pairs[1], full, rungs))
        )
        of_pairs, of_prefill, of_decode = np.split(seconds, [pairs[0].size, pairs[0].size + rungs.size])
        holds = self.fits_colocated
        return MakespanTables(
            colocated_ms=column_ms(between_rungs(rungs, self._colocated_s(rungs), workers), holds=holds),
            prefill_ms=column_ms(between_rungs(rungs, of_prefill, workers), holds=holds),
            decode_ms=column_ms(between_rungs(rungs, of_decode, workers), holds=self.fits_decode),
            pairs=_pair_rungs(pairs, of_pairs) if holds and self.fits_decode else (),
            exact_pairs=exact,
        )

    @property
    def whole(self) -> bool:
        """Whether a prefix is found whole or not at all."""
        return self.workload.routing is Routing.AFFINITY

    @cached_property
    def _affinity_cache(self) -> AffinityCache:
        return affinity_cache(self.sample.environment_s)

    def _cache(self, workers: Integers, *, keeps_output: bool) -> Cache:
        if self.whole:
            return self._affinity_cache
        return round_robin_cache(self.stages, workers.astype(np.float64), keeps_output=keeps_output)

    def _customers(self, workers: Integers, company: Company) -> Floats:
        """Trajectories per worker that one of the last trajectories meets, itself included."""
        others = np.maximum(self.workload.trajectories / workers, 1.0) - 1
        met: Floats = 1 + others * company.survivors
        return met

    def colocated(self, workers: Integers) -> _Forecast:
        """Forecast for each number of colocated workers."""
        cache = self._cache(workers, keeps_output=True)

        def cycle(company: Company, like: Cycle | None) -> Cycle:
            return ColocatedNetwork(
                self.stages,
                self.engine,
                customers=self._customers(workers, company),
                context_ratio=company.context_ratio,
                cache=cache,
                whole=self.whole,
            ).solve(like)

        return self._forecast(cycle)

    def disaggregated(self, prefill: Integers, decode: Integers) -> _Forecast:
        """Forecast for each pair of prefill and decode workers."""
        prefill_cache = self._cache(prefill, keeps_output=False)
        decode_cache = self._cache(decode, keeps_output=True)

        def cycle(company: Company, like: Cycle | None) -> Cycle:
            return DisaggregatedNetwork(
                self.stages,
                self.engine,
                prefilling=self._customers(prefill, company),
                decoding=self._customers(decode, company),
                prefill_workers=prefill.astype(np.float64),
                decode_workers=decode.astype(np.float64),
                context_ratio=company.context_ratio,
                prefill_cache=prefill_cache,
                decode_cache=decode_cache,
                whole=self.whole,
            ).solve(like)

        return self._forecast(cycle)

    def _forecast(self, cycle_for: Callable[[Company, Cycle | None], Cycle]) -> _Forecast:
        """Two passes: first everybody is met at his own stage, then the load is that which the last ones meet."""
        stages, trajectories = self.stages, self.workload.trajectories
        first = cycle_for(company_at_same_stage(stages), None)
        rates = rates_of(stages, first)
        company = company_of_last(stages, rates, trajectories)
        cycle = cycle_for(company, first)
        completions = completions_s(stages, rates_of(stages, cycle))
        return _Forecast(stages=stages, trajectories=trajectories, cycle=cycle, completions=completions)


@dataclass(frozen=True, kw_only=True)
class _Forecast:
    """Cycles and completions of some configurations."""

    stages: Stages
    trajectories: int
    cycle: Cycle
    completions: Floats

    @cached_property
    def makespan_s(self) -> Floats:
        """Expected completion of the last trajectory, by configuration."""
        return expected_last_s(self.completions, self.trajectories)

    def paths(self, prefill_workers: int, decode_workers: int) -> PathTimes:
        """Path times of the first configuration."""
        stages, cycle = self.stages, self.cycle
        makespan = float(self.makespan_s[0])
        parts = self._last_trajectory_s()
        turns = self.trajectories * stages.counts.mean(axis=0)[:, None]
        prefilled = float((turns * cycle.work_s).sum())
        decoded = float((turns * stages.output_tokens * cycle.step_s / cycle.batch).sum())
        prompt = float((turns * (stages.cached_tokens + stages.new_tokens)).sum())
        found = float((turns * cycle.hit * stages.cached_tokens).sum())
        return PathTimes(
            makespan_s=makespan,
            prefill_s=parts["prefill"],
            transfer_s=parts["transfer"],
            decode_s=parts["decode"],
            environment_s=makespan - parts["prefill"] - parts["transfer"] - parts["decode"],
            prefix_hit_rate=found / prompt if prompt else 0.0,
            prefill_utilisation=min(1.0, prefilled / (prefill_workers * makespan)) if makespan else 0.0,
            decode_utilisation=min(1.0, decoded / (decode_workers * makespan)) if makespan else 0.0,
        )

    def _last_trajectory_s(self) -> dict[str, float]:
        stages, cycle = self.stages, self.cycle
        rates = rates_of(stages, cycle)
        order = np.argsort(self.completions[:, 0])
        weights = np.empty(order.size)
        weights[order] = last_weights(order.size, min(self.trajectories, order.size))
        share = float(self.makespan_s[0]) / max(float(weights @ self.completions[:, 0]), 1e-12)
        turns, new, output = (
            share * (weights @ amounts)
            for amounts in (stages.counts, stages.new_by_trajectory, stages.output_by_trajectory)
        )
        return {
            "prefill": float(turns @ cycle.wait_s[:, 0] + new @ rates.new_token_s[:, 0]),
            "transfer": float(turns @ cycle.transfer_s[:, 0]),
            "decode": float(output @ rates.output_token_s[:, 0]),
        }
