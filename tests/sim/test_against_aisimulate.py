"""The ranking of configurations against figures that a public simulator gave (AISimulate, Qwen3-8B on 8 H200)."""

from __future__ import annotations

from statistics import mean

import pytest

from pearl.core.cluster import Counts
from pearl.core.distribution import Distribution, Family
from pearl.core.workload import Routing, Workload
from pearl.scenario.engines import load_profile
from pearl.sim.batch import simulate_batch

ROUND_ROBIN_S = {(8, 0): 98.1, (1, 7): 262, (2, 6): 107, (3, 5): 94.5, (4, 4): 91.9, (5, 3): 97.4, (6, 2): 110}
"""Makespans by (colocated, 0) or (prefill, decode) workers."""
PINNED_S = 86.5


def load(routing: Routing) -> Workload:
    return Workload(
        trajectories=128,
        turns=Distribution(family=Family.EMPIRICAL, values=tuple(range(4, 13))),
        first_prompt_tokens=Distribution.constant(2048),
        new_prompt_tokens=Distribution.constant(1500),
        output_tokens=Distribution.constant(300),
        environment_s=Distribution.constant(2.0),
        max_context_tokens=40_000,
        routing=routing,
    )


def simulated_s(counts: Counts, routing: Routing) -> float:
    engine = load_profile("qwen3-8b-h200")
    return mean(simulate_batch(load(routing), engine, counts=counts, seed=seed).makespan_s for seed in range(4))


def spearman(one: list[float], other: list[float]) -> float:
    ranks = [[sorted(values).index(value) for value in values] for values in (one, other)]
    size = len(one)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*ranks, strict=True)) / (size * (size**2 - 1))


@pytest.mark.slow
def test_same_best_mode_and_ratio_and_nearly_the_same_ranking():
    ours = {
        (a, b): simulated_s(Counts(prefill=a, decode=b) if b else Counts(colocated=a), Routing.ROUND_ROBIN)
        for a, b in ROUND_ROBIN_S
    }
    pinned = simulated_s(Counts(colocated=8), Routing.AFFINITY)
    prefill, decode = min(ours, key=lambda pair: ours[pair])
    assert decode > 0
    assert abs(prefill - 4) <= 1
    assert spearman([*ours.values(), pinned], [*ROUND_ROBIN_S.values(), PINNED_S]) >= 0.9
    assert pinned < ours[8, 0]
