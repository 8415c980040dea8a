"""Stations of the closed queueing network: what a trajectory waits for where others are served too.

Approximate mean value analysis: an arriving customer meets the others as they are on average (M. Reiser and
S. Lavenberg, JACM 27(2), 1980; the fixed point over the number of others is Schweitzer's, 1979). docs/mathematics.md.
"""

from __future__ import annotations

import numpy as np

from pearl.core.engine import EngineProfile, PrefillCost
from pearl.makespan.costs import prefill_s
from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages

LEAST_DECODE_S = 1e-9
"""Decode of a turn whose only token is that of its prefill: shares of it are asked for, so that it is not 0."""
USED_SOME, USED_ALL = 0.9, 1.0
"""Utilisations at which no worker, and for certain one, falls behind the others. At 0.9 a queue of independent arrivals
is some ten turns long, and moves by as much."""


def shared_s(alone_s: Floats, other_s: Floats, *, others: Floats, away_s: Floats) -> Floats:
    """Time at a station where every other customer present adds to one's own: R = A + other·(m-1)·R/(Z+R).

    `alone_s` A is the time without others, `other_s` what each adds, `others` m-1 the other customers, `away_s` Z the
    rest of the cycle. The positive root of R² + (Z - A - B)·R - A·Z with B = other·(m-1), in seconds.
    """
    excess = alone_s + other_s * others - away_s
    result: Floats = (excess + np.sqrt(excess * excess + 4 * alone_s * away_s)) / 2
    return result


def fcfs_other_s(work_s: Floats, *, added_s: Floats, variation: Floats, response_s: Floats) -> Floats:
    """What each other customer adds at a first-come-first-served station with general service times.

    One that waits adds `added_s`, the one being served its residual E[s²]/(2·E[s]); of those present the share
    work/response is being served. `variation` is the squared coefficient of variation of the work.
    """
    served = np.minimum(work_s / np.maximum(response_s, 1e-12), 1.0)
    residual = work_s * (1 + np.minimum(variation, 1.0)) / 2
    result: Floats = added_s + served * (residual - added_s)
    return result


def cyclic_s(queued_s: Floats, work_s: Floats, *, backlog_s: Floats, variation: Floats, workers: Floats) -> Floats:
    """Response time where a router deals turns out in turn to `workers`, from that of independent arrivals.

    Of a Poisson stream every N-th arrival goes to one worker: times between those vary by 1/N of a Poisson stream's.
    Waiting grows with the sum of both variations, (c_a² + c_s²)/(1 + c_s²) of what independent arrivals wait (A. Allen,
    *Probability, Statistics, and Queueing Theory*, 1990, section 5.3); what even spacing cannot avoid is `backlog_s`.
    """
    varied = np.minimum(variation, 1.0)
    share = (1 / workers + varied) / (1 + varied)
    result: Floats = share * queued_s + (1 - share) * (work_s + np.maximum(backlog_s, 0.0))
    return result


def hot_spot_s(used: Floats, slow_cycle_s: Floats, cycle_s: Floats) -> Floats:
    """What a turn waits in addition where one of the prefill workers has become slower than the others.

    Turns are dealt out evenly, whatever the queues. Once a worker is short of slack (`used`, its utilisation, shape
    (stages, configurations)), its queue is as long as the time for which prefixes last: what waits there loses its
    prefix, the worker takes longer for each turn, and its queue grows, until everybody waits there for
    `slow_cycle_s`, all others being faster. It stays so while that is longer than the cycle without it.
    """
    fallen = np.clip((used - USED_SOME) / (USED_ALL - USED_SOME), 0.0, 1.0)
    result: Floats = np.maximum.accumulate(fallen, axis=0) * np.maximum(slow_cycle_s - cycle_s, 0.0)
    return result


def first_step_prompts(stages: Stages, chunk_tokens: int) -> float:
    """First prompts that share a step: their trajectories stay together for as long as they move in step."""
    return max(chunk_tokens / max(float(stages.new_tokens[0, 0]), 1.0), 1.0)


def in_step_s(
    work_s: Floats, added_s: Floats, *, others: Floats, away_s: Floats, together: float, first_turn: Floats
) -> Floats:
    """Response time of a serial station to trajectories that move in step; each other one adds `added_s`.

    At the start all arrive at once, and wait for half of the others on average. Their departures are then spaced by the
    service, so that later they meet only the `together` that shared one step, or else the backlog of a full cycle.
    """
    burst = work_s + added_s * others / 2
    spaced = work_s + np.maximum(added_s * np.minimum(together - 1, others), added_s * others - away_s)
    return np.where(first_turn > 0, spaced, burst)


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

    def __init__(self, engine: EngineProfile, stages: Stages, *, held_tokens: Floats, whole: bool) -> None:
        """`held_tokens`: prefix that can be found at most; `whole`: it is found whole or not at all (affinity)."""
        cost = engine.prefill
        self._cost = cost
        self._chunk = engine.chunk_tokens
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

    def added_s(self, hit: Floats, mean_s: Floats) -> Floats:
        """What the work adds to a step that others share: as far as they fit into one chunk, p0 is paid once."""
        tokens = np.maximum(self._prompt - hit * self._held, 1.0)
        result: Floats = mean_s - self._cost.p0_s * np.maximum(1 - tokens / self._chunk, 0.0)
        return result

    def variation(self, hit: Floats, mean_s: Floats, *, found: Floats) -> Floats:
        """Squared coefficient of variation of the work; a copy of the share `found` of the prefix lasts or not."""
        lasted = np.clip(hit / np.maximum(found, 1e-9), 0.0, 1.0)
        missing = lasted * (1 - lasted) * (self._missed_s - self.mean_s(found)) ** 2
        result: Floats = (missing + self._own_variance_s2) / np.maximum(mean_s, 1e-12) ** 2
        return result
