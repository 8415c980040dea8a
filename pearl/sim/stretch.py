"""Step times: of single steps that prefill, and of many decode steps in one go.

Contexts grow by one token a step, so the times of successive decode steps form an arithmetic series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pearl.core.engine import DecodeCost, EngineProfile


@dataclass(slots=True)
class Stretch:
    """A run of decode steps of an unchanging batch: step i (from 0) takes `first_s` + i·`slope_s` seconds."""

    first_s: float = 1.0
    slope_s: float = 0.0

    def restart(self, cost: DecodeCost, batch: int, context_tokens: int) -> None:
        """Steps of `batch` sequences whose contexts, at least a token each, sum to `context_tokens` in the first."""
        self.first_s = cost.seconds(batch, context_tokens)
        self.slope_s = cost.c2_s * batch

    def seconds(self, steps: int) -> float:
        """Time of the first `steps` steps."""
        return steps * self.first_s + self.slope_s * (steps * (steps - 1) / 2)

    def steps_within(self, elapsed_s: float) -> int:
        """Whole steps that are over by `elapsed_s`: the largest k with seconds(k) ≤ elapsed_s."""
        steps = int(self._root(elapsed_s))
        while self.seconds(steps) > elapsed_s:
            steps -= 1
        while self.seconds(steps + 1) <= elapsed_s:
            steps += 1
        return steps

    def steps_until(self, elapsed_s: float) -> int:
        """Steps until the first step boundary at or after `elapsed_s`: the smallest k with seconds(k) ≥ elapsed_s."""
        steps = math.ceil(self._root(elapsed_s))
        while self.seconds(steps) < elapsed_s:
            steps += 1
        while steps and self.seconds(steps - 1) >= elapsed_s:
            steps -= 1
        return steps

    def _root(self, elapsed_s: float) -> float:
        """Positive root of half·k² + linear·k = elapsed, in the form that stays exact as the slope goes to 0."""
        half = self.slope_s / 2
        linear = self.first_s - half
        return 2 * elapsed_s / (linear + math.sqrt(linear * linear + 4 * half * elapsed_s))


def step_parts_s(
    profile: EngineProfile, chunks: Iterable[tuple[int, int]], batch: int, context_tokens: int
) -> tuple[float, float]:
    """Prefill and decode part of a step with prefill `chunks`, each (new tokens, tokens before them).

    The parts of the profile, p0 once for all chunks; both times `mixed_step_factor` if `batch` sequences decode too.
    """
    cost = profile.prefill
    prefill_s = fixed_s = cost.p0_s
    for new, cached in chunks:
        prefill_s += cost.seconds(new, cached) - fixed_s
    if not batch:
        return prefill_s, 0.0
    decode_s = profile.decode.seconds(batch, context_tokens)
    return profile.mixed_step_factor * prefill_s, profile.mixed_step_factor * decode_s
