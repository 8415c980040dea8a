"""PEARL's own availability format: CSV with the header `at_s,event,node,gpus,grace_s`.

One row for each node that arrives (`add`) or gets its notice (`reclaim`), in time order; `gpus` is the node's number of
GPUs, `grace_s` the time from the notice to the loss (empty or 0 for `add`). A last row `<seconds>,end,,,` gives the
horizon; without it the horizon is the last event. Lines that begin with `#` are comments.
"""

from __future__ import annotations

from collections.abc import Iterator

from pearl.errors import InputError
from pearl.sim.traces.availability import MAX_NODES, AvailabilityEvent, AvailabilityTrace, Change
from pearl.sim.traces.reading import TraceText, shown
from pearl.sim.traces.recording import EventLog, ReadOptions, merged

COLUMNS = ("at_s", "event", "node", "gpus", "grace_s")
HEADER = ",".join(COLUMNS)


def read_table(source: TraceText, _options: ReadOptions) -> AvailabilityTrace:
    """Read PEARL's own format, which leaves nothing to options; raises InputError with file and line."""
    rows = source.lines()
    line, header = next(rows, (1, ""))
    if header != HEADER:
        raise source.error(line, f"unexpected header {shown(header)}", expected=HEADER)
    log = EventLog(source)
    size: dict[str, int] = {}
    end_s: float | None = None
    for line, text in rows:
        cells = source.fields(line, text, COLUMNS)
        if end_s is not None:
            raise source.error(line, "a row after 'end'", expected="'end' as the last row")
        if cells[1] == "end":
            end_s = source.number(line, "'at_s'", cells[0])
            if any(cells[2:]):
                expected = f"{cells[0]},end,,,"
                raise source.error(line, f"'end' names more than its time: {shown(text)}", expected=expected)
            continue
        event = _event(source, line, cells)
        node = event.nodes[0]
        log.add(line, event)
        if size.setdefault(node, event.gpus_per_node) != event.gpus_per_node and event.kind is Change.RECLAIM:
            raise source.error(
                line, f"node {node!r} leaves with {event.gpus_per_node} GPUs", expected=f"{size[node]}, as it arrived"
            )
        size[node] = event.gpus_per_node
    last_s = log.events[-1].at_s if log.events else 0.0
    if end_s is None and not log.events:
        raise source.error(line, "no events", expected="rows of events, or an 'end' row")
    if end_s is not None and end_s < last_s:
        raise source.error(line, f"'end' at {end_s:g} s lies before the last event at {last_s:g} s")
    horizon_s = last_s if end_s is None else end_s
    return AvailabilityTrace(events=merged(log.events), horizon_s=horizon_s, source=source.file, places=log.places)


def _event(source: TraceText, line: int, cells: list[str]) -> AvailabilityEvent:
    at, kind, node, gpus, grace = cells
    at_s = source.number(line, "'at_s'", at)
    if kind not in {change.value for change in Change}:
        raise source.error(line, f"unknown event {shown(kind)}", expected="add, reclaim or end")
    if not node:
        raise source.error(line, "'node' is empty", expected="the node's name")
    count = source.whole(line, "'gpus'", gpus, high=MAX_NODES)
    if count == 0:
        raise source.error(line, "'gpus' is 0", expected="at least 1")
    grace_s = source.number(line, "'grace_s'", grace or "0")
    if kind == Change.ADD and grace_s:
        raise source.error(line, "an arrival has a grace period", expected="an empty 'grace_s'")
    return AvailabilityEvent(at_s=at_s, kind=Change(kind), nodes=(node,), gpus_per_node=count, grace_s=grace_s)


def table_text(trace: AvailabilityTrace) -> str:
    """The trace in PEARL's own format; reading it back gives the same events and horizon.

    Raises InputError where a node's name holds a comma, a line break or surrounding blanks, which the format cannot.
    """
    return "\n".join([*_comments(trace), HEADER, *_rows(trace), f"{trace.horizon_s!r},end,,,", ""])


def _comments(trace: AvailabilityTrace) -> Iterator[str]:
    for text in (f"source: {trace.source}", *trace.notes):
        yield f"# {' '.join(text.split())}"


def _rows(trace: AvailabilityTrace) -> Iterator[str]:
    for event in trace.events:
        for node in event.nodes:
            if node != node.strip() or any(c in node for c in ",\n\r"):
                raise InputError(f"node name {node!r} cannot be written as a CSV cell")
            grace = "" if event.kind is Change.ADD else repr(event.grace_s)
            yield f"{event.at_s!r},{event.kind},{node},{event.gpus_per_node},{grace}"
