"""What a scheduler in the simulated world has seen so far: the samples behind the policy's forecasts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pearl.core.cluster import ClusterState
from pearl.core.decision import Decision
from pearl.core.event import Event
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.core.telemetry import ArrivalRecord, Life, Telemetry, TurnRecord
from pearl.tracking.corrections import Corrections, Pace
from pearl.tracking.forecasters import Forecaster, forecast
from pearl.tracking.history import History, Source

EVENT_SOURCES = frozenset({Source.OVERLAP_WINDOW, Source.SPOT_RECLAIMS, Source.SPOT_ARRIVALS})
"""Sources that events alone tell of."""

KEPT_EVENTS = 512
"""Newest events kept: a day of a lively trace, and far more than any forecaster looks back."""
KEPT_TURNS = 8192
"""Newest turns kept: several batches of 64 trajectories, from which the life-cycle forecast learns turns and tokens."""


@dataclass(slots=True, kw_only=True)
class Observer:
    """Turns events and telemetry into samples for the policy's forecasts, and a state into a situation."""

    world: Situation
    """The situation at the start; its state is replaced, its given samples stand in until something is observed."""
    forecaster: Forecaster
    sources: tuple[Source, ...]
    """What the policy asks for."""
    lives: Callable[[], tuple[Life, ...]]
    """Where every trajectory stands now."""
    corrects: bool = True
    """Whether predictions are corrected by what batches took."""
    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    _arrivals: deque[ArrivalRecord] = field(default_factory=lambda: deque(maxlen=KEPT_TURNS))
    _turns: deque[TurnRecord] = field(default_factory=lambda: deque(maxlen=KEPT_TURNS))
    _corrections: Corrections = field(default_factory=Corrections)
    _pace: Pace | None = None

    @property
    def reads_turns(self) -> bool:
        """Whether some source needs telemetry of turns, beside events."""
        return any(source not in EVENT_SOURCES for source in self.sources)

    def hear(self, event: Event) -> None:
        """Take an event in."""
        self._events.append(event)

    def record(self, record: Telemetry) -> None:
        """Take a record of a turn in."""
        match record:
            case ArrivalRecord():
                self._arrivals.append(record)
            case TurnRecord():
                self._turns.append(record)
            case _:
                pass

    def batch_ended(self, at_s: float) -> None:
        """Compare the batch that ended with its prediction, if it ran in one mode throughout."""
        if self._pace is not None and len(self._pace.modes) == 1:
            (mode,) = self._pace.modes
            self._corrections = self._corrections.after(mode, self._pace.until(at_s))
        self._pace = None

    def batch_began(self, now_s: float, decision: Decision) -> None:
        """A batch begins on the pool that was decided on."""
        self._pace = None
        self._predicted(now_s, decision)

    def decided(self, now_s: float, decision: Decision) -> None:
        """The pool is about to be what was decided; its prediction counts for the rest of the batch under way."""
        if self._pace is not None:
            self._predicted(now_s, decision)

    def _predicted(self, now_s: float, decision: Decision) -> None:
        if decision.mode is None or decision.chosen is None:
            self._pace = None
            return
        makespan_s = decision.chosen.makespan_s / self._corrections.factors().get(decision.mode, 1.0)
        if self._pace is None:
            self._pace = Pace(since_s=now_s, makespan_s=makespan_s, modes=frozenset({decision.mode}))
        else:
            self._pace = self._pace.changed(now_s, makespan_s=makespan_s, mode=decision.mode)

    def situation(self, state: ClusterState, now_s: float, changes: Mapping[Change, ChangeAge]) -> Situation:
        """The situation now."""
        samples = {**self.world.samples, **forecast(self.forecaster, self._history(now_s), now_s, self.sources)}
        factors = self._corrections.factors() if self.corrects else {}
        return replace(self.world, state=state, samples=samples, changes=changes, corrections=factors)

    def _history(self, now_s: float) -> History:
        if not self.reads_turns:
            return History(events=tuple(self._events))
        return History(
            arrivals=tuple(self._arrivals),
            turns=tuple(self._turns),
            events=tuple(self._events),
            lives=self.lives(),
            lives_at_s=now_s,
        )
