"""What a scheduler has seen lately: the bounded memory behind the policy's forecasts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pearl.core.event import Event
from pearl.core.facts import ForecastSamples
from pearl.core.telemetry import ArrivalRecord, Life, Telemetry, TurnRecord
from pearl.tracking.forecasters import Forecaster, forecast
from pearl.tracking.history import History, Source

EVENT_SOURCES = frozenset({Source.OVERLAP_WINDOW, Source.SPOT_RECLAIMS, Source.SPOT_ARRIVALS})
"""Sources that events alone tell of."""

KEPT_EVENTS = 512
"""Newest events kept: a day of a lively trace, and far more than any forecaster looks back."""
KEPT_TURNS = 8192
"""Newest turns kept: several batches of 64 trajectories, from which the life-cycle forecast learns turns and tokens."""


@dataclass(slots=True, kw_only=True)
class Recall:
    """Takes events and records of turns in, and gives samples for the policy's forecasts."""

    forecaster: Forecaster
    sources: tuple[Source, ...]
    """What the policy asks for."""
    lives: Callable[[], tuple[Life, ...]]
    """Where every trajectory stands now."""
    waiting: Callable[[], int] = lambda: 0
    """Trajectories of the batch that have not begun."""
    since_s: float = 0.0
    """When observation began."""
    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS), init=False)
    _arrivals: deque[ArrivalRecord] = field(default_factory=lambda: deque(maxlen=KEPT_TURNS), init=False)
    _turns: deque[TurnRecord] = field(default_factory=lambda: deque(maxlen=KEPT_TURNS), init=False)

    @property
    def reads_turns(self) -> bool:
        """Whether some source needs telemetry of turns, beside events."""
        return any(source not in EVENT_SOURCES for source in self.sources)

    def hear(self, event: Event) -> None:
        """Take an event in."""
        self._events.append(event)

    def record(self, record: Telemetry) -> None:
        """Take a record of a turn in; any other is of no account here."""
        match record:
            case ArrivalRecord():
                self._arrivals.append(record)
            case TurnRecord():
                self._turns.append(record)
            case _:
                pass

    def samples(self, now_s: float) -> dict[str, ForecastSamples]:
        """Samples by source, for those of which something is known."""
        return forecast(self.forecaster, self._history(now_s), now_s, self.sources)

    def _history(self, now_s: float) -> History:
        if not self.reads_turns:
            return History(events=tuple(self._events), since_s=self.since_s)
        return History(
            arrivals=tuple(self._arrivals),
            turns=tuple(self._turns),
            events=tuple(self._events),
            lives=self.lives(),
            lives_at_s=now_s,
            waiting=self.waiting(),
            since_s=self.since_s,
        )
