"""Section 6.5.1: the configuration that the predictor chooses, against the best of all simulated ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pearl.core.cluster import Counts
from pearl.makespan.registry import get_predictor
from pearl.reproduce.bench import Bench
from pearl.reproduce.models import load_model
from pearl.reproduce.world import PREDICTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionKey:
    """One choice: what it depends on, and nothing else."""

    model: str
    workers: int
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What was chosen, and what would have been best."""

    chosen: Counts
    best: Counts
    regret: float
    """Simulated makespan of the chosen configuration over that of the best, less 1."""


def select(key: SelectionKey) -> Selected:
    """Choose by prediction among all configurations of the workers, and simulate every one of them."""
    predictor = get_predictor(PREDICTOR)
    model = load_model(key.model)
    bench = Bench(workload=model.workload, engine=model.engine, seeds=range(key.seeds))
    batch = model.workload.trajectories
    pools = list(_pools(key.workers))
    chosen = min(pools, key=lambda pool: predictor.paths(model.workload, model.engine, pool).makespan_s)
    best = min(pools, key=lambda pool: bench.makespan_s(pool, batch))
    return Selected(
        chosen=chosen, best=best, regret=bench.makespan_s(chosen, batch) / bench.makespan_s(best, batch) - 1
    )


def _pools(workers: int) -> Iterator[Counts]:
    yield Counts(colocated=workers)
    for prefill in range(1, workers):
        yield Counts(prefill=prefill, decode=workers - prefill)
