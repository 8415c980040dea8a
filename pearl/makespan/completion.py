"""From cycles to completions: when each trajectory ends, and when the last of B does."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pearl.makespan.cycle import Cycle
from pearl.makespan.product import product
from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages

TAIL_POINTS = 16
"""Completions that the tail beyond the sample is extrapolated from."""

LEAST_STRAGGLERS = 4
"""Trajectories averaged for the path of the last one: fewer follow one trajectory's accidents."""


THINNED = 2
"""Of so many representative trajectories one is followed to see whom the last ones meet."""

SURVIVAL_POINTS = 16
"""Order statistics that stand for the survival curve."""


LARGEST_RATIO = 4.0
"""Bound of the others' contexts over one's own; beyond, linear growth in time says more than it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What each turn, new token and output token costs, by stage and configuration, in seconds."""

    turn_s: Floats
    new_token_s: Floats
    output_token_s: Floats


def rates_of(stages: Stages, cycle: Cycle) -> Rates:
    """Spread a mean turn over its parts, so that trajectories with more tokens take longer."""
    return Rates(
        turn_s=cycle.wait_s + cycle.transfer_s,
        new_token_s=cycle.work_s / np.maximum(stages.new_tokens, 1.0),
        output_token_s=cycle.decode_s / np.maximum(stages.output_tokens, 1e-9),
    )


def completions_s(stages: Stages, rates: Rates, *, every: int = 1) -> Floats:
    """Completion of every so-manieth representative trajectory, shape (trajectories, configurations)."""
    amounts = np.concatenate((stages.counts, stages.new_by_trajectory, stages.output_by_trajectory), axis=1)[::every]
    costs = np.concatenate((rates.turn_s, rates.new_token_s, rates.output_token_s), axis=0)
    result: Floats = product(amounts, costs) + stages.environment_by_trajectory[::every].sum(axis=1)[:, None]
    return result


def last_weights(size: int, trajectories: int) -> Floats:
    """Weights of sorted completions in the expected maximum of `trajectories` draws with replacement.

    P(max ≤ i-th) = (i/size)^B, so the i-th carries (i/size)^B - ((i-1)/size)^B (H. David and H. Nagaraja, *Order
    Statistics*, 2003, section 2.1).
    """
    ranks = np.arange(size + 1) / size
    weights: Floats = np.diff(ranks**trajectories)
    return weights


def expected_last_s(completions: Floats, trajectories: int) -> Floats:
    """Expected maximum over `trajectories` draws, by configuration.

    A sample smaller than the batch lacks the batch's tail: that is taken as exponential, with the mean excess of the
    sample's last `TAIL_POINTS`, and adds excess·ln(B/size).
    """
    size = completions.shape[0]
    ordered = np.sort(completions, axis=0)
    last: Floats = product(last_weights(size, min(trajectories, size))[None, :], ordered)[0]
    if trajectories <= size:
        return last
    excess = ordered[-TAIL_POINTS:].mean(axis=0) - ordered[-TAIL_POINTS - 1]
    tail: Floats = last + excess * math.log(trajectories / size)
    return tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Who else is under way while a trajectory passes through each stage, arrays (stages, configurations)."""

    survivors: Floats
    """Share of the other trajectories that have not ended."""
    context_ratio: Floats
    """Their mean context, over that of the stage."""


def company_at_same_stage(stages: Stages) -> Company:
    """Everybody is met at his own stage of progress."""
    return Company(survivors=stages.survivors, context_ratio=np.ones_like(stages.survivors))


def company_of_last(stages: Stages, rates: Rates, trajectories: int) -> Company:
    """Those whom the batch's last trajectories meet in each stage, averaged over the time that they spend in it.

    The last ones hold the share (t/T)^a of their final context in a stage reached at t; the others are taken to grow by
    the same law, each over its own life.
    """
    completions = completions_s(stages, rates, every=THINNED)
    size = completions.shape[0]
    number = min(size, max(LEAST_STRAGGLERS, min(size // 8, round(size / trajectories))))
    last = THINNED * np.argpartition(completions, size - number, axis=0)[-number:]
    spent = (
        stages.counts[last] * rates.turn_s.T
        + stages.new_by_trajectory[last] * rates.new_token_s.T
        + stages.output_by_trajectory[last] * rates.output_token_s.T
        + stages.environment_by_trajectory[last]
    ).mean(axis=0)
    ends = np.cumsum(spent, axis=1).T
    starts = ends - spent.T
    thinned = max(1, size // SURVIVAL_POINTS)
    ended = completions[::thinned]
    final = stages.final_tokens[:: THINNED * thinned, None]
    own = stages.cached_tokens + stages.new_tokens + stages.output_tokens / 2
    middles = (starts + ends) / 2
    share = np.clip(own / stages.final_tokens[last].mean(axis=0), 1e-3, 0.999)
    exponents = np.log(share) / np.log(np.clip(middles / np.maximum(ends[-1], 1e-9), 1e-3, 0.999))
    survivors, ratios = np.empty_like(ends), np.ones_like(ends)
    for stage, (start, end) in enumerate(zip(starts, ends, strict=True)):
        left = np.clip((ended - start) / np.maximum(end - start, 1e-12), 0.0, 1.0)
        survivors[stage] = left.mean(axis=0)
        lived = np.minimum(middles[stage] / np.maximum(ended, 1e-9), 1.0)
        held = (left * final * lived ** exponents[stage]).mean(axis=0)
        ratios[stage] = held / np.maximum(survivors[stage], 1e-9) / own[stage]
    return Company(survivors=survivors, context_ratio=np.clip(ratios, 1 / LARGEST_RATIO, LARGEST_RATIO))
