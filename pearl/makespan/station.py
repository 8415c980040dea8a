"""Stations of the closed queueing network: what a trajectory waits for where others are served too.

Approximate mean value analysis: an arriving customer meets the others as they are on average (M. Reiser and
S. Lavenberg, JACM 27(2), 1980; the fixed point over the number of others is Schweitzer's, 1979). docs/mathematics.md.
"""

from __future__ import annotations

import numpy as np

from pearl.core.engine import PrefillCost
from pearl.makespan.costs import prefill_s
from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages


def fcfs_s(work_s: Floats, *, variation: Floats, others: Floats, busy: Floats) -> Floats:
    """Response time of a first-come-first-served server with general service times.

    `others` are the other customers present, waiting or served, `busy` the chance that one of them is being served; of
    that one the residual E[s²]/(2·E[s]) remains. `variation` is the squared coefficient of variation.
    """
    waiting = np.maximum(others - busy, 0.0)
    response: Floats = work_s * (1 + waiting + busy * (1 + variation) / 2)
    return response


def synchrony(stages: Stages, variance_s2: Floats, cycle_s: Floats) -> Floats:
    """How far the trajectories still move in step, from 1 (all at once, as at the start) to 0 (independent).

    All start together; after k turns whose lengths vary by σ, the phase in the cycle C has spread by σ·√k, and the
    first harmonic of its density has fallen to exp(-2π²·k·σ²/C²).
    """
    result: Floats = np.exp(-2 * np.pi**2 * stages.turn * variance_s2 / np.maximum(cycle_s, 1e-9) ** 2)
    return result


def turn_variance_s2(stages: Stages, cost: PrefillCost, token_s: Floats) -> Floats:
    """Variance of a turn's length: environment, output at `token_s` seconds a token, and new prompt tokens."""
    result: Floats = (
        stages.environment_variance + stages.output_variance * token_s**2 + prompt_variance_s2(stages, cost)
    )
    return result


def prompt_variance_s2(stages: Stages, cost: PrefillCost) -> Floats:
    """Variance of a turn's prefill from its own new tokens."""
    result: Floats = stages.new_variance * cost.p1_s**2
    return result


class PrefillWork:
    """Seconds of prefill in a mean turn of each stage, by how much of its prefix is found."""

    def __init__(self, cost: PrefillCost, stages: Stages, *, held_tokens: Floats, whole: bool) -> None:
        """`held_tokens`: prefix that can be found at most; `whole`: it is found whole or not at all (affinity)."""
        self._cost = cost
        self._held = held_tokens
        self._prompt = stages.cached_tokens + stages.new_tokens
        self._whole = whole
        self._found_s = prefill_s(cost, self._prompt - held_tokens, held_tokens)
        self._missed_s = prefill_s(cost, self._prompt, np.zeros_like(held_tokens))
        self._own_variance_s2 = prompt_variance_s2(stages, cost)

    def mean_s(self, hit: Floats) -> Floats:
        """Expected work."""
        if self._whole:
            result: Floats = hit * self._found_s + (1 - hit) * self._missed_s
            return result
        found = hit * self._held
        return prefill_s(self._cost, self._prompt - found, found)

    def variation(self, hit: Floats, mean_s: Floats) -> Floats:
        """Squared coefficient of variation of the work."""
        missing = hit * (1 - hit) * (self._missed_s - self._found_s) ** 2 if self._whole else 0.0
        result: Floats = (missing + self._own_variance_s2) / np.maximum(mean_s, 1e-12) ** 2
        return result
