"""Traces of the public repository kv-cache-tester: recorded sessions of a coding agent, without their text.

Table: `trace,turn,ctx_tokens,new_prompt_tokens,out_tokens,api_s,gap_s,gap_is_tool`, a row for each request in order;
`gap_s` is the wait before it. `new_prompt_tokens` counts whole cache blocks that the recording system missed; what is
new to the context is taken from `ctx_tokens` instead (see `agents`).

JSON: one session; `requests[]` with `in`, `out`, `api_time`, `think_time` (the wait before the request) and
`input_types`. An entry of type `subagent` holds requests of a context of its own, which become a trajectory of its own.

Both give turns, prompts, outputs and waits. A wait before a person's message (`gap_is_tool` 0; no `tool_result` among
`input_types`) says nothing of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pearl.sim.traces.agents import AgentTrace, Exchange, assemble, grow
from pearl.sim.traces.reading import TraceText, shown

COLUMNS = ("trace", "turn", "ctx_tokens", "new_prompt_tokens", "out_tokens", "api_s", "gap_s", "gap_is_tool")
HEADER = ",".join(COLUMNS)
MAX_RESULT_TOKENS = 32_768
"""Coding agents cap what a tool returns at some 25,000 tokens. A prompt that grows by more, in 0.3 % of the public
requests, belongs to another context under the same name: a resumed session, say."""


def read_kv_table(source: TraceText) -> AgentTrace:
    """Read the table; raises InputError with file and line."""
    rows = source.lines()
    line, header = next(rows, (1, ""))
    if header != HEADER:
        raise source.error(line, f"unexpected header {shown(header)}", expected=HEADER)
    sessions: dict[str, list[Exchange]] = {}
    for line, text in rows:
        name, turn, context, _, output, _, gap, is_tool = source.fields(line, text, COLUMNS)
        requests = sessions.setdefault(name, [])
        if source.whole(line, "'turn'", turn) != len(requests):
            raise source.error(line, f"turn {turn} of {shown(name)}", expected=f"turn {len(requests)}, in order")
        if is_tool not in ("0", "1"):
            raise source.error(line, f"'gap_is_tool' is {shown(is_tool)}", expected="0 or 1")
        gap_s = source.number(line, "'gap_s'", gap)
        tokens = source.whole(line, "'ctx_tokens'", context), source.whole(line, "'out_tokens'", output)
        requests.append((*tokens, gap_s if is_tool == "1" else None))
    if not sessions:
        raise source.error(line, "no requests after the header")
    return _trace(source, sessions)


def read_kv_session(source: TraceText) -> AgentTrace:
    """Read one session's JSON; raises InputError with file and line."""
    document = source.mapping(1, "the file", source.json(1, source.text))
    sessions = {name: requests for name, requests in _streams(source, str(document.get("id", "session")), document)}
    if not any(sessions.values()):
        raise source.error(1, "'requests' is empty")
    return _trace(source, sessions)


def _streams(
    source: TraceText, name: str, holder: Mapping[str, Any], *, inner: bool = False
) -> Iterator[tuple[str, list[Exchange]]]:
    """The requests of one context, then those of its sub-agents, one level deep as the format has it.

    An exchange holds here the wait before the request, as the format does; None if a person's.
    """
    mine: list[Exchange] = []
    children: list[Mapping[str, Any]] = []
    for i, item in enumerate(source.sequence(1, f"'requests' of {name}", holder.get("requests"))):
        where = f"requests[{i}] of {name}"
        entry = source.mapping(1, where, item)
        if entry.get("type") != "subagent":
            mine.append(_exchange(source, where, entry))
        elif inner:
            raise source.error(1, f"{where} is a sub-agent of a sub-agent", expected="one level")
        else:
            children.append(entry)
    yield name, mine
    for number, child in enumerate(children, start=1):
        yield from _streams(source, f"{name}/{number}", child, inner=True)


def _exchange(source: TraceText, where: str, entry: Mapping[str, Any]) -> Exchange:
    prompt, output = (source.whole(1, f"'{key}' in {where}", entry.get(key)) for key in ("in", "out"))
    wait_s = source.number(1, f"'think_time' in {where}", entry.get("think_time"))
    types = source.sequence(1, f"'input_types' in {where}", entry.get("input_types"))
    return prompt, output, wait_s if "tool_result" in types else None


def _trace(source: TraceText, sessions: Mapping[str, list[Exchange]]) -> AgentTrace:
    """Turn waits before into waits after, and split where the context was compacted or replaced."""
    parts = []
    for name, requests in sessions.items():
        before = [wait for _, _, wait in requests[1:]]
        after = [(prompt, out, wait) for (prompt, out, _), wait in zip(requests, [*before, None], strict=True)]
        pieces = grow(after, max_new_tokens=MAX_RESULT_TOKENS)
        parts += [(f"{name}#{i}" if i else name, piece) for i, piece in enumerate(pieces)]
    split = len(parts) - sum(bool(requests) for requests in sessions.values())
    notes = (f"{split} compacted or replaced contexts begin a trajectory of their own",) if split else ()
    return assemble(source=source.file, sessions=parts, notes=notes)
