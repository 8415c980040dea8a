"""What a timeline picture shows, as plain facts: who held which role when, and what was decided."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pearl.core.cluster import Role, Status, Zone
from pearl.core.decision import Outcome
from pearl.core.event import EventKind


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Phase:
    """What a worker does for a while: it is in a role, or on its way to one."""

    role: Role
    transitioning: bool = False

    def __str__(self) -> str:
        return f"transitioning to {self.role}" if self.transitioning else self.role.value


def phase_of(role: Role, status: Status) -> Phase:
    """The phase of a worker; one whose status is inactive serves nothing, whatever its role."""
    if status is Status.INACTIVE:
        return Phase(role=Role.INACTIVE)
    return Phase(role=role, transitioning=status is Status.TRANSITIONING)


PHASES = tuple(Phase(role=role, transitioning=moving) for role in Role for moving in (False, True))
"""Every phase, in the order in which legends and stacks show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A worker in one phase, from `begin_s` up to `end_s` of simulated time."""

    begin_s: float
    end_s: float
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLife:
    """A worker from its arrival to its departure, or to the horizon: intervals that follow each other without gaps."""

    worker: str
    zone: Zone
    gpus: int
    intervals: tuple[Interval, ...]
    gone: bool
    """Whether it left; else it was there to the end."""

    @property
    def begin_s(self) -> float:
        """Arrival."""
        return self.intervals[0].begin_s

    @property
    def end_s(self) -> float:
        """Departure, or the horizon."""
        return self.intervals[-1].end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A step curve: `gpus[i]` holds from `at_s[i]` until the next change; 0 before the first."""

    at_s: tuple[float, ...] = ()
    gpus: tuple[int, ...] = ()

    def at(self, time_s: float) -> int:
        """The value at a time."""
        index = bisect_right(self.at_s, time_s)
        return self.gpus[index - 1] if index else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A batch or a training step; `end_s` is the horizon where it had not ended by then."""

    index: int
    begin_s: float
    end_s: float
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Because:
    """A reason as the log has it."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMark:
    """A decision: on which event, what, and why."""

    at_s: float
    event: EventKind
    outcome: Outcome
    configuration: str
    borrowed: int
    """Overlap workers that serve in it."""
    predicted_s: float | None
    """Predicted makespan of a batch; None where nothing was predicted."""
    steps: int
    """Length of its plan."""
    reasons: tuple[Because, ...]


class MarkKind(StrEnum):
    """What else is marked."""

    RECLAIM_NOTICE = "reclaim notice"
    GPUS_LOST = "GPUs lost"
    ROLLED_BACK = "expansion rolled back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that befell workers at one instant."""

    at_s: float
    kind: MarkKind
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """GPUs that are counted together: those of a zone in one phase."""

    zone: Zone
    phase: Phase


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A simulation as a picture shows it; times in seconds of simulated time, from 0 to `horizon_s`."""

    horizon_s: float
    workers: tuple[WorkerLife, ...]
    """In order of arrival."""
    bands: Mapping[Band, Curve]
    """GPUs in each zone and phase over time; bands that never held a GPU are absent."""
    batches: tuple[Bar, ...]
    trainings: tuple[Bar, ...]
    decisions: tuple[DecisionMark, ...]
    marks: tuple[Mark, ...]

    @property
    def zones(self) -> tuple[Zone, ...]:
        """Zones that ever held a worker, in the order of `Zone`."""
        seen = {life.zone for life in self.workers}
        return tuple(zone for zone in Zone if zone in seen)

    def held(self, zone: Zone) -> Curve:
        """GPUs that are there, whatever they do."""
        lives = (life for life in self.workers if life.zone is zone)
        return _curve(change for life in lives for change in _changes(life.begin_s, life.end_s, life.gpus))

    def lent(self, zone: Zone) -> Curve:
        """GPUs that are in a serving role or on the way to one: of the overlap zone, the borrowed ones."""
        lives = (life for life in self.workers if life.zone is zone)
        return _curve(
            change
            for life in lives
            for interval in life.intervals
            if interval.phase.role is not Role.INACTIVE
            for change in _changes(interval.begin_s, interval.end_s, life.gpus)
        )


def bands_of(workers: Iterable[WorkerLife]) -> dict[Band, Curve]:
    """GPUs by zone and phase over time."""
    changes: defaultdict[Band, list[tuple[float, int]]] = defaultdict(list)
    for life in workers:
        for interval in life.intervals:
            band = Band(zone=life.zone, phase=interval.phase)
            changes[band] += _changes(interval.begin_s, interval.end_s, life.gpus)
    order = [Band(zone=zone, phase=phase) for zone in Zone for phase in PHASES]
    return {band: _curve(changes[band]) for band in order if band in changes}


def _changes(begin_s: float, end_s: float, gpus: int) -> tuple[tuple[float, int], tuple[float, int]]:
    return (begin_s, gpus), (end_s, -gpus)


def _curve(changes: Iterable[tuple[float, int]]) -> Curve:
    """The running sum of changes, one point for each time at which it differs."""
    net: defaultdict[float, int] = defaultdict(int)
    for at_s, gpus in changes:
        net[at_s] += gpus
    times, values, level = [], [], 0
    for at_s in sorted(net):
        if net[at_s]:
            level += net[at_s]
            times.append(at_s)
            values.append(level)
    return Curve(at_s=tuple(times), gpus=tuple(values))
