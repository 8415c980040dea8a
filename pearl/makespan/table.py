"""From predicted seconds to the integer milliseconds of tables, and what stands where a pool cannot serve."""

from __future__ import annotations

import numpy as np

from pearl.core.decision import PathTimes
from pearl.core.problem import UNREACHABLE_MS
from pearl.makespan.sample import Floats


def to_ms(seconds: Floats) -> list[int]:
    """Seconds as whole milliseconds, rounded to nearest; UNREACHABLE_MS at most."""
    whole = np.minimum(np.rint(np.nan_to_num(seconds * 1000.0, nan=np.inf, posinf=1e18)), UNREACHABLE_MS)
    return [int(value) for value in whole]


def column_ms(seconds: Floats, *, holds: bool = True) -> tuple[int, ...]:
    """A table's column: `seconds` are those of 1, 2, … workers; `holds`: one sequence fits a worker's memory."""
    values = to_ms(seconds) if holds else [UNREACHABLE_MS] * seconds.size
    return (UNREACHABLE_MS, *values)


def unserved() -> PathTimes:
    """Path times of a configuration that cannot serve the batch."""
    return PathTimes(
        makespan_s=UNREACHABLE_MS / 1000,
        prefill_s=0.0,
        transfer_s=0.0,
        decode_s=0.0,
        environment_s=0.0,
        prefix_hit_rate=0.0,
        prefill_utilisation=0.0,
        decode_utilisation=0.0,
    )
