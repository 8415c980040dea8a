"""The controller's clock: seconds of Unix time at its start, and monotonic from there."""

from __future__ import annotations

import time
from collections.abc import Callable


class ControlClock:
    """`pearl.core.ports.Clock` that never goes back while it runs, and that stored times can be compared with."""

    def __init__(self, *, unix_s: Callable[[], float] = time.time, monotonic_s: Callable[[], float] = time.monotonic):
        self._monotonic_s = monotonic_s
        self._origin_s = unix_s() - monotonic_s()

    def now_s(self) -> float:
        """Seconds since 1970, by the wall clock as it was when this clock was made."""
        return self._origin_s + self._monotonic_s()
