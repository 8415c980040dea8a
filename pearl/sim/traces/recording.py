"""What the readers of availability traces share: options, and a log that checks every event at its line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from pearl.core.source import Span
from pearl.errors import InputError
from pearl.sim.traces.availability import (
    MAX_ARRIVALS,
    AvailabilityEvent,
    AvailabilityTrace,
    Change,
    apply_membership,
    events_of_counts,
    misfit,
)
from pearl.sim.traces.reading import TraceText


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a recorded trace does not say."""

    grace_s: float = 30.0
    """Notice before a reclaim: 30 s is the shortest of the large clouds (Azure, Google; AWS gives 120 s)."""
    gpus_per_node: int = 1


@dataclass(slots=True)
class EventLog:
    """Collects events in file order; one that cannot follow raises InputError at its line."""

    source: TraceText
    events: list[AvailabilityEvent] = field(default_factory=list)
    places: dict[tuple[str, int], Span] = field(default_factory=dict)
    """Where each node is first named with so many GPUs."""
    _present: set[str] = field(default_factory=set)
    _arrived: int = 0

    def add(self, line: int, event: AvailabilityEvent) -> None:
        """Append an event."""
        if self.events and event.at_s < self.events[-1].at_s:
            raise self.source.error(line, f"time goes back from {self.events[-1].at_s:g} s to {event.at_s:g} s")
        problem = misfit(event, self._present)
        if problem:
            raise self.source.error(line, problem)
        if event.kind is Change.ADD:
            self._arrived += len(event.nodes)
        if self._arrived > MAX_ARRIVALS:
            raise self.source.error(line, f"more than {MAX_ARRIVALS} nodes arrive")
        apply_membership(event, self._present)
        self.events.append(event)
        for node in event.nodes:
            self.places.setdefault((node, event.gpus_per_node), Span(file=self.source.file, line=line))


def trace_of_counts(
    source: TraceText,
    samples: list[tuple[int, float, int]],
    *,
    horizon_s: float,
    options: ReadOptions,
    notes: tuple[str, ...],
) -> AvailabilityTrace:
    """A trace from samples `(line, at_s, nodes)` in time order; a count out of range raises InputError at its line."""
    try:
        events = tuple(
            events_of_counts(
                [(at_s, nodes) for _, at_s, nodes in samples],
                gpus_per_node=options.gpus_per_node,
                grace_s=options.grace_s,
            )
        )
    except InputError as e:
        raise source.error(samples[0][0], str(e)) from None
    return AvailabilityTrace(events=events, horizon_s=horizon_s, source=source.file, notes=notes)


def merged(events: Iterable[AvailabilityEvent]) -> tuple[AvailabilityEvent, ...]:
    """Neighbours that differ only in their nodes become one event."""
    runs = groupby(events, key=lambda e: (e.at_s, e.kind, e.gpus_per_node, e.grace_s))
    grouped = (tuple(run) for _, run in runs)
    return tuple(replace(run[0], nodes=tuple(node for event in run for node in event.nodes)) for run in grouped)
