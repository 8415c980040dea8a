"""The network predictor held against the discrete-event simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.makespan_accuracy import Result, run_case
from pearl.core.cluster import Counts
from pearl.core.workload import Routing
from pearl.makespan.registry import get_predictor
from pearl.reproduce.models import load_model
from pearl.sim.batch import simulate_batch
from tests.makespan.cases import DENSE, FIXED, SPARSE, VARIED

CONFIGURATIONS = [Counts(colocated=8), Counts(prefill=2, decode=6), Counts(prefill=4, decode=4)]


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("engine", [DENSE, SPARSE], ids=lambda engine: engine.name)
def test_a_batch_of_equal_trajectories(engine, routing):
    workload = replace(FIXED, routing=routing)
    for counts in CONFIGURATIONS:
        simulated = simulate_batch(workload, engine, counts=counts, seed=0)
        predicted = get_predictor("network").paths(workload, engine, counts)
        assert predicted.makespan_s == pytest.approx(simulated.makespan_s, rel=0.1)
        assert predicted.prefix_hit_rate == pytest.approx(simulated.prefix_hit_rate, abs=0.12)


def test_a_varied_batch_and_its_tail():
    for counts in CONFIGURATIONS:
        simulated = [simulate_batch(VARIED, DENSE, counts=counts, seed=seed).makespan_s for seed in range(6)]
        predicted = get_predictor("network").paths(VARIED, DENSE, counts).makespan_s
        assert predicted == pytest.approx(float(np.mean(simulated)), rel=0.12)


@pytest.mark.parametrize(
    "pool", [Counts(prefill=3, decode=5), Counts(prefill=4, decode=4), Counts(prefill=5, decode=3)]
)
def test_one_prefill_worker_may_fall_behind_under_round_robin(pool):
    """With the paper's workload a worker short of slack loses its prefixes, and all queue there: up to +30 %."""
    world = load_model("qwen3-8b")
    simulated = [simulate_batch(world.workload, world.engine, counts=pool, seed=seed).makespan_s for seed in range(2)]
    predicted = get_predictor("network").paths(world.workload, world.engine, pool).makespan_s
    assert predicted == pytest.approx(float(np.mean(simulated)), rel=0.12)


@pytest.mark.slow
def test_errors_and_regret_on_a_random_grid():
    results: list[Result] = [run_case((seed, 2)) for seed in range(300, 310)]
    errors = np.abs(np.concatenate([result.errors("network") for result in results]))
    assert np.median(errors) < 0.1
    assert np.mean([result.regret("network") for result in results]) < 0.03
    assert np.median(errors) < np.median(np.abs(np.concatenate([result.errors("bubble") for result in results])))
