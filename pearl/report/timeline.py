"""Timeline pictures of a simulation: from its event log to plain facts, and from these to PNG and HTML.

drawn = timeline_of(report.log, horizon_s=7200)
write_png(drawn, Path("run.png"), title="pearl on qwen3-8b-swe, seed 0 (simulated)")
page = html_text(drawn, title="pearl on qwen3-8b-swe, seed 0 (simulated)")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from pearl.core.cluster import Zone
from pearl.core.grouping import natural_key
from pearl.errors import Fault, InputError
from pearl.report.timeline_data import Bar, DecisionMark, Interval, Mark, Phase, Timeline, WorkerLife, bands_of
from pearl.report.timeline_html import html_text
from pearl.report.timeline_log import Began, Ended, Entry, WorkerGone, WorkerIs, entry_of, placed, read_log
from pearl.report.timeline_png import write_png
from pearl.sim.log import Record

__all__ = ["Timeline", "html_text", "picture_title", "read_log", "read_timeline", "timeline_of", "write_png"]

ROUNDING_S = 1e-6
"""Logs are written to a microsecond, so that a record at the horizon may lie this much past it."""


def picture_title(*, policy: str, scenario: str, seed: int) -> str:
    """A title that says what is shown, and that it is simulated."""
    return f"{policy} on {scenario}, seed {seed} (simulated)"


def timeline_of(records: Iterable[Record], horizon_s: float, *, file: str | None = None) -> Timeline:
    """Put the records of a log, in order of time, together into what a picture shows.

    Every record is read: one of an unknown kind, with data that are not the simulator's, out of order, past the
    horizon, or in contradiction to an earlier one raises InputError. `file` names the file that the records are the
    lines of, for the place in the message.
    """
    if not horizon_s > 0:
        raise InputError(f"the horizon is {horizon_s:g} s; expected a time above 0")
    builder = _Builder(horizon_s=horizon_s)
    for index, record in enumerate(records):
        try:
            builder.take(record, entry_of(record))
        except InputError as e:
            raise placed(e, index, record, file) from None
    return builder.timeline()


def read_timeline(path: Path, horizon_s: float | None = None) -> Timeline:
    """The timeline of a log file of JSON lines; up to its last record where no horizon is given.

    Raises InputError with file and line for the first record that does not hold.
    """
    records = read_log(path)
    if not records:
        raise InputError(Fault(message=f"{path}: the log is empty", expected="one JSON record a line"))
    return timeline_of(records, records[-1].at_s if horizon_s is None else horizon_s, file=str(path))


@dataclass(slots=True, kw_only=True)
class _OpenLife:
    """A worker that is there, and the phase it is in since `since_s`."""

    zone: Zone
    gpus: int
    phase: Phase
    since_s: float
    intervals: list[Interval] = field(default_factory=list)

    def turn(self, now_s: float, phase: Phase) -> None:
        """Enter a phase; one that lasted no time leaves no interval."""
        if phase == self.phase:
            return
        self._close(now_s)
        self.phase, self.since_s = phase, now_s

    def ended(self, worker: str, now_s: float, *, gone: bool) -> WorkerLife | None:
        """The whole life; None where it lasted no time."""
        self._close(now_s)
        if not self.intervals:
            return None
        intervals = tuple(self.intervals)
        return WorkerLife(worker=worker, zone=self.zone, gpus=self.gpus, intervals=intervals, gone=gone)

    def _close(self, now_s: float) -> None:
        last = self.intervals[-1] if self.intervals else None
        if last is not None and last.phase == self.phase:
            self.intervals.pop()
            self.since_s = last.begin_s
        if now_s > self.since_s:
            self.intervals.append(Interval(begin_s=self.since_s, end_s=now_s, phase=self.phase))


class _Builder:
    """Takes entries in order of time."""

    def __init__(self, *, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._now_s = 0.0
        self._open: dict[str, _OpenLife] = {}
        self._lives: list[WorkerLife] = []
        self._bars: dict[tuple[bool, int], Bar] = {}
        self._decisions: list[DecisionMark] = []
        self._marks: list[Mark] = []

    def take(self, record: Record, entry: Entry) -> None:
        self._advance(record.at_s)
        match entry:
            case WorkerIs():
                self._worker(entry)
            case WorkerGone():
                self._gone(entry.worker)
            case Began():
                self._began(entry)
            case Ended():
                self._ended(entry)
            case DecisionMark():
                self._decisions.append(entry)
            case Mark():
                self._marks.append(entry)
            case None:
                pass
            case _:
                assert_never(entry)

    def _advance(self, at_s: float) -> None:
        if at_s < self._now_s:
            raise InputError(Fault(message=f"the record before is later, at {self._now_s:g} s", expected="time order"))
        if at_s > self._horizon_s + ROUNDING_S:
            raise InputError(Fault(message=f"the record is past the horizon of {self._horizon_s:g} s"))
        self._now_s = min(at_s, self._horizon_s)

    def _worker(self, entry: WorkerIs) -> None:
        life = self._open.get(entry.worker)
        if life is None:
            self._open[entry.worker] = _OpenLife(
                zone=entry.zone, gpus=entry.gpus, phase=entry.phase, since_s=self._now_s
            )
            return
        if (life.zone, life.gpus) != (entry.zone, entry.gpus):
            now, before = f"{entry.gpus} × {entry.zone}", f"{life.gpus} × {life.zone}"
            raise InputError(
                Fault(message=f"worker {entry.worker!r} holds {now} GPUs, and {before} before", expected="no change")
            )
        life.turn(self._now_s, entry.phase)

    def _gone(self, worker: str) -> None:
        life = self._open.pop(worker, None)
        if life is None:
            raise InputError(Fault(message=f"worker {worker!r} is gone, and was not there", expected="its arrival"))
        self._keep(life.ended(worker, self._now_s, gone=True))

    def _keep(self, life: WorkerLife | None) -> None:
        if life is not None:
            self._lives.append(life)

    def _began(self, entry: Began) -> None:
        key = (entry.training, entry.index)
        if key in self._bars:
            raise InputError(Fault(message=f"{_named(entry)} begins twice"))
        self._bars[key] = Bar(index=entry.index, begin_s=self._now_s, end_s=self._horizon_s, ended=False)

    def _ended(self, entry: Ended) -> None:
        bar = self._bars.get((entry.training, entry.index))
        if bar is None or bar.ended:
            raise InputError(Fault(message=f"{_named(entry)} ends, and was not under way", expected="its begin"))
        ended = Bar(index=bar.index, begin_s=bar.begin_s, end_s=self._now_s, ended=True)
        self._bars[entry.training, entry.index] = ended

    def timeline(self) -> Timeline:
        for worker, life in self._open.items():
            self._keep(life.ended(worker, self._horizon_s, gone=False))
        workers = tuple(sorted(self._lives, key=lambda life: (life.begin_s, natural_key(life.worker))))
        return Timeline(
            horizon_s=self._horizon_s,
            workers=workers,
            bands=bands_of(workers),
            batches=tuple(bar for (training, _), bar in self._bars.items() if not training),
            trainings=tuple(bar for (training, _), bar in self._bars.items() if training),
            decisions=tuple(self._decisions),
            marks=tuple(self._marks),
        )


def _named(entry: Began | Ended) -> str:
    return f"{'training on batch' if entry.training else 'batch'} {entry.index}"
