"""A function of worker counts that is computed once for each combination of counts, however often it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pearl.makespan.sample import Floats

Integers = NDArray[np.int_]


class Memo:
    """Remembers an elementwise function of arrays of counts, all of one length."""

    def __init__(self, function: Callable[..., Floats]) -> None:
        self._function = function
        self._known: dict[tuple[int, ...], float] = {}

    def __call__(self, *counts: Integers) -> Floats:
        """The function's values at these counts; those that are not known yet are computed in one go."""
        asked = list(zip(*(axis.tolist() for axis in counts), strict=True))
        missing = [key for key in dict.fromkeys(asked) if key not in self._known]
        if missing:
            values = self._function(*np.ascontiguousarray(np.array(missing).T))
            self._known.update(zip(missing, values.tolist(), strict=True))
        return np.array([self._known[key] for key in asked])
