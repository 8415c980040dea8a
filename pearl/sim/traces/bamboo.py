"""Bamboo's two formats of availability traces.

Events (`*-trace.csv`): `milliseconds,add|remove,node`, no header, in time order; the horizon is the last event.

Counts (`*.txt`): `YYYY-MM-DD, HH:MM:SS, count`, the number of instances seen. The collector wrote each observation
down again for the following minutes, so that a line may go back in time; a line is then newer knowledge, and replaces
every earlier line at its time or after. Between samples the last count holds, also over gaps of hours.
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from pearl.sim.traces.availability import AvailabilityEvent, AvailabilityTrace, Change
from pearl.sim.traces.reading import MAX_SECONDS, TraceText, shown
from pearl.sim.traces.recording import EventLog, ReadOptions, merged, trace_of_counts

MS_PER_S = 1000.0
MAX_BACKWARD_S = 600.0
"""The published files go back by 60 s at most; ten times that is a file pasted together, not a repeated sample."""
LONG_GAP_S = 3600.0
"""An hour without samples is reported: the count that holds over it was not observed."""
_KINDS = {"add": Change.ADD, "remove": Change.RECLAIM}


def read_bamboo_events(source: TraceText, options: ReadOptions) -> AvailabilityTrace:
    """Read Bamboo's event format; raises InputError with file and line."""
    log = EventLog(source)
    for line, text in source.lines():
        at_ms, kind, node = source.fields(line, text, ("milliseconds", "event", "node"))
        at_s = source.number(line, "the time in milliseconds", at_ms, high=MAX_SECONDS * MS_PER_S) / MS_PER_S
        if kind not in _KINDS or not node:
            raise source.error(line, f"unknown event {shown(text)}", expected="milliseconds,add|remove,node")
        grace_s = options.grace_s if kind == "remove" else 0.0
        event = AvailabilityEvent(
            at_s=at_s, kind=_KINDS[kind], nodes=(node,), gpus_per_node=options.gpus_per_node, grace_s=grace_s
        )
        log.add(line, event)
    horizon_s = log.events[-1].at_s
    return AvailabilityTrace(events=merged(log.events), horizon_s=horizon_s, source=source.file, places=log.places)


def read_bamboo_counts(source: TraceText, options: ReadOptions) -> AvailabilityTrace:
    """Read Bamboo's count format; raises InputError with file and line."""
    samples: list[tuple[int, datetime, int]] = []
    replaced = 0
    for line, text in source.lines():
        day, clock, count = source.fields(line, text, ("date", "time", "count"))
        at = _instant(source, line, f"{day} {clock}")
        if samples and (samples[-1][1] - at).total_seconds() > MAX_BACKWARD_S:
            raise source.error(
                line, f"time goes back from {samples[-1][1]} to {at}", expected="at most ten minutes back"
            )
        while samples and samples[-1][1] >= at:
            samples.pop()
            replaced += 1
        samples.append((line, at, source.whole(line, "the count", count)))
    start = samples[0][1]
    timed = [(line, (at - start).total_seconds(), count) for line, at, count in samples]
    if timed[-1][1] > MAX_SECONDS:
        raise source.error(timed[-1][0], "the trace is longer than ten years")
    notes = tuple(_notes(timed, replaced))
    return trace_of_counts(source, timed, horizon_s=timed[-1][1], options=options, notes=notes)


def _notes(samples: list[tuple[int, float, int]], replaced: int) -> list[str]:
    notes = [f"{replaced} repeated samples were replaced by later lines"] if replaced else []
    for (_, before_s, count), (line, after_s, _) in pairwise(samples):
        if after_s - before_s > LONG_GAP_S:
            gap_h = (after_s - before_s) / 3600
            notes.append(f"no samples for {gap_h:.1f} h before line {line}: {count} nodes are assumed throughout")
    return notes


def _instant(source: TraceText, line: int, text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise source.error(line, f"not a date and time: {shown(text)}", expected="YYYY-MM-DD, HH:MM:SS") from None
