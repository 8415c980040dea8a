"""Batches against their predictions, for the corrections of later ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from pearl.core.cluster import Mode
from pearl.core.decision import Decision
from pearl.tracking.corrections import Corrections, Pace


@dataclass(slots=True, kw_only=True)
class BatchWatch:
    """Follows the batch under way through the decisions taken in it."""

    corrections: Corrections = field(default_factory=Corrections)
    _pace: Pace | None = field(default=None, init=False)

    def began(self, now_s: float, decision: Decision) -> None:
        """A batch begins on the pool that was decided on."""
        self._pace = None
        self._predicted(now_s, decision)

    def decided(self, now_s: float, decision: Decision) -> None:
        """The pool is about to be what was decided; its prediction counts for the rest of the batch under way."""
        if self._pace is not None:
            self._predicted(now_s, decision)

    def ended(self, at_s: float) -> float | None:
        """Measured over predicted makespan, as corrected; None where the batch did not run in one mode throughout."""
        pace, self._pace = self._pace, None
        if pace is None or len(pace.modes) != 1:
            return None
        (mode,) = pace.modes
        ratio = pace.until(at_s)
        corrected = ratio / self.corrections.factors().get(mode, 1.0)
        self.corrections = self.corrections.after(mode, ratio)
        return corrected

    def learn(self, mode: Mode, corrected: float) -> None:
        """Take in a batch that ended before a restart, in `mode`, by the ratio that `ended` gave."""
        factor = self.corrections.factors().get(mode, 1.0)
        self.corrections = self.corrections.after(mode, corrected * factor)

    def _predicted(self, now_s: float, decision: Decision) -> None:
        if decision.mode is None or decision.chosen is None:
            self._pace = None
            return
        makespan_s = decision.chosen.makespan_s / self.corrections.factors().get(decision.mode, 1.0)
        if self._pace is None:
            self._pace = Pace(since_s=now_s, makespan_s=makespan_s, modes=frozenset({decision.mode}))
        else:
            self._pace = self._pace.changed(now_s, makespan_s=makespan_s, mode=decision.mode)
