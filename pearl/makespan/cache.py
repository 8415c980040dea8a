"""How much of a turn's prefix is still in a worker's KV memory, under least-recently-used eviction.

Affinity: a trajectory's prefix idles on its worker between two turns; Che's approximation gives the share of prefixes
that outlast their idle time. Round robin: the next turn meets whichever older prefix its worker still holds.
docs/mathematics.md derives both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages

Widths = NDArray[np.int_]

IDLE_POINTS = 64
"""Quantiles of the idle time that Che's curve is drawn through."""

IDLE_SPREAD = 0.35
"""Relative spread of idle times beyond that of the environment: the turn's own queueing and the others'. Without it,
equal environment times would make the cache hit always or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityCache:
    """Prefixes idle on the worker to which their trajectory returns.

    `ratios` and `hits` are Che's curve: with a characteristic time t, memory over demand is E[min(I, t)]/E[I] and the
    hit probability P(I ≤ t), I the idle time (H. Che, Y. Tung, Z. Wang, IEEE JSAC 20(7), 2002).
    """

    ratios: Floats
    hits: Floats

    @property
    def found(self) -> Floats:
        """Share of the prefix that is found where nothing was evicted: all of it."""
        return np.ones((1, 1))

    def hit(self, *, memory_tokens: Floats, prefix_tokens: Floats, customers: Floats, idle_share: Floats) -> Floats:
        """Expected share of a prefix that is found.

        `customers` trajectories share the worker, each idle for `idle_share` of its time, with `prefix_tokens` each;
        `memory_tokens` are left for idle prefixes.
        """
        demand = np.maximum(customers * prefix_tokens * idle_share, 1e-9)
        return np.interp(memory_tokens / demand, self.ratios, self.hits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobinCache:
    """Each turn takes the next of `workers`; it finds what its trajectory left there on an earlier visit."""

    workers: Floats
    found: Floats
    """Share of the prefix that an earlier visit left, were nothing evicted, by stage and number of workers."""
    visited: Floats
    """Chance that a trajectory has been at a given worker before."""
    exposure: Floats
    """Of the time since a copy was left, the share that falls into each stage; shape (stages, stages, workers): the
    second axis is that stage."""

    def hit(self, *, memory_tokens: Floats, prefix_tokens: Floats, customers: Floats, idle_share: Floats) -> Floats:
        """Expected share of a prefix that is found: every worker is asked to hold every trajectory that it has met.

        Visits come back after a geometric number of cycles, so that the hit probability equals memory over demand, down
        to the memory of one cycle: below that, nothing lasts until the next visit. A copy that is found has outlasted
        what was asked of the memory since it was left, and not only what is asked of it now.
        """
        del idle_share  # A trajectory is away from all workers but one, whatever it does.
        asked = customers * prefix_tokens / np.maximum(memory_tokens, 1.0)
        since_left: Floats = np.einsum("skw,kw->sw", self.exposure, np.broadcast_to(asked, self.exposure.shape[1:]))
        per_cycle = 1 / np.maximum(since_left, 1e-9)
        return self.found * _lasting(per_cycle) * np.minimum(per_cycle / (self.workers * self.visited), 1.0)

    def hit_behind_everybody(
        self, hit: Floats, *, memory_tokens: float, prefix_tokens: Floats, customers: Floats
    ) -> Floats:
        """What is left of `hit` at the worker where everybody queues: it serves all of them between two visits."""
        everybody = customers * self.workers * prefix_tokens
        result: Floats = hit * _lasting(memory_tokens / np.maximum(everybody, 1e-9))
        return result


def _lasting(per_cycle: Floats) -> Floats:
    """Chance that a copy lasts for one cycle, in which `1/per_cycle` times the memory is asked for."""
    chance: Floats = np.clip((per_cycle - 1 + IDLE_SPREAD) / (2 * IDLE_SPREAD), 0.0, 1.0)
    return chance


Cache = AffinityCache | RoundRobinCache


def affinity_cache(environment_s: Floats) -> AffinityCache:
    """The cache of session affinity, for the environment times given (empty: none is ever idle)."""
    positive = environment_s[environment_s > 0]
    if not positive.size:
        positive = np.ones(1)
    quantiles = np.quantile(positive, (np.arange(IDLE_POINTS) + 0.5) / IDLE_POINTS)
    factors = np.linspace(1 - IDLE_SPREAD, 1 + IDLE_SPREAD, 9)
    idle = np.sort(np.outer(quantiles, factors).ravel())
    ranks = np.arange(1, idle.size + 1)
    truncated_mean = (np.cumsum(idle) + idle * (idle.size - ranks)) / idle.size
    return AffinityCache(
        ratios=np.concatenate(([0.0], truncated_mean / idle.mean())),
        hits=np.concatenate(([0.0], ranks / idle.size)),
    )


def round_robin_cache(stages: Stages, workers: Floats, *, keeps_output: bool) -> RoundRobinCache:
    """The cache of round robin over `workers`, shape (configurations,).

    `keeps_output`: whether the worker that served a turn also holds its output (a prefill worker does not).
    """
    before = stages.context_by_turn
    left = before.copy()
    if not keeps_output:
        left[1:] -= stages.output_by_turn[:-1]
    tokens = np.zeros((before.size, workers.size))
    for turn in range(1, before.size):
        tokens[turn] = left[turn] / workers + tokens[turn - 1] * (1 - 1 / workers)
    share = np.minimum(tokens / np.maximum(before, 1.0)[:, None], 1.0)
    edges = stages.first_turn[:, 0].astype(np.intp)
    widths = np.diff(np.append(edges, before.size))
    return RoundRobinCache(
        workers=workers[None, :],
        found=np.add.reduceat(share, edges, axis=0) / widths[:, None],
        visited=1 - (1 - 1 / workers[None, :]) ** (stages.turn + 1),
        exposure=_exposure(edges, widths, workers),
    )


def _exposure(edges: Widths, widths: Widths, workers: Floats) -> Floats:
    """Where the time lies since a trajectory was last at the worker that it meets.

    It was there j turns ago with probability (1/N)(1-1/N)^(j-1), so that i turns ago lie within that time with
    (1-1/N)^i; turns before the first are none.
    """
    stays = 1 - 1 / workers
    weights = np.zeros((edges.size, workers.size))
    exposure = np.zeros((edges.size, edges.size, workers.size))
    for stage, (first, width) in enumerate(zip(edges.tolist(), widths.tolist(), strict=True)):
        for turn in range(first, first + width):
            weights *= stays
            weights[stage] += 1 - stays
            exposure[stage] += weights / (1 - stays ** (turn + 1)) / width
    return exposure
