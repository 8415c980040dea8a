"""Trajectories drawn from a workload profile, before any configuration is known: common random numbers for all."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from pearl.core.distribution import Distribution
from pearl.core.workload import Workload


class Turn(NamedTuple):
    """One turn: tokens appended to the context, tokens generated, then seconds in the environment."""

    new_prompt_tokens: int
    output_tokens: int
    environment_s: float


Trajectory = tuple[Turn, ...]


def sample(workload: Workload, rng: Random) -> tuple[Trajectory, ...]:
    """The batch's trajectories by inverse CDF; a larger batch from the same seed begins with the same trajectories."""
    return tuple(sample_one(workload, rng) for _ in range(workload.trajectories))


def sample_one(workload: Workload, rng: Random) -> Trajectory:
    """One trajectory; it ends after its drawn turns, or where its context reaches `max_context_tokens`."""
    turns: list[Turn] = []
    room, prompts, outputs = workload.max_context_tokens, workload.first_prompt_tokens, workload.output_tokens
    environment = workload.environment_s
    for index in range(_count(workload.turns, rng)):
        prompt = _count(prompts, rng)
        output = _count(outputs, rng)
        environment_s = max(0.0, environment.quantile(rng.random() or 0.5))
        if not index:
            prompt, prompts = max(1, min(prompt, room - 1)), workload.new_prompt_tokens
        output = min(output, room - prompt)
        if output < 1 and index:
            break
        turns.append(Turn(prompt, max(output, 1), environment_s))
        room -= prompt + output
    return tuple(turns)


def context_tokens(trajectory: Trajectory) -> int:
    """Context at the trajectory's end."""
    return sum(turn.new_prompt_tokens + turn.output_tokens for turn in trajectory)


def _count(distribution: Distribution, rng: Random) -> int:
    return max(1, int(distribution.quantile(rng.random() or 0.5) + 0.5))
