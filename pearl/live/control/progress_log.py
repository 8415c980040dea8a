"""What executors tell of their steps, into the store, the counters and the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from pearl.core.telemetry import Telemetry, TransitionRecord
from pearl.live.control.log import log
from pearl.live.control.metrics import ControlMetrics
from pearl.live.control.progress import Phase, Progress
from pearl.live.control.store import AddProgress, AddTelemetry, ControlStore, StoreError
from pearl.planning import step_to_dict
from pearl.tracking.jsonl import telemetry_lines

OVER = frozenset({Phase.ENDED, Phase.DROPPED, Phase.FAILED})
KEPT_PLANS = 64
"""Plans whose progress is kept in memory: one is under way, and starts of a few older ones may go on."""


def plan_id(number: int) -> str:
    """`p-000012`."""
    return f"p-{number:06d}"


def decision_id(number: int) -> str:
    """`d-000012`."""
    return f"d-{number:06d}"


def number_of(text: str, prefix: str) -> int | None:
    """The number in an id of that prefix (`d`, `p`); None for anything else."""
    digits = text.removeprefix(f"{prefix}-")
    return int(digits) if digits != text and digits.isascii() and digits.isdigit() and len(digits) <= 15 else None


@dataclass(slots=True, kw_only=True)
class ProgressLog:
    """`tell` is the executor's `Tell`; `record` takes its transitions, and any other telemetry."""

    store: ControlStore
    metrics: ControlMetrics
    over: dict[str, set[int]] = field(default_factory=dict)
    """Steps that are over, by plan; the newest plans alone."""

    def tell(self, progress: Progress) -> None:
        """A step came to a phase."""
        kind = str(step_to_dict(progress.step)["kind"])
        self.metrics.step(kind, progress.phase.value)
        log(
            "step",
            plan=progress.plan,
            step=progress.index,
            kind=kind,
            phase=progress.phase.value,
            seconds=round(progress.seconds, 3),
            because=progress.because,
        )
        if progress.phase in OVER:
            self.over.setdefault(progress.plan, set()).add(progress.index)
            while len(self.over) > KEPT_PLANS:
                self.over.pop(next(iter(self.over)))
        number = number_of(progress.plan, "p")
        if number is not None:
            self._write(
                AddProgress(
                    plan=number,
                    step=progress.index,
                    phase=progress.phase.value,
                    at_unix_s=progress.at_s,
                    seconds=progress.seconds,
                    because=progress.because,
                )
            )

    def record(self, *records: Telemetry) -> None:
        """Keep telemetry."""
        for record in records:
            if isinstance(record, TransitionRecord):
                self.metrics.transition(record)
        self._write(*(AddTelemetry(line=line.rstrip("\n")) for line in telemetry_lines(records)))

    def _write(self, *entries: AddProgress | AddTelemetry) -> None:
        """Steps go on where the store fails: what workers do is not undone by a full disk. Events are refused then."""
        try:
            self.store.write(*entries)
        except StoreError as e:
            log("store_failed", level=logging.ERROR, error=str(e))
