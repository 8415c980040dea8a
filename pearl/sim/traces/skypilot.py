"""SkyPilot's spot traces: `{"metadata": {"gap_seconds": 300}, "data": [16, 16, 0, …]}`, one file for each zone.

Source of the format: the read-me of the public repository skypilot-org/spot-traces. An element is the number of
instances of one type that could be had at that tick (0 or 1 in the single-node files, up to 16 in the multi-node ones);
a tick lasts `gap_seconds` and the horizon is the end of the last one. GPUs per instance are in the file's name only
(`us-west-2a_k80_8.json`), so they are an option of the reader.
"""

from __future__ import annotations

from pearl.sim.traces.availability import AvailabilityTrace
from pearl.sim.traces.reading import MAX_SECONDS, TraceText
from pearl.sim.traces.recording import ReadOptions, trace_of_counts


def read_skypilot(source: TraceText, options: ReadOptions) -> AvailabilityTrace:
    """Read a SkyPilot spot trace; raises InputError with file and line."""
    document = source.mapping(1, "the file", source.json(1, source.text))
    metadata = source.mapping(1, "'metadata'", document.get("metadata"))
    gap_s = source.number(1, "'metadata.gap_seconds'", metadata.get("gap_seconds"), high=MAX_SECONDS)
    if gap_s == 0:
        raise source.error(1, "'metadata.gap_seconds' is 0", expected="seconds between two data points")
    data = source.sequence(1, "'data'", document.get("data"))
    if not data:
        raise source.error(1, "'data' is empty", expected="the number of available instances at each tick")
    if gap_s * len(data) > MAX_SECONDS:
        raise source.error(1, "the trace is longer than ten years")
    samples = [(1, i * gap_s, source.whole(1, f"'data[{i}]'", value)) for i, value in enumerate(data)]
    notes = (f"sampled every {gap_s:g} s: what changed between two samples was not seen",)
    return trace_of_counts(source, samples, horizon_s=gap_s * len(data), options=options, notes=notes)
