"""SWE-agent's `.traj`: one trajectory of a software agent, as text.

`trajectory[]` gives for each step `response`, `action`, `observation` and `execution_time` in seconds; `history[]` the
messages before the first answer. Turns and tool times are recorded; tokens are not, and are estimated from the number
of characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pearl.sim.traces.agents import AgentTrace, Exchange, assemble
from pearl.sim.traces.reading import TraceText

CHARS_PER_TOKEN = 4.0
"""The usual rule of thumb for English text and code; tokenisers differ by some ±25 %."""


def read_swe_agent(source: TraceText) -> AgentTrace:
    """Read a `.traj` file; raises InputError with file and line."""
    document = source.mapping(1, "the file", source.json(1, source.text))
    steps = [
        source.mapping(1, f"trajectory[{i}]", step)
        for i, step in enumerate(source.sequence(1, "'trajectory'", document.get("trajectory")))
    ]
    if not steps:
        raise source.error(1, "'trajectory' is empty")
    new = _first_prompt(source, document.get("history"))
    turns: list[Exchange] = []
    for i, step in enumerate(steps):
        where = f"trajectory[{i}]"
        output = _text(source, where, step, "response")
        action = _text(source, where, step, "action")
        wait_s = source.number(1, f"'execution_time' in {where}", step.get("execution_time"))
        turns.append((new, _tokens(output if action in output else output + action), wait_s))
        new = _tokens(_text(source, where, step, "observation"))
    notes = (f"tokens are estimated: {CHARS_PER_TOKEN:g} characters each",)
    return assemble(source=source.file, sessions=[("trajectory", turns)], notes=notes)


def _first_prompt(source: TraceText, history: object) -> int:
    """Tokens of the messages before the first answer."""
    characters = ""
    for i, item in enumerate(source.sequence(1, "'history'", history)):
        message = source.mapping(1, f"history[{i}]", item)
        if message.get("role") == "assistant":
            break
        characters += _text(source, f"history[{i}]", message, "content")
    return _tokens(characters)


def _text(source: TraceText, where: str, holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    if isinstance(value, list):
        return "".join(str(part.get("text", "")) for part in value if isinstance(part, dict))
    if not isinstance(value, str):
        raise source.error(1, f"'{key}' in {where} is not text", expected="a string")
    return value


def _tokens(text: str) -> int:
    return max(1, round(len(text) / CHARS_PER_TOKEN))
