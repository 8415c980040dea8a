"""What a forecaster may read, and the observations of each forecast source in it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pearl.core.event import Event, EventKind
from pearl.core.telemetry import ArrivalRecord, Life, TurnRecord

MAX_INTERVALS = 256
"""Newest intervals that a series holds: no forecaster looks further back, whatever origin the clock has."""


class Source(StrEnum):
    """Forecast sources of the policy language that the Runtime Tracker feeds; base units."""

    PREFILL_DEMAND = "prefill_demand"
    """New prompt tokens asked for per second, whole pool."""
    DECODE_DEMAND = "decode_demand"
    """Output tokens asked for per second, whole pool."""
    OVERLAP_WINDOW = "overlap_window"
    """Seconds for which the overlap GPUs stayed free."""
    SPOT_RECLAIMS = "spot_reclaims"
    """Workers lost in one horizon."""
    SPOT_ARRIVALS = "spot_arrivals"
    """Workers gained in one horizon."""
    TRAJECTORIES_LEFT = "trajectories_left"
    """Trajectories of the batch not yet finished."""
    TRAJECTORY_TOKENS = "trajectory_tokens"
    """Context of finished trajectories, tokens."""
    ENVIRONMENT_TIME = "environment_time"
    """Seconds of one tool call."""


@dataclass(frozen=True, kw_only=True)
class History:
    """What was seen up to now. Records and events in any order; `lives` as they stood at `lives_at_s`."""

    arrivals: tuple[ArrivalRecord, ...] = ()
    turns: tuple[TurnRecord, ...] = ()
    events: tuple[Event, ...] = ()
    lives: tuple[Life, ...] = ()
    lives_at_s: float | None = None
    """None: nobody looked, so that trajectories are not known to be none."""
    waiting: int = 0
    """Trajectories of the batch that have not begun."""
    since_s: float = 0.0
    """When observation began."""

    @property
    def newest_s(self) -> float | None:
        """Time of the newest arrival or turn; None without any."""
        return max((*(r.at_s for r in self.arrivals), *(r.at_s for r in self.turns)), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Observations of a source, newest last, and the age of the newest."""

    values: tuple[float, ...] = ()
    age_s: float = 0.0


def observe(source: Source, history: History, now_s: float, *, interval_s: float) -> Series:
    """The observations of `source`, rates and counts over whole intervals of `interval_s`; empty where it is unseen.

    Intervals of demand end at the newest record and not at `now_s`: telemetry that fell silent grows old, and is not
    read as no load.
    """
    match source:
        case Source.PREFILL_DEMAND:
            return _demand([(r.at_s, float(r.new_prompt_tokens)) for r in history.arrivals], history, now_s, interval_s)
        case Source.DECODE_DEMAND:
            outputs = mean_outputs(history.turns)
            asked = [(r.at_s, outputs.get(r.turn, outputs.get(-1, 0.0))) for r in history.arrivals]
            return _demand(asked if outputs else [], history, now_s, interval_s)
        case Source.OVERLAP_WINDOW:
            return _windows(history.events, now_s)
        case Source.SPOT_RECLAIMS:
            return _counted(_losses(history.events), history, now_s, interval_s)
        case Source.SPOT_ARRIVALS:
            gains = [(e.at_s, 1.0) for e in history.events if e.kind is EventKind.GPUS_ADDED for _ in e.added]
            return _counted(gains, history, now_s, interval_s)
        case Source.TRAJECTORIES_LEFT:
            if history.lives_at_s is None:
                return Series()
            return Series(values=(float(len(history.lives) + history.waiting),), age_s=_age(now_s, history.lives_at_s))
        case Source.TRAJECTORY_TOKENS:
            return _timed(((r.at_s, float(r.context_tokens)) for r in history.turns if r.last), now_s)
        case Source.ENVIRONMENT_TIME:
            return _timed(((r.at_s, r.environment_s) for r in history.turns if r.environment_s is not None), now_s)


def mean_outputs(turns: Iterable[TurnRecord]) -> Mapping[int, float]:
    """Mean output tokens by turn index, and over all turns at index -1; empty without turns.

    A mean per turn that was asked for, so that it does not depend on how many turns were completed.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for record in turns:
        found[record.turn].append(record.output_tokens)
        found[-1].append(record.output_tokens)
    return {turn: math.fsum(values) / len(values) for turn, values in found.items()}


def _demand(asked: list[tuple[float, float]], history: History, now_s: float, interval_s: float) -> Series:
    newest = history.newest_s
    if not asked or newest is None:
        return Series()
    sums = _binned(asked, until_s=newest, since_s=history.since_s, interval_s=interval_s)
    return Series(values=tuple(total / interval_s for total in sums), age_s=_age(now_s, newest))


def _counted(happened: list[tuple[float, float]], history: History, now_s: float, interval_s: float) -> Series:
    """Counts per interval up to now: the cluster tells of every change, so that silence says that there was none."""
    return Series(values=_binned(happened, until_s=now_s, since_s=history.since_s, interval_s=interval_s))


def _binned(
    pairs: list[tuple[float, float]], *, until_s: float, since_s: float, interval_s: float
) -> tuple[float, ...]:
    """Sums over the whole intervals that end at `until_s`, oldest first."""
    number = max(0, min(int((until_s - since_s) / interval_s + 1e-9), MAX_INTERVALS))
    sums = [0.0] * number
    for at_s, amount in pairs:
        index = math.floor((until_s - at_s) / interval_s)
        if 0 <= index < number:
            sums[number - 1 - index] += amount
    return tuple(sums)


def _losses(events: Iterable[Event]) -> list[tuple[float, float]]:
    """A loss for each worker at its notice, or when it was lost without one."""
    noticed: set[str] = set()
    losses: list[tuple[float, float]] = []
    for event in sorted(events, key=_time):
        if event.kind is EventKind.GPUS_ADDED:
            noticed -= {worker.id for worker in event.added}
        elif event.kind in (EventKind.RECLAIM_NOTICE, EventKind.GPUS_LOST):
            new = set(event.workers) - noticed
            losses += [(event.at_s, 1.0)] * len(new)
            noticed |= new
    return losses


def _windows(events: Iterable[Event], now_s: float) -> Series:
    """Times from each end of training to the next start; a window that is still open has no length yet."""
    windows: list[float] = []
    free_s: float | None = None
    closed_s = now_s
    for event in sorted(events, key=_time):
        if event.kind is EventKind.TRAINING_FINISHED and free_s is None:
            free_s = event.at_s
        elif event.kind is EventKind.TRAINING_STARTED and free_s is not None:
            windows.append(event.at_s - free_s)
            free_s, closed_s = None, event.at_s
    return Series(values=tuple(windows), age_s=_age(now_s, closed_s) if windows else 0.0)


def _timed(pairs: Iterable[tuple[float, float]], now_s: float) -> Series:
    ordered = sorted(pairs)
    return Series(values=tuple(value for _, value in ordered), age_s=_age(now_s, ordered[-1][0]) if ordered else 0.0)


def _age(now_s: float, at_s: float) -> float:
    return max(0.0, now_s - at_s)


def _time(event: Event) -> float:
    return event.at_s
