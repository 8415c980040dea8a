"""From cycles to completions: when each trajectory ends, and when the last of B does."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pearl.makespan.cycle import Cycle
from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages

TAIL_POINTS = 16
"""Completions that the tail beyond the sample is extrapolated from."""

LEAST_STRAGGLERS = 4
"""Trajectories averaged for the path of the last one: fewer follow one trajectory's accidents."""


SURVIVAL_POINTS = 32
"""Order statistics that stand for the survival curve."""


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


def completions_s(stages: Stages, rates: Rates) -> Floats:
    """Completion of each representative trajectory, shape (trajectories, configurations)."""
    amounts = np.concatenate((stages.counts, stages.new_by_trajectory, stages.output_by_trajectory), axis=1)
    costs = np.concatenate((rates.turn_s, rates.new_token_s, rates.output_token_s), axis=0)
    result: Floats = amounts @ costs + stages.environment_by_trajectory.sum(axis=1)[:, None]
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
    last: Floats = last_weights(size, min(trajectories, size)) @ ordered
    if trajectories <= size:
        return last
    excess = ordered[-TAIL_POINTS:].mean(axis=0) - ordered[-TAIL_POINTS - 1]
    tail: Floats = last + excess * math.log(trajectories / size)
    return tail


def survivors_met_by_last(stages: Stages, rates: Rates, completions: Floats, trajectories: int) -> Floats:
    """Share of trajectories still under way while the batch's last ones pass through each stage, averaged over it."""
    size = completions.shape[0]
    number = max(LEAST_STRAGGLERS, min(size // 8, round(size / trajectories)))
    last = np.argpartition(completions, size - number, axis=0)[-number:]
    spent = (
        stages.counts[last] * rates.turn_s.T
        + stages.new_by_trajectory[last] * rates.new_token_s.T
        + stages.output_by_trajectory[last] * rates.output_token_s.T
        + stages.environment_by_trajectory[last]
    ).mean(axis=0)
    ends = np.cumsum(spent, axis=1).T
    starts = ends - spent.T
    ordered = np.sort(completions, axis=0)[:: max(1, size // SURVIVAL_POINTS)]
    left: Floats = np.stack(
        [
            np.clip((ordered - start) / np.maximum(end - start, 1e-12), 0.0, 1.0).mean(axis=0)
            for start, end in zip(starts, ends, strict=True)
        ]
    )
    return left
