"""Corrections: by how much measured makespans exceed predicted ones, mode by mode.

A mode is given up when measurement disagrees with what was predicted of it. A mode that was never measured is taken to
be mispredicted like the one that was, within COMMON_BOUND: most errors (turns, token counts, step times) are common to
both, and what exceeds them is that mode's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pearl.core.cluster import Mode

NEWEST_WEIGHT = 0.3
"""Share of the newest batch in the average: makespans of single batches scatter by some 5 %, which ten batches of
memory bring below the threshold of a mode change."""
STEP = 0.02
"""Corrections move in steps of 2 %, so that the noise of a batch leaves decisions and their inputs as they are."""
COMMON_BOUND = 1.5
"""Largest factor that one mode's measurement lends the other: a profile wrong by more than half is no estimate."""
BOUND = 16.0
"""Largest factor believed; beyond it the measurement is of something else than the batch."""


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """Averages of log(measured / predicted), by mode."""

    logs: Mapping[Mode, float] = field(default_factory=dict)

    def after(self, mode: Mode, ratio: float) -> Corrections:
        """The corrections after one batch that ran in `mode` throughout, and took `ratio` times what was predicted."""
        log = math.log(min(max(ratio, 1 / BOUND), BOUND))
        known = self.logs.get(mode)
        value = log if known is None else known + NEWEST_WEIGHT * (log - known)
        return Corrections(logs={**self.logs, mode: value})

    def factors(self) -> dict[Mode, float]:
        """What to multiply each mode's predictions by; empty while nothing was measured."""
        if not self.logs:
            return {}
        limit = math.log(COMMON_BOUND)
        common = min(max(sum(self.logs.values()) / len(self.logs), -limit), limit)
        return {mode: math.exp(STEP * round(self.logs.get(mode, common) / STEP)) for mode in Mode}


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Progress of a batch by prediction, while the pool that serves it changes.

    A pool that is predicted to take T for a whole batch does dt/T of it in dt. Over the batch this adds up to measured
    over predicted makespan: 1 where predictions hold.
    """

    since_s: float
    makespan_s: float
    """Predicted for the pool as it is now, without correction."""
    modes: frozenset[Mode]
    """Modes that the batch was served in so far."""
    progress: float = 0.0

    def until(self, now_s: float) -> float:
        """Progress at `now_s`."""
        return self.progress + max(0.0, now_s - self.since_s) / self.makespan_s

    def changed(self, now_s: float, *, makespan_s: float, mode: Mode) -> Pace:
        """The pace once the pool is another, or is predicted otherwise."""
        return Pace(since_s=now_s, makespan_s=makespan_s, modes=self.modes | {mode}, progress=self.until(now_s))
