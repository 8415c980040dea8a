"""Means of a batch of trajectories, truncation included, and the unloaded times of its mean turn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.makespan.sample import Sample, representative_trajectories

PROFILE_SAMPLE = 128
"""Representative trajectories behind the means: within 1 % for log-normals of cv 1."""

KEPT_PROFILES = 16
"""Profiles kept for the next decision: a workload's means do not change between two batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProfile:
    """Means of a batch, truncation by context included. Per-turn means are over all turns of all trajectories."""

    trajectories: int
    turns: float
    """Expected turns of a trajectory."""
    new_tokens: float
    """Uncached prompt tokens of a turn when its whole earlier context is cached, p."""
    output_tokens: float
    """Output tokens of a turn, o."""
    environment_s: float
    """Environment seconds of a turn, e; a trajectory's last turn has none."""
    cached_tokens: float
    """Context before a turn's new tokens, c."""
    running_tokens: float
    """KV tokens of a sequence while it decodes, averaged over its decoding life, K_seq."""
    final_tokens: float
    """Mean context at a trajectory's end."""
    longest_tokens: float
    """Largest context of any representative trajectory, K_max."""

    @property
    def prompt_tokens_total(self) -> float:
        """New prompt tokens of the whole batch."""
        return self.trajectories * self.turns * self.new_tokens

    @property
    def output_tokens_total(self) -> float:
        """Output tokens of the whole batch."""
        return self.trajectories * self.turns * self.output_tokens


@lru_cache(maxsize=KEPT_PROFILES)
def batch_profile(workload: Workload) -> BatchProfile:
    """Means of `workload`, from its representative trajectories."""
    return profile_of(representative_trajectories(workload, PROFILE_SAMPLE), workload.trajectories)


def profile_of(sample: Sample, trajectories: int) -> BatchProfile:
    """Means of a sample, for a batch of `trajectories`."""
    turns = float(sample.turns.sum())
    prompt = sample.context_tokens + sample.new_tokens
    outputs = float(sample.output_tokens.sum())
    # A sequence that decodes o tokens after a prompt of n holds n + o/2 on average, for a time proportional to o.
    held = float(np.vdot(sample.output_tokens, prompt + sample.output_tokens / 2))
    final = (sample.new_tokens + sample.output_tokens).sum(axis=1)
    context = float(sample.context_tokens.sum()) / turns
    return BatchProfile(
        trajectories=trajectories,
        turns=turns / sample.turns.size,
        new_tokens=float(sample.new_tokens.sum()) / turns,
        output_tokens=outputs / turns,
        environment_s=float(sample.environment_s.sum()) / turns,
        cached_tokens=context,
        running_tokens=held / outputs if outputs else float(prompt.sum()) / turns,
        final_tokens=float(final.mean()),
        longest_tokens=float(final.max()),
    )


def unloaded_prefill_s(profile: BatchProfile, engine: EngineProfile) -> float:
    """Seconds to prefill a mean turn's new tokens after its mean cached context, alone on a worker."""
    return engine.prefill.seconds(profile.new_tokens, profile.cached_tokens)


def transfer_s(profile: BatchProfile, engine: EngineProfile) -> float:
    """Seconds to hand a mean turn's KV cache to a decode worker."""
    return engine.transfer.seconds(profile.cached_tokens + profile.new_tokens)
