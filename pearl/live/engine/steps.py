"""What each step of an engine computed, and how long it took, as seen by its scheduler.

vLLM runs this inside the process of its scheduler, through PEARL's KV connector: `scheduled` when a step is composed,
`ended` when its output is there. Both are part of every step, so that their order pairs them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

STEPS = "pearl_steps"
"""Key of the steps within the connector's statistics; a step crosses processes as a list of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """One engine step that computed something; the counts are those of `StepRecord`."""

    ended_unix_s: float
    seconds: float
    batch: int
    context_tokens: int
    prompts: int
    new_tokens: int
    cached_tokens: int

    def row(self) -> list[float]:
        """Plain numbers."""
        counts = (self.batch, self.context_tokens, self.prompts, self.new_tokens, self.cached_tokens)
        return [self.ended_unix_s, self.seconds, *counts]

    @classmethod
    def of(cls, row: list[float]) -> EngineStep:
        """The step that `row` gave."""
        ended_unix_s, seconds, *counts = row
        batch, context_tokens, prompts, new_tokens, cached_tokens = (int(count) for count in counts)
        return cls(
            ended_unix_s=ended_unix_s,
            seconds=seconds,
            batch=batch,
            context_tokens=context_tokens,
            prompts=prompts,
            new_tokens=new_tokens,
            cached_tokens=cached_tokens,
        )


@dataclass(slots=True)
class _Shape:
    began_s: float
    batch: int = 0
    context_tokens: int = 0
    prompts: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class StepMeter:
    """Measures steps. Where the next is composed before the last has ended, a step counts from the end of the last.

    So busy engines' steps add up to the time that passed, and idle time is in none of them.
    """

    now_s: Callable[[], float] = time.monotonic
    unix_s: Callable[[], float] = time.time
    _under_way: deque[_Shape] = field(default_factory=deque, init=False)
    _ended_s: float = field(default=0.0, init=False)

    def scheduled(self, output: Any) -> None:
        """A step was composed: vLLM's `SchedulerOutput`.

        A sequence that gets one token counts as decoding, whatever vLLM calls it: the last token of a prompt whose KV
        was pulled or cached costs what a decoded one costs.
        """
        shape = _Shape(began_s=self.now_s())
        tokens = output.num_scheduled_tokens
        for request, before in _computed(output):
            new = tokens.get(request, 0)
            if new == 1:
                shape.batch += 1
                shape.context_tokens += before + 1
            elif new > 1:
                shape.prompts += 1
                shape.new_tokens += new
                shape.cached_tokens += before
        self._under_way.append(shape)

    def ended(self) -> EngineStep | None:
        """The oldest step under way has ended; None where it computed nothing."""
        if not self._under_way:
            return None
        shape, now_s = self._under_way.popleft(), self.now_s()
        seconds, self._ended_s = now_s - max(shape.began_s, self._ended_s), now_s
        if not (shape.batch or shape.prompts) or seconds <= 0:
            return None
        return EngineStep(
            ended_unix_s=self.unix_s(),
            seconds=seconds,
            batch=shape.batch,
            context_tokens=shape.context_tokens,
            prompts=shape.prompts,
            new_tokens=shape.new_tokens,
            cached_tokens=shape.cached_tokens,
        )


def _computed(output: Any) -> Iterator[tuple[str, int]]:
    """Requests of the step, each with the tokens of its context that were there before."""
    for request in output.scheduled_new_reqs:
        yield request.req_id, request.num_computed_tokens
    known = output.scheduled_cached_reqs
    yield from zip(known.req_ids, known.num_computed_tokens, strict=True)
