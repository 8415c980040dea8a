"""Products of small matrices on the thread that asks for them."""

from __future__ import annotations

import numpy as np

from pearl.makespan.sample import Floats

MOST_ELEMENTS = 8192
"""Size up to which OpenBLAS keeps a product to one thread: 9,216 elements of a matrix times a vector, 262,144
multiplications of two matrices, of which an element takes 30 here. Beyond, it wakes its threads for a fraction of a
millisecond, and they go on to spin: with every core busy, tables of 24 workers took 497 ms in place of 125."""


def product(left: Floats, right: Floats) -> Floats:
    """`left @ right`, a few columns at a time."""
    width = max(1, MOST_ELEMENTS // max(left.shape[0], right.shape[0]))
    blocks = [left @ right[:, start : start + width] for start in range(0, right.shape[1], width)]
    return np.concatenate(blocks, axis=1)
