"""What a predictor of cycles gives back, and the damped iteration that finds a fixed point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pearl.makespan.sample import Floats

ITERATIONS = 24
"""Steps of the damped iteration: the halved error is then below 1e-7, unless the load itself oscillates."""

DAMPING = 0.5
"""Share of the new value taken: undamped, a full cache and its misses chase each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A mean turn of each stage, arrays of shape (stages, configurations); times in seconds.

    The turn takes work_s + wait_s + transfer_s + decode_s, and then the environment.
    """

    work_s: Floats
    """Prefill of the turn alone, missed prefixes included."""
    wait_s: Floats
    """Everything spent until the first token beyond that: queues, steps under way, memory."""
    transfer_s: Floats
    decode_s: Floats
    step_s: Floats
    """One decode step."""
    batch: Floats
    """Sequences in it."""
    hit: Floats
    """Share of the prefix that the prefill found."""


def fixed_point(update: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Iterate `update` on a state of shape (quantities, stages, configurations)."""
    state = start
    for _ in range(ITERATIONS):
        state = (1 - DAMPING) * state + DAMPING * update(state)
    return state
