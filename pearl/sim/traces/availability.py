"""The one neutral form of an availability trace: which preemptible nodes arrive and leave, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pearl.core.source import Span
from pearl.errors import InputError, UsageError

SECONDS_PER_HOUR = 3600.0
MAX_NODES = 65_536
"""Nodes at one instant; a count past this is a garbled number, not a cluster."""
MAX_ARRIVALS = 1_000_000
"""Nodes that may arrive over a whole trace; bounds the memory that a small file of large counts can ask for."""
MAX_WINDOWS = 10_000
"""Windows of one trace; more is a slip in the unit."""


class Change(StrEnum):
    """What happens to nodes."""

    ADD = "add"
    """The nodes' GPUs can be used from now on."""
    RECLAIM = "reclaim"
    """A notice: the nodes are gone once the grace period is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityEvent:
    """Nodes that arrive, or get their reclaim notice, at one instant.

    `grace_s` is the time from a reclaim notice to the loss of the node; it is 0 for arrivals.
    """

    at_s: float
    kind: Change
    nodes: tuple[str, ...]
    gpus_per_node: int = 1
    grace_s: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs that the event touches."""
        return len(self.nodes) * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityStatistics:
    """What distinguishes one trace, or one segment, from another."""

    mean_gpus: float
    """Time average."""
    min_gpus: int
    max_gpus: int
    abundance: float
    """`mean_gpus` over the maximum that the caller names, or over `max_gpus`; 0 for a trace without GPUs."""
    changes_per_h: float
    """Instants after the start at which nodes arrive or get notice, per hour."""
    reclaims_per_h: float
    """Instants after the start at which nodes get notice, per hour."""
    gpus_moved_per_h: float
    """GPUs added plus GPUs reclaimed after the start, per hour."""


@dataclass(frozen=True, kw_only=True)
class AvailabilityTrace:
    """Arrivals and reclaim notices in time order over [0, `horizon_s`].

    A node counts as available from its arrival to its notice: during the grace period it must be handed back.
    Building one checks the order of the events, that no present node arrives and that no absent node is reclaimed;
    the readers report such faults by file and line before they get here.
    """

    events: tuple[AvailabilityEvent, ...]
    horizon_s: float
    source: str = ""
    """File or generator that it came from."""
    notes: tuple[str, ...] = ()
    """What the reader had to assume or repair."""
    places: Mapping[tuple[str, int], Span] = field(default_factory=dict, compare=False, repr=False)
    """Where the file that was read first names a node with so many GPUs; empty where no file names nodes."""

    def __post_init__(self) -> None:
        present: set[str] = set()
        last_s = 0.0
        for event in self.events:
            if not last_s <= event.at_s <= self.horizon_s:
                raise ValueError(f"event at {event.at_s} s is out of order or after the horizon {self.horizon_s} s")
            last_s = event.at_s
            problem = misfit(event, present)
            if problem:
                raise ValueError(f"event at {event.at_s} s: {problem}")
            apply_membership(event, present)

    def counts(self) -> tuple[tuple[float, int], ...]:
        """Steps `(at_s, gpus)` of the number of available GPUs, from time 0; one step per instant of change."""
        steps: list[tuple[float, int]] = [(0.0, 0)]
        for event in self.events:
            gpus = steps[-1][1] + (event.gpus if event.kind is Change.ADD else -event.gpus)
            if event.at_s == steps[-1][0]:
                steps[-1] = (event.at_s, gpus)
            else:
                steps.append((event.at_s, gpus))
        return tuple(steps)

    def gpus_at(self, at_s: float) -> int:
        """Available GPUs at a time, events of that instant included; 0 before time 0."""
        gpus = 0
        for step_s, count in self.counts():
            if step_s > at_s:
                break
            gpus = count
        return gpus

    def segment(self, start_s: float, length_s: float) -> AvailabilityTrace:
        """The trace as seen from `start_s` for `length_s`, with time 0 at `start_s`.

        Nodes available at the start arrive at time 0; nodes already under notice are left out. An event at the end
        belongs to the segment that begins there, or to this one where the trace ends as well. Raises UsageError where
        the segment does not lie inside the trace.
        """
        end_s = start_s + length_s
        last = end_s >= self.horizon_s * (1 - 1e-12)
        if not (0 <= start_s < end_s <= self.horizon_s * (1 + 1e-12)):
            raise UsageError(f"segment {start_s:g} to {end_s:g} s is not inside the trace of {self.horizon_s:g} s")
        present: dict[str, int] = {}
        inside: list[AvailabilityEvent] = []
        for event in self.events:
            if event.at_s <= start_s:
                for node in event.nodes:
                    if event.kind is Change.ADD:
                        present[node] = event.gpus_per_node
                    else:
                        present.pop(node)
            elif event.at_s < end_s or last:
                inside.append(replace(event, at_s=min(event.at_s - start_s, length_s)))
        source = f"{self.source}[{start_s:g}s+{length_s:g}s]"
        start = tuple(_arrivals(present))
        return replace(self, events=(*start, *inside), horizon_s=length_s, source=source)

    def rescaled(self, max_gpus: int, *, gpus_per_node: int = 1, grace_s: float | None = None) -> AvailabilityTrace:
        """The same curve with its maximum at `max_gpus`, on nodes of `gpus_per_node`.

        Counts are scaled and rounded to whole nodes; nodes get new names, and the latest to arrive leave first.
        `grace_s` is that of every reclaim; None takes the largest of the trace. Raises UsageError unless `max_gpus`
        is a positive multiple of `gpus_per_node`, of MAX_NODES nodes at most.
        """
        if max_gpus < 1 or gpus_per_node < 1 or max_gpus % gpus_per_node:
            raise UsageError(f"{max_gpus} GPUs are not a positive multiple of {gpus_per_node} GPUs per node")
        if max_gpus > MAX_NODES * gpus_per_node:
            raise UsageError(f"{max_gpus} GPUs are more than {MAX_NODES} nodes of {gpus_per_node} have")
        steps = self.counts()
        peak = max(gpus for _, gpus in steps)
        factor = max_gpus / gpus_per_node / peak if peak else 0.0
        nodes = [(at_s, math.floor(gpus * factor + 0.5)) for at_s, gpus in steps]
        kept = grace_s if grace_s is not None else max((e.grace_s for e in self.events), default=0.0)
        events = events_of_counts(nodes, gpus_per_node=gpus_per_node, grace_s=kept)
        return replace(self, events=tuple(events), source=f"{self.source}[max {max_gpus} GPUs]", places={})

    def statistics(self, max_gpus: int | None = None) -> AvailabilityStatistics:
        """Abundance against `max_gpus` (None: the most ever available) and rates of change."""
        steps = self.counts()
        peak = max(gpus for _, gpus in steps)
        ends = [at_s for at_s, _ in steps[1:]] + [self.horizon_s]
        area = math.fsum((end_s - at_s) * gpus for (at_s, gpus), end_s in zip(steps, ends, strict=True))
        mean = area / self.horizon_s if self.horizon_s else float(steps[-1][1])
        later = [event for event in self.events if event.at_s > 0]
        hours = self.horizon_s / SECONDS_PER_HOUR
        per_h = 1 / hours if hours else 0.0
        full = max_gpus if max_gpus is not None else peak
        return AvailabilityStatistics(
            mean_gpus=mean,
            min_gpus=min(gpus for _, gpus in steps),
            max_gpus=peak,
            abundance=mean / full if full else 0.0,
            changes_per_h=len({e.at_s for e in later}) * per_h,
            reclaims_per_h=len({e.at_s for e in later if e.kind is Change.RECLAIM}) * per_h,
            gpus_moved_per_h=sum(e.gpus for e in later) * per_h,
        )

    def windows(self, length_s: float) -> Iterator[tuple[float, AvailabilityStatistics]]:
        """Start and statistics of the whole windows of `length_s`, end to end; abundance against the trace's peak.

        Raises UsageError for windows without length, and for more than MAX_WINDOWS of them.
        """
        if not length_s > 0:
            raise UsageError(f"windows of {length_s:g} s; expected a length above 0 s")
        if not length_s * MAX_WINDOWS >= self.horizon_s:
            raise UsageError(f"windows of {length_s:g} s: more than {MAX_WINDOWS} in {self.horizon_s:g} s")
        peak = max(gpus for _, gpus in self.counts())
        for i in range(int(self.horizon_s // length_s)):
            yield i * length_s, self.segment(i * length_s, length_s).statistics(peak)


def misfit(event: AvailabilityEvent, present: Iterable[str]) -> str | None:
    """Why `event` cannot follow when the nodes `present` are there; None if it can."""
    here = present if isinstance(present, (set, dict)) else set(present)
    seen: set[str] = set()
    for node in event.nodes:
        if event.kind is Change.ADD and (node in here or node in seen):
            return f"node {node!r} arrives but is already there"
        if event.kind is Change.RECLAIM and (node not in here or node in seen):
            return f"node {node!r} is reclaimed but is not there"
        seen.add(node)
    return None


def apply_membership(event: AvailabilityEvent, present: set[str]) -> None:
    """Update the set of present nodes by one event, in place."""
    if event.kind is Change.ADD:
        present.update(event.nodes)
    else:
        present.difference_update(event.nodes)


def events_of_counts(
    samples: Sequence[tuple[float, int]], *, gpus_per_node: int, grace_s: float
) -> Iterator[AvailabilityEvent]:
    """Events whose number of nodes follows `samples` of `(at_s, nodes)` in time order.

    For sources that say how many and not which: each arriving node gets a new name, `spot-0` onward, and the latest
    to arrive leave first. Raises InputError past MAX_NODES or MAX_ARRIVALS.
    """
    present: list[str] = []
    arrived = 0
    for at_s, count in samples:
        if not 0 <= count <= MAX_NODES:
            raise InputError(f"{count} nodes at {at_s:g} s; expected 0 to {MAX_NODES}")
        change = count - len(present)
        if change > 0:
            if arrived + change > MAX_ARRIVALS:
                raise InputError(f"more than {MAX_ARRIVALS} nodes arrive by {at_s:g} s")
            fresh = tuple(f"spot-{i}" for i in range(arrived, arrived + change))
            arrived += change
            present.extend(fresh)
            yield AvailabilityEvent(at_s=at_s, kind=Change.ADD, nodes=fresh, gpus_per_node=gpus_per_node)
        elif change < 0:
            leaving = tuple(reversed(present[change:]))
            del present[change:]
            yield AvailabilityEvent(
                at_s=at_s, kind=Change.RECLAIM, nodes=leaving, gpus_per_node=gpus_per_node, grace_s=grace_s
            )


def _arrivals(present: dict[str, int]) -> Iterator[AvailabilityEvent]:
    """One arrival at time 0 for each node size, smallest first."""
    for size in sorted(set(present.values())):
        nodes = tuple(node for node, gpus in present.items() if gpus == size)
        yield AvailabilityEvent(at_s=0.0, kind=Change.ADD, nodes=nodes, gpus_per_node=size)
