"""Which counts are computed: all of a small pool, a geometric ladder of a large one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pearl.makespan.sample import Floats

LARGEST_EXACT_POOL = 64
"""Up to here every pair is computed: 2,016 of them."""

RUNGS_PER_DOUBLING = 4
"""A rung is at most 19 % above the one below, which moves the makespan by less than that."""

Integers = NDArray[np.int_]


def ladder(workers: int) -> Integers:
    """Rungs from 1 to `workers`: every count at first, then a geometric series."""
    steps = int(np.ceil(np.log2(workers) * RUNGS_PER_DOUBLING)) + 1
    return np.unique(
        np.append(np.rint(2.0 ** (np.arange(steps) / RUNGS_PER_DOUBLING)).clip(1, workers), workers)
    ).astype(np.int_)


def every_pair(workers: int) -> tuple[Integers, Integers]:
    """All (prefill, decode) with at least one of each and at most `workers` in all."""
    prefill, decode = np.meshgrid(np.arange(1, workers), np.arange(1, workers), indexing="ij")
    within = prefill + decode <= workers
    return prefill[within], decode[within]


def ladder_pairs(rungs: Integers, workers: int) -> tuple[Integers, Integers]:
    """Pairs of rungs that fit into the pool, and for each rung the pair that uses the whole pool."""
    prefill, decode = np.meshgrid(rungs, rungs, indexing="ij")
    within = prefill + decode <= workers
    short = rungs[rungs < workers]
    pairs = np.stack(
        (
            np.concatenate((prefill[within], short, workers - short)),
            np.concatenate((decode[within], workers - short, short)),
        ),
        axis=1,
    )
    distinct = np.unique(pairs, axis=0)
    return distinct[:, 0], distinct[:, 1]


def between_rungs(rungs: Integers, values: Floats, workers: int) -> Floats:
    """Values for 1 … `workers`, linear in log(count) between rungs."""
    if rungs.size == workers:
        return values
    return np.interp(np.log(np.arange(1, workers + 1)), np.log(rungs), values)
