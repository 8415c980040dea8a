"""The order in which steps are carried out: phase by phase, as a plan lists them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pearl.core.plan import Step
from pearl.planning import phase_of


class Program:
    """Steps given and not yet ended.

    Adjacent steps of one phase run side by side; the next phase begins when they have all ended. Starts run in the
    background, and nothing waits for them but the admission of their group.
    """

    def __init__(self, begin: Callable[[Step], bool]) -> None:
        self._begin = begin
        """Begins a step; whether there is anything to wait for, in which case `ended` is called once it is over."""
        self._pending: deque[Step] = deque()
        self._running = 0
        self._phase = ""

    @property
    def idle(self) -> bool:
        """Whether every step has ended, starts in the background apart."""
        return not self._pending and not self._running

    def append(self, step: Step) -> None:
        """Carry out `step` after those given before."""
        self._pending.append(step)
        self._advance()

    def cancel(self, keep: Callable[[Step], bool]) -> list[Step]:
        """Drop the steps that have not begun, but for those to keep; returns the dropped ones."""
        dropped = [step for step in self._pending if not keep(step)]
        self._pending = deque(step for step in self._pending if keep(step))
        self._advance()
        return dropped

    def ended(self) -> None:
        """A step that was waited for is over."""
        self._running -= 1
        self._advance()

    def _advance(self) -> None:
        while self._pending:
            phase = phase_of(self._pending[0])
            if self._running and phase != self._phase:
                return
            step = self._pending.popleft()
            self._phase = phase
            if self._begin(step):
                self._running += 1
