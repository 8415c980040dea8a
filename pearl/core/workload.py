"""The workload profile: what a batch of multi-turn trajectories asks of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pearl.core.distribution import Distribution


class Routing(StrEnum):
    """How a trajectory's next turn finds its worker."""

    AFFINITY = "affinity"
    """Back to the worker that holds its prefix."""
    ROUND_ROBIN = "round_robin"


class Training(StrEnum):
    """How rollout and training interleave."""

    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch of B trajectories; each turn prefills its new tokens, decodes its output, then waits on the environment.

    The first turn's prompt is drawn from `first_prompt_tokens`, each later turn's new (uncached) tokens from
    `new_prompt_tokens`. A trajectory ends after its drawn number of turns, or when its context reaches
    `max_context_tokens`.
    """

    trajectories: int
    turns: Distribution
    first_prompt_tokens: Distribution
    new_prompt_tokens: Distribution
    output_tokens: Distribution
    environment_s: Distribution
    max_context_tokens: int
    routing: Routing = Routing.AFFINITY
    training: Training = Training.ASYNCHRONOUS
    max_staleness: int = 1
    """Weight versions that a trajectory may lag behind the trainer."""
