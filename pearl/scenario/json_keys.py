"""Where the keys of a JSON text are: the parser of the standard library tells neither places nor doubled keys."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping

from pearl.core.source import Span
from pearl.errors import Fault

KeyPath = tuple[str, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]')


def key_places(text: str, file: str) -> tuple[Mapping[KeyPath, Span], list[Fault]]:
    """Place of every key that only mappings lead to, by its path, and a fault for each key that is there twice.

    `text` must be JSON: what `json.loads` refuses is not looked for.
    """
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    places: dict[KeyPath, Span] = {}
    faults: list[Fault] = []
    path: list[str | None] = []
    latest = ("", 0)
    for token in _TOKEN.finditer(text):
        match token.group():
            case "{" | "[":
                path.append(None)
            case "}" | "]":
                path.pop()
            case ":":
                path[-1] = json.loads(latest[0])
                keys = tuple(key for key in path if key is not None)
                line = bisect_right(starts, latest[1])
                span = Span(file=file, line=line, column=latest[1] - starts[line - 1] + 1)
                if len(keys) == len(path) and places.setdefault(keys, span) is not span:
                    first = f"first at line {places[keys].line}, column {places[keys].column}"
                    faults.append(Fault(message=f"duplicate key {keys[-1]!r}", span=span, hint=first))
            case quoted:
                latest = (quoted, token.start())
    return places, faults
