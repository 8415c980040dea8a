"""What a predictor of cycles gives back, and the damped iteration that finds a fixed point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pearl.makespan.sample import Floats

FIRST_SHARES = (1.0, 0.8, 0.7, 0.6, 0.5)
"""Share of the new value that each step of a first solution takes. Every step solves each station's own queue in closed
form, so few are needed; the share falls, since a full cache and its misses would chase each other."""

NEXT_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""The same for a solution that starts from that of a similar load."""


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
    state: Floats
    """The fixed point itself, to start a similar one from."""


def fixed_point(update: Callable[[Floats], Floats], start: Floats, shares: tuple[float, ...]) -> Floats:
    """Iterate `update` on a state of shape (quantities, stages, configurations)."""
    state = start
    for share in shares:
        state = state + share * (update(state) - state)
    return state
