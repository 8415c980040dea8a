"""Section 6.5.1: the configuration that the predictor chooses, against the best of all simulated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pearl.core.cluster import Counts
from pearl.makespan.registry import get_predictor
from pearl.reproduce.bench import Bench
from pearl.reproduce.calibration import World
from pearl.reproduce.models import load_model
from pearl.reproduce.world import PREDICTOR

FIRST_BATCHES = 2
"""Batches of every configuration; only contenders get more."""
CONTENDS_WITHIN = 0.1
"""A configuration this much above the best after its first batches is out. The difference of two neighbours varies by
up to 2 % from batch to batch, so that the mean over two is off by less than a fifth of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionKey:
    """One choice: what it depends on, and nothing else."""

    model: str
    workers: int
    batches: int
    """Batches of each contender, the same for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What was chosen, and what would have been best."""

    chosen: Counts
    best: Counts
    regret: float
    """Simulated makespan of the chosen configuration over that of the best, less 1."""


def select(key: SelectionKey) -> Selected:
    """Choose by prediction among all configurations of the workers, and simulate every one of them.

    The smallest of many noisy means is too small: neighbours of the best one would look better by chance.
    """
    predictor = get_predictor(PREDICTOR)
    model = load_model(key.model)
    pools = list(_pools(key.workers))
    chosen = min(pools, key=lambda pool: predictor.paths(model.workload, model.engine, pool).makespan_s)
    first = _makespans_s(model, pools, batches=min(FIRST_BATCHES, key.batches))
    bound_s = (1 + CONTENDS_WITHIN) * min(first.values())
    contenders = [pool for pool in pools if pool == chosen or first[pool] <= bound_s]
    found = _makespans_s(model, contenders, batches=key.batches)
    best = min(found, key=found.__getitem__)
    return Selected(chosen=chosen, best=best, regret=found[chosen] / found[best] - 1)


def _makespans_s(model: World, pools: Sequence[Counts], *, batches: int) -> dict[Counts, float]:
    bench = Bench(workload=model.workload, engine=model.engine, seeds=range(batches))
    return {pool: bench.makespan_s(pool, model.workload.trajectories) for pool in pools}


def _pools(workers: int) -> Iterator[Counts]:
    yield Counts(colocated=workers)
    for prefill in range(1, workers):
        yield Counts(prefill=prefill, decode=workers - prefill)
