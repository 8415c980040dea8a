"""The order in which steps are carried out, by every executor: phase by phase, as a plan lists them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from pearl.core.plan import Step
from pearl.planning.estimate import phase_of

Item = TypeVar("Item")
"""A step, or what an executor wraps around one."""


class Program(Generic[Item]):
    """Steps given and not yet ended.

    Adjacent steps of one phase run side by side; the next phase begins when they have all ended. Starts run in the
    background, and nothing waits for them but the admission of their group.
    """

    def __init__(self, begin: Callable[[Item], bool], step_of: Callable[[Item], Step]) -> None:
        self._begin = begin
        """Begins a step; whether there is anything to wait for, in which case `ended` is called once it is over."""
        self._step_of = step_of
        self._pending: deque[Item] = deque()
        self._running = 0
        self._phase = ""

    @property
    def idle(self) -> bool:
        """Whether every step has ended, starts in the background apart."""
        return not self._pending and not self._running

    @property
    def pending(self) -> Iterable[Item]:
        """What has not begun, in order."""
        return tuple(self._pending)

    def append(self, item: Item) -> None:
        """Carry out `item` after those given before."""
        self._pending.append(item)
        self._advance()

    def cancel(self, keep: Callable[[Item], bool]) -> list[Item]:
        """Drop the steps that have not begun, but for those to keep; returns the dropped ones."""
        dropped = [item for item in self._pending if not keep(item)]
        self._pending = deque(item for item in self._pending if keep(item))
        self._advance()
        return dropped

    def ended(self) -> None:
        """A step that was waited for is over."""
        self._running -= 1
        self._advance()

    def _advance(self) -> None:
        while self._pending:
            phase = phase_of(self._step_of(self._pending[0]))
            if self._running and phase != self._phase:
                return
            item = self._pending.popleft()
            self._phase = phase
            if self._begin(item):
                self._running += 1
