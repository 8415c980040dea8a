"""Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, a row for each request.

There are neither sessions nor waits: every request is a trajectory of one turn. Good for the sizes of single prompts
and answers, and for nothing that depends on turns.
"""

from __future__ import annotations

from pearl.sim.traces.agents import AgentTrace, assemble
from pearl.sim.traces.reading import TraceText, shown

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
HEADER = ",".join(COLUMNS)


def read_azure(source: TraceText) -> AgentTrace:
    """Read an Azure trace; raises InputError with file and line."""
    rows = source.lines()
    line, header = next(rows, (1, ""))
    if header != HEADER:
        raise source.error(line, f"unexpected header {shown(header)}", expected=HEADER)
    sessions = []
    for line, text in rows:
        _, context, generated = source.fields(line, text, COLUMNS)
        tokens = source.whole(line, "'ContextTokens'", context), source.whole(line, "'GeneratedTokens'", generated)
        sessions.append((f"request-{line}", [(*tokens, None)]))
    if not sessions:
        raise source.error(line, "no requests after the header")
    return assemble(source=source.file, sessions=sessions, notes=("no sessions: every request is one turn",))
