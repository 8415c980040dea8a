"""Mooncake's trace: a line is `{"timestamp": ms, "input_length": …, "output_length": …, "hash_ids": […]}`.

`hash_ids` names the 512-token blocks of the prompt, the same text the same id. There are no sessions; a request
continues the one that last ended in its prefix: it must hold every full block of that request's prompt. The system
prompt, which is the first block of every request here, is not enough. A request continued twice is a fork, and the
second continuation begins a trajectory of its own.

Gives turns, prompts and outputs. A wait is the time between two arrivals, so it holds the service time and a person's
pause: it is not taken as the environment's.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl.sim.traces.agents import AgentTrace, assemble, grow
from pearl.sim.traces.reading import MAX_SECONDS, TraceText


@dataclass(frozen=True, slots=True)
class _Request:
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def read_mooncake(source: TraceText) -> AgentTrace:
    """Read a Mooncake trace; raises InputError with file and line."""
    sessions: list[list[_Request]] = []
    open_at: dict[tuple[int, int], int] = {}
    for line, text in source.lines():
        request = _request(source, line, text)
        session = _continued(request, open_at)
        if session is None:
            session = len(sessions)
            sessions.append([])
        sessions[session].append(request)
        if len(request.blocks) > 2:
            open_at[_end(request.blocks, len(request.blocks) - 1)] = session
    parts = [
        (f"session-{i}" if j == 0 else f"session-{i}#{j}", piece)
        for i, requests in enumerate(sessions)
        for j, piece in enumerate(grow([(r.prompt_tokens, r.output_tokens, None) for r in requests]))
    ]
    notes = ("sessions are inferred from shared prefixes", "waits between requests are a person's, not a tool's")
    return assemble(source=source.file, sessions=parts, notes=notes)


def _continued(request: _Request, open_at: dict[tuple[int, int], int]) -> int | None:
    """The session whose last prompt ends deepest inside this one; it is taken, so that a second claim is a fork."""
    for depth in range(len(request.blocks), 1, -1):
        session = open_at.pop(_end(request.blocks, depth), None)
        if session is not None:
            return session
    return None


def _end(blocks: tuple[int, ...], depth: int) -> tuple[int, int]:
    """Depth and id of the last of `depth` blocks: ids name a block together with all before it."""
    return depth, blocks[depth - 1]


def _request(source: TraceText, line: int, text: str) -> _Request:
    row = source.mapping(line, "the line", source.json(line, text))
    source.number(line, "'timestamp'", row.get("timestamp"), high=MAX_SECONDS * 1000)
    blocks = source.sequence(line, "'hash_ids'", row.get("hash_ids"))
    return _Request(
        source.whole(line, "'input_length'", row.get("input_length")),
        source.whole(line, "'output_length'", row.get("output_length")),
        tuple(source.whole(line, "an element of 'hash_ids'", block, high=1 << 53) for block in blocks),
    )
