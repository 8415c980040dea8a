"""The event queue: simulated time, and what happens next."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

ARRIVAL: Final = 0
"""Arrivals go first, so that work that comes as a step ends can join the next one."""
STEP_END: Final = 1
WAKE: Final = 2
"""Idle engines start last, so that everything that arrives at one instant shares their first step."""


class EventQueue:
    """A heap of (time, priority, sequence): the sequence breaks ties, so that a run repeats exactly."""

    __slots__ = ("_heap", "_sequence", "_stopped", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._stopped = False

    def at(self, time_s: float, priority: int, action: Callable[[Any], None], argument: Any = None) -> None:
        """Run `action(argument)` at `time_s`, which must not lie in the past."""
        if time_s < self.now_s:
            raise ValueError(f"event at {time_s} s lies before now ({self.now_s} s)")
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (time_s, priority, sequence, action, argument))

    def run(self, *, until_s: float = math.inf) -> None:
        """Handle every event up to and including `until_s`; the clock then stands there, if it is finite.

        Where an event stops the queue, the clock stands at that event; the next run goes on from there.
        """
        heap = self._heap
        self._stopped = False
        while heap and not self._stopped:
            event = heappop(heap)
            time_s, _, _, action, argument = event
            if time_s > until_s:
                heappush(heap, event)
                break
            self.now_s = time_s
            action(argument)
        if until_s < math.inf and not self._stopped:
            self.now_s = max(self.now_s, until_s)

    def stop(self) -> None:
        """End the run after the event under way."""
        self._stopped = True

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite if there is none."""
        return self._heap[0][0] if self._heap else math.inf
