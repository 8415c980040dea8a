"""What a scheduler in the simulated world has seen so far: the samples behind the policy's forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pearl.core.cluster import ClusterState
from pearl.core.decision import Decision
from pearl.core.event import Event
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.core.telemetry import Life, Telemetry
from pearl.tracking.batches import BatchWatch
from pearl.tracking.forecasters import Forecaster
from pearl.tracking.history import Source
from pearl.tracking.recall import Recall


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
    _recall: Recall = field(init=False)
    _watch: BatchWatch = field(default_factory=BatchWatch, init=False)

    def __post_init__(self) -> None:
        self._recall = Recall(forecaster=self.forecaster, sources=self.sources, lives=self.lives)

    @property
    def reads_turns(self) -> bool:
        """Whether some source needs telemetry of turns, beside events."""
        return self._recall.reads_turns

    def hear(self, event: Event) -> None:
        """Take an event in."""
        self._recall.hear(event)

    def record(self, record: Telemetry) -> None:
        """Take a record of a turn in."""
        self._recall.record(record)

    def batch_ended(self, at_s: float) -> None:
        """Compare the batch that ended with its prediction, if it ran in one mode throughout."""
        self._watch.ended(at_s)

    def batch_began(self, now_s: float, decision: Decision) -> None:
        """A batch begins on the pool that was decided on."""
        self._watch.began(now_s, decision)

    def decided(self, now_s: float, decision: Decision) -> None:
        """The pool is about to be what was decided; its prediction counts for the rest of the batch under way."""
        self._watch.decided(now_s, decision)

    def situation(self, state: ClusterState, now_s: float, changes: Mapping[Change, ChangeAge]) -> Situation:
        """The situation now."""
        samples = {**self.world.samples, **self._recall.samples(now_s)}
        factors = self._watch.corrections.factors() if self.corrects else {}
        return replace(self.world, state=state, samples=samples, changes=changes, corrections=factors)
