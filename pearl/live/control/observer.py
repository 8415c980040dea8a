"""The Runtime Tracker of a live cluster: telemetry and events into the situation that decisions are taken on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pearl.core.cluster import ClusterState, Counts
from pearl.core.decision import Decision
from pearl.core.engine import EngineProfile
from pearl.core.event import Event
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.core.telemetry import ArrivalRecord, BatchRecord, EngineRecord, Life, Telemetry, TurnRecord
from pearl.core.workload import Workload
from pearl.tracking.batches import BatchWatch
from pearl.tracking.costs import CostTracker
from pearl.tracking.engine import EngineTracker
from pearl.tracking.forecasters import Forecaster
from pearl.tracking.history import Source
from pearl.tracking.recall import Recall
from pearl.tracking.tracker import RuntimeTracker
from pearl.tracking.workload import MAX_SILENCE_S, WorkloadSettings, WorkloadTracker

STEP_RECORDS = 128
"""Engine steps of each kind that are kept of a rollout step: a fit blocks the event loop, for 0.1 s with so many, and
a median over them is known to 10 % of the spread."""
MOST_HEARD = 4096
"""Records that wait for the tracker at most: it copies what is open whenever it takes some in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """The batch under way."""

    began_s: float
    counts: Counts
    heard_s: float
    """When its last arrival or turn came."""


def _nothing() -> None:
    return None


@dataclass(slots=True, kw_only=True)
class LiveObserver:
    """An `Observer` of the control plane; call it on the event loop alone.

    Profiles are refitted after every batch, and until the first fit whenever something new is known. Between two fits
    they are the same objects, so that predictions made from them stand.
    """

    world: Situation
    """What the cluster file says: engine profile, costs and prices; its workload counts until one was measured."""
    forecaster: Forecaster
    sources: tuple[Source, ...]
    """What the policy asks for."""
    lives: Callable[[], tuple[Life, ...]] = tuple
    """Where every trajectory stands now."""
    trajectories: Callable[[], int | None] = lambda: None
    """Size of the batch that is open, or was last; None: as offered."""
    on_batch_end: Callable[[], None] = _nothing
    """Called when a batch ends, before the profiles are refitted: for the records that are held back until then."""
    settings: WorkloadSettings = field(default_factory=WorkloadSettings)
    corrects: bool = True
    """Whether predictions are corrected by what batches took."""
    max_silence_s: float = MAX_SILENCE_S
    """A batch under way that sends nothing for this long is no longer known: the profile is no data then."""
    since_s: float = 0.0
    """When observation began."""
    _tracker: RuntimeTracker = field(init=False)
    _recall: Recall = field(init=False)
    _watch: BatchWatch = field(default_factory=BatchWatch, init=False)
    _heard: list[Telemetry] = field(default_factory=list, init=False)
    """Records that the tracker has not taken in yet."""
    _begun: dict[int, set[str]] = field(default_factory=dict, init=False)
    """Trajectories that began, of the newest step."""
    _open: _Open | None = field(default=None, init=False)
    _workload: Workload | None = field(default=None, init=False)
    _engine: EngineProfile | None = field(default=None, init=False)
    _due: bool = field(default=True, init=False)
    """Whether the profiles are to be fitted when they are next asked for."""
    _ended_s: float | None = field(default=None, init=False)
    """When the last batch ended."""

    def __post_init__(self) -> None:
        self._tracker = RuntimeTracker(
            workload=WorkloadTracker(settings=replace(self.settings, max_silence_s=float("inf"))),
            engine=EngineTracker(prior=self.world.engine, step_records=STEP_RECORDS),
            costs=CostTracker(prior=self.world.costs),
        )
        self._recall = Recall(
            forecaster=self.forecaster,
            sources=self.sources,
            lives=self.lives,
            waiting=self._waiting,
            since_s=self.since_s,
        )

    # What happens

    def hear(self, event: Event) -> None:
        """Take an event in."""
        self._recall.hear(event)

    def record(self, record: Telemetry) -> None:
        """Take a record in; that of a batch, which `batch_ended` gave, is no news."""
        if isinstance(record, BatchRecord) and record.at_s == self._ended_s:
            return
        self._heard.append(record)
        if len(self._heard) >= MOST_HEARD:
            self._take_in(record.at_s)
        self._recall.record(record)
        if isinstance(record, ArrivalRecord):
            self._count(record)
        if isinstance(record, (ArrivalRecord, TurnRecord)) and self._open is not None:
            self._open = replace(self._open, heard_s=max(self._open.heard_s, record.at_s))

    def batch_began(self, now_s: float, decision: Decision) -> None:
        """A batch begins on the pool that was decided on."""
        self._watch.began(now_s, decision)
        self._open = _Open(began_s=now_s, counts=decision.counts, heard_s=now_s)

    def decided(self, now_s: float, decision: Decision) -> None:
        """Another decision was taken; its prediction counts for the rest of the batch under way."""
        self._watch.decided(now_s, decision)
        if self._open is not None:
            self._open = replace(self._open, counts=decision.counts)

    def batch_ended(self, at_s: float) -> BatchRecord | None:
        """The batch ended: its makespan as predicted and as measured, taken in already.

        None where nothing was predicted, or where it did not run in one mode throughout.
        """
        self.on_batch_end()
        self._due, self._ended_s = True, at_s
        opened, self._open = self._open, None
        ratio = self._watch.ended(at_s)
        if opened is None or not ratio or at_s <= opened.began_s:
            return None
        measured_s = at_s - opened.began_s
        record = BatchRecord(
            predicted_s=measured_s / ratio,
            measured_s=measured_s,
            at_s=at_s,
            counts=opened.counts,
            step=max(self._begun, default=0),
        )
        self._heard.append(record)
        return record

    def restore(self, records: Iterable[Telemetry], events: Iterable[Event] = ()) -> None:
        """Take up what was kept before a restart, in its order; every rollout step counts as it did then."""
        for event in events:
            self.hear(event)
        steps: dict[int, list[Telemetry]] = {}
        for record in records:
            # An engine's word of itself belongs to no rollout step.
            step = max(steps, default=0) if isinstance(record, EngineRecord) else record.step
            steps.setdefault(step, []).append(record)
            self._recall.record(record)
            if isinstance(record, ArrivalRecord):
                self._count(record)
            if isinstance(record, BatchRecord) and record.counts.mode is not None:
                self._watch.learn(record.counts.mode, record.measured_s / record.predicted_s)
        for step in sorted(steps):
            self._tracker = self._tracker.update(steps[step], max(record.at_s for record in steps[step]))

    # What is known

    def situation(self, state: ClusterState, now_s: float, changes: Mapping[Change, ChangeAge]) -> Situation:
        """The situation of a state at a time."""
        self._take_in(now_s)
        if self._due:
            self._fit()
        return replace(
            self.world,
            state=state,
            workload=None if self._silent(now_s) else self._workload or self.world.workload,
            engine=self._engine or self.world.engine,
            costs=self._tracker.costs.costs(borrowing=state.counts.borrowed > 0),
            calibration_error=self._tracker.calibration.error(),
            samples={**self.world.samples, **self._recall.samples(now_s)},
            changes=changes,
            corrections=self._watch.corrections.factors() if self.corrects else {},
        )

    @property
    def calibration_error(self) -> float | None:
        """Mean relative error of predicted against measured makespans; None where no batch was measured."""
        return self._tracker.calibration.error()

    def _take_in(self, now_s: float) -> None:
        heard, self._heard = self._heard, []
        size = self.trajectories()
        if size is not None and size != self._tracker.workload.settings.trajectories:
            workload = self._tracker.workload
            settings = replace(workload.settings, trajectories=size)
            self._tracker = replace(self._tracker, workload=replace(workload, settings=settings))
        if heard:
            self._tracker = self._tracker.update(heard, now_s)
            self._due = self._due or self._workload is None

    def _fit(self) -> None:
        self._workload = self._tracker.workload.profile()
        self._engine = self._tracker.engine.profile()
        self._due = False

    def _silent(self, now_s: float) -> bool:
        """Whether a batch is under way of which nothing was heard for too long. Between batches silence is in order."""
        return self._open is not None and now_s - self._open.heard_s > self.max_silence_s

    def _count(self, record: ArrivalRecord) -> None:
        if record.step not in self._begun:
            self._begun = {step: begun for step, begun in self._begun.items() if step > record.step}
            self._begun[record.step] = set()
        self._begun[record.step].add(record.trajectory)

    def _waiting(self) -> int:
        """Trajectories of the batch under way that have not begun."""
        size = self.trajectories()
        if self._open is None or size is None:
            return 0
        return max(0, size - len(self._begun.get(max(self._begun, default=0), ())))
