"""Parcae's traces: a line is a JSON array `[milliseconds, "add" | "remove" | "no-op", {"nodes": […], "duration": ms}]`.

The keys that name Parcae's own strategies are ignored. The horizon is the end of the last line's duration.
"""

from __future__ import annotations

from pearl.sim.traces.availability import AvailabilityEvent, AvailabilityTrace, Change
from pearl.sim.traces.reading import MAX_SECONDS, TraceText, shown
from pearl.sim.traces.recording import EventLog, ReadOptions

MS_PER_S = 1000.0
_KINDS = {"add": Change.ADD, "remove": Change.RECLAIM, "no-op": None}


def read_parcae(source: TraceText, options: ReadOptions) -> AvailabilityTrace:
    """Read a Parcae trace; raises InputError with file and line."""
    log = EventLog(source)
    horizon_s, last_ms = 0.0, 0.0
    for line, text in source.lines():
        row = source.sequence(line, "the line", source.json(line, text))
        if len(row) != 3:
            raise source.error(line, f"{len(row)} elements", expected="[milliseconds, event, {nodes, duration}]")
        at_ms = source.number(line, "the time in milliseconds", row[0], high=MAX_SECONDS * MS_PER_S)
        if at_ms < last_ms:
            raise source.error(line, f"time goes back from {last_ms:g} ms to {at_ms:g} ms")
        last_ms = at_ms
        details = source.mapping(line, "the third element", row[2])
        duration_ms = source.number(line, "'duration'", details.get("duration", 0), high=MAX_SECONDS * MS_PER_S)
        horizon_s = max(horizon_s, (at_ms + duration_ms) / MS_PER_S)
        if horizon_s > MAX_SECONDS:
            raise source.error(line, "the trace is longer than ten years")
        change = _change(source, line, row[1])
        names = _names(source, line, details.get("nodes"))
        if change is None and names:
            raise source.error(line, "a 'no-op' names nodes", expected="an empty array")
        if change is not None:
            event = AvailabilityEvent(
                at_s=at_ms / MS_PER_S,
                kind=change,
                nodes=names,
                gpus_per_node=options.gpus_per_node,
                grace_s=options.grace_s if change is Change.RECLAIM else 0.0,
            )
            log.add(line, event)
    return AvailabilityTrace(events=tuple(log.events), horizon_s=horizon_s, source=source.file, places=log.places)


def _change(source: TraceText, line: int, kind: object) -> Change | None:
    """What the line's event does; None for a `no-op`."""
    if not isinstance(kind, str) or kind not in _KINDS:
        raise source.error(line, f"unknown event {shown(kind)}", expected="'add', 'remove' or 'no-op'")
    return _KINDS[kind]


def _names(source: TraceText, line: int, nodes: object) -> tuple[str, ...]:
    names = source.sequence(line, "'nodes'", nodes)
    if not all(isinstance(name, str) and name and _is_text(name) for name in names):
        raise source.error(line, "'nodes' holds something that is not a name", expected="an array of strings")
    return tuple(names)


def _is_text(name: str) -> bool:
    """Whether it can be written again: JSON can spell halves of characters, which no file can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
