"""Figures over seeds."""

from __future__ import annotations

import pytest

from pearl.sim.results import Figures, Makespans
from pearl.sim.summary import summarise


def figures(policy: str, seed: int, throughput: float, makespan: float | None) -> Figures:
    return Figures(
        policy=policy,
        seed=seed,
        predictor="network",
        solver="cpsat",
        horizon_s=3600.0,
        throughput_traj_per_h=throughput,
        trajectories=0,
        batches=0,
        makespan_s=Makespans(mean=makespan, p50=makespan, p95=makespan, max=makespan),
        gpu_s={},
        idle_s=0.0,
        switches={"mode": 0, "ratio": 0, "resize": 0},
        decisions=0,
        outcomes={"keep": 0, "switch": 0, "infeasible": 0, "limit": 0},
        borrowed_s=0.0,
        interrupted=0,
        lost=0,
        cost_usd=0.0,
        energy_kwh={},
    )


def test_spreads_are_over_the_seeds_of_each_policy() -> None:
    (only,) = summarise([figures("a", seed, value, 1.0) for seed, value in enumerate((10.0, 14.0, 12.0))])
    spread = only.throughput_traj_per_h
    assert (spread.seeds, spread.mean, spread.least, spread.largest) == (3, 12.0, 10.0, 14.0)
    assert spread.standard_deviation == pytest.approx(2.0)
    assert only.difference is None


def test_differences_are_between_runs_of_one_seed() -> None:
    """Both vary by 100 over the seeds, and by 5 from each other: only the pairs show it."""
    base = {0: 100.0, 1: 200.0, 2: 300.0}
    runs = [figures("a", seed, value, 30.0) for seed, value in base.items()]
    runs += [figures("b", seed, base[seed] + 5.0, 30.0 - seed) for seed in (2, 1)]
    runs += [figures("b", 9, 1e6, 30.0)]
    difference = summarise(runs)[1].difference
    assert difference is not None
    assert difference.to == "a"
    apart = difference.throughput_traj_per_h
    assert (apart.seeds, apart.mean, apart.standard_deviation) == (2, 5.0, 0.0)
    assert difference.makespan_s.mean == pytest.approx(-1.5)


def test_what_no_run_has_is_none() -> None:
    runs = [figures("a", 0, 1.0, None), figures("a", 1, 1.0, 8.0), figures("b", 1, 1.0, None)]
    first, second = summarise(runs)
    assert (first.makespan_s.seeds, first.makespan_s.mean, first.makespan_s.standard_deviation) == (1, 8.0, None)
    assert (second.makespan_s.seeds, second.makespan_s.mean, second.makespan_s.least) == (0, None, None)
    assert second.difference is not None
    assert second.difference.makespan_s.seeds == 0
    assert second.difference.makespan_s.mean is None


def test_nothing_is_summarised_without_runs() -> None:
    assert summarise([]) == ()
