"""Which format a trace file is in, told from its first line, and the reader for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pearl.errors import Fault, InputError
from pearl.sim.traces import azure, bamboo, kv_cache_tester, mooncake, parcae, skypilot, swe_agent, table
from pearl.sim.traces.agents import AgentTrace
from pearl.sim.traces.availability import AvailabilityTrace
from pearl.sim.traces.reading import TraceText, read_text
from pearl.sim.traces.recording import ReadOptions

AvailabilityReader = Callable[[TraceText, ReadOptions], AvailabilityTrace]
AgentReader = Callable[[TraceText], AgentTrace]
Recogniser = Callable[[str, str], bool]
"""Takes the first line and the whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityFormat:
    """A format of availability traces."""

    name: str
    recognises: Recogniser
    read: AvailabilityReader


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFormat:
    """A format of agent traces."""

    name: str
    recognises: Recogniser
    read: AgentReader


TraceFormat = AvailabilityFormat | AgentFormat


def _line(pattern: str) -> Recogniser:
    compiled = re.compile(pattern)
    return lambda first, _text: compiled.match(first) is not None


def _object_with(*keys: str) -> Recogniser:
    """A JSON object over the whole text that names all of `keys`."""
    return lambda first, text: first.startswith("{") and all(f'"{key}"' in text for key in keys)


FORMATS: tuple[TraceFormat, ...] = (
    AvailabilityFormat(name="csv", recognises=_line(re.escape(table.HEADER)), read=table.read_table),
    AvailabilityFormat(name="parcae", recognises=_line(r"\["), read=parcae.read_parcae),
    AvailabilityFormat(name="bamboo-events", recognises=_line(r"\d+,(add|remove),"), read=bamboo.read_bamboo_events),
    AvailabilityFormat(name="bamboo-counts", recognises=_line(r"\d{4}-\d\d-\d\d, "), read=bamboo.read_bamboo_counts),
    AvailabilityFormat(name="skypilot", recognises=_object_with("gap_seconds"), read=skypilot.read_skypilot),
    AgentFormat(
        name="kv-table", recognises=_line(re.escape(kv_cache_tester.HEADER)), read=kv_cache_tester.read_kv_table
    ),
    AgentFormat(name="azure", recognises=_line(re.escape(azure.HEADER)), read=azure.read_azure),
    AgentFormat(
        name="mooncake",
        recognises=_line(r'\{(?=.*"input_length")(?=.*"output_length").*"hash_ids"'),
        read=mooncake.read_mooncake,
    ),
    AgentFormat(
        name="kv-session", recognises=_object_with("requests", "block_size"), read=kv_cache_tester.read_kv_session
    ),
    AgentFormat(name="swe-agent", recognises=_object_with("trajectory", "history"), read=swe_agent.read_swe_agent),
)
"""In the order in which they are tried; the first that recognises a file reads it."""


def format_names(kind: type[TraceFormat] | None = None) -> tuple[str, ...]:
    """Names of the formats, of one kind or of all."""
    return tuple(f.name for f in FORMATS if kind is None or isinstance(f, kind))


def format_of(source: TraceText, name: str | None = None) -> TraceFormat:
    """The format called `name`, or the one that recognises the text; else InputError."""
    if name is not None:
        for known in FORMATS:
            if known.name == name:
                return known
        raise InputError(Fault(message=f"unknown trace format {name!r}", hint=f"known: {', '.join(format_names())}"))
    line, first = next(source.lines(), (1, ""))
    if not first:
        raise source.error(1, "the file is empty", expected="a trace")
    for known in FORMATS:
        if known.recognises(first, source.text):
            return known
    raise source.error(
        line, "no known trace format begins like this", expected=", ".join(format_names()), hint="name it with --format"
    )


def read_trace(
    path: Path, *, format_name: str | None = None, options: ReadOptions | None = None
) -> AvailabilityTrace | AgentTrace:
    """Read a trace of either kind; raises InputError with file and line."""
    source = read_text(path)
    if next(source.lines(), None) is None:
        raise source.error(1, "the file is empty", expected="a trace")
    known = format_of(source, format_name)
    if isinstance(known, AvailabilityFormat):
        return known.read(source, options or ReadOptions())
    return known.read(source)


def read_availability(
    path: Path, *, format_name: str | None = None, options: ReadOptions | None = None
) -> AvailabilityTrace:
    """Read an availability trace; raises InputError with file and line, also for a trace of agents."""
    trace = read_trace(path, format_name=format_name, options=options)
    if not isinstance(trace, AvailabilityTrace):
        raise InputError(_wrong_kind(path, "of agents", AvailabilityFormat))
    return trace


def read_agents(path: Path, *, format_name: str | None = None) -> AgentTrace:
    """Read an agent trace; raises InputError with file and line, also for a trace of availability."""
    trace = read_trace(path, format_name=format_name)
    if not isinstance(trace, AgentTrace):
        raise InputError(_wrong_kind(path, "of availability", AgentFormat))
    return trace


def _wrong_kind(path: Path, found: str, wanted: type[TraceFormat]) -> Fault:
    return Fault(message=f"{path} is a trace {found}", expected=f"one of {', '.join(format_names(wanted))}")
