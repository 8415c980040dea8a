"""The executor as the scheduler sees it from the thread that it ticks in.

Looks at the executor run on the event loop, since state is read and written there alone. Steps are kept back: the
controller stores the plan before it hands them over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Mapping
from typing import TypeVar

from pearl.core.cluster import ClusterState
from pearl.core.plan import Step
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.errors import PearlError
from pearl.live.control.ports import Executor, Observer

ANSWER_WITHIN_S = 30.0
"""The loop answers within milliseconds; past this it is stopping, and the tick is given up."""

T = TypeVar("T")


class TickFacade:
    """A `PlanExecutor` and a `Situate` of `pearl.scheduler` for one thread; in shadow it looks, and changes nothing."""

    def __init__(
        self, *, executor: Executor, observer: Observer, loop: asyncio.AbstractEventLoop, shadow: bool = False
    ) -> None:
        self._executor = executor
        self._observer = observer
        self._loop = loop
        self._shadow = shadow
        self._steps: list[Step] = []

    def observe(self) -> ClusterState:
        """The state as it is now."""
        return self._ask(self._executor.observe)

    def apply(self, step: Step) -> None:
        """Keep a step for `take`."""
        self._steps.append(step)

    @property
    def busy(self) -> bool:
        """Whether steps of a plan are still being carried out."""
        return self._ask(lambda: self._executor.busy)

    def cancel_pending(self) -> None:
        """Drop the steps of an older plan that have not begun."""
        if not self._shadow:
            self._ask(self._executor.cancel_pending)

    def situate(self, state: ClusterState, now_s: float, changes: Mapping[Change, ChangeAge]) -> Situation:
        """The situation, by the observer."""
        return self._ask(lambda: self._observer.situation(state, now_s, changes))

    def take(self) -> tuple[Step, ...]:
        """The steps kept since the last call."""
        steps, self._steps = tuple(self._steps), []
        return steps

    def _ask(self, question: Callable[[], T]) -> T:
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def look() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as e:
                answer.set_exception(e)

        self._loop.call_soon_threadsafe(look)
        try:
            return answer.result(ANSWER_WITHIN_S)
        except concurrent.futures.TimeoutError:
            answer.cancel()
            raise PearlError(f"no answer from the event loop in {ANSWER_WITHIN_S:g} s: this tick is given up") from None
