"""Prometheus series of the control plane, next to the router's on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pearl.core.cluster import Mode
from pearl.core.telemetry import TransitionRecord
from pearl.live.control.ledger import Record
from pearl.live.router.metrics import Labels, Metrics
from pearl.tracking.costs import COST_WEIGHT, Average

HELP: Mapping[str, str] = {
    "pearl_events_total": "Events accepted, by kind.",
    "pearl_decisions_total": "Decisions, by outcome; 'failed' where a tick raised.",
    "pearl_plan_steps_total": "Steps of plans, by kind and phase.",
    "pearl_transition_seconds_sum": "Seconds that transitions took, by kind and whether the rollout step borrowed.",
    "pearl_transition_seconds_count": "Transitions, by kind and whether the rollout step borrowed.",
    "pearl_transition_seconds_average": "Moving average of a transition's seconds, as the borrow gate uses it.",
    "pearl_workers": "Workers, by zone, role and status.",
    "pearl_epoch": "Epoch of the GPU-worker-role state.",
    "pearl_mode": "1 for the mode that the pool is in.",
    "pearl_calibration_error": "Moving average of the relative error of predicted against measured makespans.",
    "pearl_weight_version": "Newest published weight version, and the oldest that may generate.",
    "pearl_worker_weight_version": "Weight version of each worker.",
    "pearl_lease_term": "Term of the controller's lease.",
    "pearl_training_running": "1 while the trainer holds the overlap zone.",
    "pearl_tick_seconds": "Time from an event to its decision.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What is read at the moment of a scrape."""

    record: Record
    calibration_error: float | None
    lease_term: int
    training: bool

    def series(self) -> dict[str, dict[Labels, float]]:
        """By name and labels."""
        state = self.record.state
        workers = Counter((w.role.value, w.status.value, w.zone.value) for w in state.workers)
        names = ("role", "status", "zone")
        versions = {w.id: self.record.versions.get(w.id, 0) for w in state.workers if w.started}
        series: dict[str, dict[Labels, float]] = {
            "pearl_workers": {tuple(zip(names, key, strict=True)): number for key, number in workers.items()},
            "pearl_epoch": {(): state.epoch},
            "pearl_mode": {(("mode", mode.value),): state.counts.mode is mode for mode in Mode},
            "pearl_weight_version": {
                (("which", "latest"),): self.record.latest,
                (("which", "oldest"),): self.record.oldest,
            },
            "pearl_worker_weight_version": {(("worker", name),): version for name, version in versions.items()},
            "pearl_lease_term": {(): self.lease_term},
            "pearl_training_running": {(): self.training},
        }
        if self.calibration_error is not None:
            series["pearl_calibration_error"] = {(): self.calibration_error}
        return series


@dataclass(slots=True)
class ControlMetrics:
    """What the control plane counted."""

    _metrics: Metrics = field(default_factory=lambda: Metrics(help=HELP))
    _averages: dict[Labels, Average] = field(default_factory=dict)

    def event(self, kind: str) -> None:
        """An event was accepted."""
        self._metrics.count("pearl_events_total", kind=kind)

    def decision(self, outcome: str, seconds: float) -> None:
        """A tick came to an end."""
        self._metrics.count("pearl_decisions_total", outcome=outcome)
        self._metrics.observe("pearl_tick_seconds", seconds)

    def step(self, kind: str, phase: str) -> None:
        """A step came to a phase."""
        self._metrics.count("pearl_plan_steps_total", kind=kind, phase=phase)

    def transition(self, record: TransitionRecord) -> None:
        """A transition ended."""
        borrowing, kind = str(record.borrowing).lower(), record.kind.value
        self._metrics.count("pearl_transition_seconds_sum", record.seconds, borrowing=borrowing, kind=kind)
        self._metrics.count("pearl_transition_seconds_count", borrowing=borrowing, kind=kind)
        key: Labels = (("borrowing", borrowing), ("kind", kind))
        known = self._averages.get(key)
        self._averages[key] = known.after(record.seconds, COST_WEIGHT) if known else Average(value=record.seconds)

    def value(self, name: str, **labels: str) -> float:
        """A counter as it stands."""
        return self._metrics.value(name, **labels)

    def text(self, gauges: Gauges) -> str:
        """The page."""
        averages: dict[Labels, float] = {key: average.value for key, average in self._averages.items()}
        series = gauges.series()
        if averages:
            series["pearl_transition_seconds_average"] = averages
        return self._metrics.text(series)
