"""A batch cut into stages of its trajectories' progress: the turns of one stage share one load and one mean turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.makespan.sample import Floats, Sample

MOST_STAGES = 10
"""Stages of progress; contexts and survivors change little within a tenth of a trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Mean turn of each stage, arrays of shape (stages, 1) so that they broadcast over configurations.

    Means are over all turns of the stage. `held_tokens` is the context that the last turn's prefill left behind, so
    without its output; `final_share` the share of turns after which the trajectory ends.
    """

    survivors: Floats
    """Share of trajectories that have the stage's turns."""
    new_tokens: Floats
    cached_tokens: Floats
    previous_output_tokens: Floats
    output_tokens: Floats
    environment_s: Floats
    running_tokens: Floats
    first_turn: Floats
    """Index of the stage's first turn."""
    turn: Floats
    """Mean index of the stage's turns, from 0."""
    new_variance: Floats
    output_variance: Floats
    environment_variance: Floats
    counts: Floats
    """Turns by trajectory and stage, shape (trajectories, stages); so are the two below."""
    new_by_trajectory: Floats
    output_by_trajectory: Floats
    environment_by_trajectory: Floats
    final_tokens: Floats
    """Context at each trajectory's end, shape (trajectories,)."""
    context_by_turn: Floats
    """Mean context before each turn, over the trajectories that have it, shape (turns,)."""
    output_by_turn: Floats


def stages_of(sample: Sample) -> Stages:
    """Cut a sample into stages: the first turn, whose prompts all arrive at once, then equal numbers of turns."""
    turns = sample.alive.shape[1]
    edges = stage_edges(turns)
    alive = sample.alive.astype(np.float64)
    per_turn = alive.sum(axis=0)
    counts = _by_stage(alive, edges)
    weight = np.maximum(counts.sum(axis=0), 1e-12)[:, None]
    previous = np.concatenate((np.zeros((alive.shape[0], 1)), sample.output_tokens[:, :-1]), axis=1) * alive

    def mean(values: Floats) -> Floats:
        result: Floats = _by_stage(values, edges).sum(axis=0)[:, None] / weight
        return result

    new, output, environment = mean(sample.new_tokens), mean(sample.output_tokens), mean(sample.environment_s)
    held = sample.output_tokens * (sample.context_tokens + sample.new_tokens + sample.output_tokens / 2)
    widths = np.diff(np.append(edges, turns))
    return Stages(
        survivors=weight / (alive.shape[0] * widths[:, None]),
        new_tokens=new,
        cached_tokens=mean(sample.context_tokens),
        previous_output_tokens=mean(previous),
        output_tokens=output,
        environment_s=environment,
        running_tokens=mean(held) / np.maximum(output, 1e-12),
        first_turn=edges[:, None].astype(np.float64),
        turn=mean(alive * np.arange(turns)),
        new_variance=np.maximum(mean(sample.new_tokens**2) - new**2, 0.0),
        output_variance=np.maximum(mean(sample.output_tokens**2) - output**2, 0.0),
        environment_variance=np.maximum(mean(sample.environment_s**2) - environment**2, 0.0),
        counts=counts,
        new_by_trajectory=_by_stage(sample.new_tokens, edges),
        output_by_trajectory=_by_stage(sample.output_tokens, edges),
        environment_by_trajectory=_by_stage(sample.environment_s, edges),
        final_tokens=(sample.new_tokens + sample.output_tokens).sum(axis=1),
        context_by_turn=sample.context_tokens.sum(axis=0) / per_turn,
        output_by_turn=sample.output_tokens.sum(axis=0) / per_turn,
    )


def stage_edges(turns: int) -> NDArray[np.int_]:
    """First turn of each stage."""
    later = np.linspace(1, turns, min(MOST_STAGES, turns))[:-1] if turns > 1 else np.empty(0)
    return np.concatenate(([0], np.floor(later))).astype(np.int_)


def _by_stage(values: Floats, edges: NDArray[np.int_]) -> Floats:
    return np.add.reduceat(values, edges, axis=1)
