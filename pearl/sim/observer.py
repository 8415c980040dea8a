"""What a scheduler in the simulated world has seen so far: the samples behind the policy's forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pearl.core.cluster import ClusterState
from pearl.core.decision import Decision
from pearl.core.event import Event, EventKind
from pearl.core.facts import ForecastSamples
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.tracking.corrections import Corrections, Pace

KEPT_SAMPLES = 20
"""Newest samples kept per source: enough for a 10 % quantile, few enough to follow a change of the trace."""
RECLAIM_HORIZON_S = 600.0
"""Reclaims are counted per window of this length: the horizon that policies ask for."""


@dataclass(slots=True, kw_only=True)
class Observer:
    """Turns events into samples, and a state into a situation.

    `overlap_window`: seconds from the end of a training step to the begin of the next, as observed.
    `spot_reclaims`: workers reclaimed or lost in each past window of RECLAIM_HORIZON_S.
    """

    world: Situation
    """The situation at the start; its state is replaced, its given samples stand in until something is observed."""
    corrects: bool = True
    """Whether predictions are corrected by what batches took."""
    _idle_since_s: float | None = None
    _windows_s: list[float] = field(default_factory=list)
    _window_at_s: float = 0.0
    _reclaims: list[tuple[float, int]] = field(default_factory=list)
    _corrections: Corrections = field(default_factory=Corrections)
    _pace: Pace | None = None

    def hear(self, event: Event) -> None:
        """Take an event in."""
        match event.kind:
            case EventKind.TRAINING_FINISHED:
                self._idle_since_s = event.at_s
            case EventKind.TRAINING_STARTED if self._idle_since_s is not None:
                self._windows_s = [*self._windows_s, event.at_s - self._idle_since_s][-KEPT_SAMPLES:]
                self._window_at_s, self._idle_since_s = event.at_s, None
            case EventKind.RECLAIM_NOTICE:
                self._reclaims.append((event.at_s, len(event.workers)))
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
        samples = dict(self.world.samples)
        if self._windows_s:
            age_s = now_s - self._window_at_s
            samples["overlap_window"] = ForecastSamples(values=tuple(self._windows_s), age_s=age_s)
        windows = int(now_s // RECLAIM_HORIZON_S)
        if windows:
            counts = [0.0] * windows
            for at_s, workers in self._reclaims:
                if at_s < windows * RECLAIM_HORIZON_S:
                    counts[int(at_s // RECLAIM_HORIZON_S)] += workers
            samples["spot_reclaims"] = ForecastSamples(values=tuple(counts[-KEPT_SAMPLES:]), age_s=0.0)
        factors = self._corrections.factors() if self.corrects else {}
        return replace(self.world, state=state, samples=samples, changes=changes, corrections=factors)
