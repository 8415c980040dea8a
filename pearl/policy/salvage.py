"""What is left of a faulty document once its faulty parts are cut out, so that one run reports faults of every kind."""

from __future__ import annotations

import copy
from typing import Any

from pydantic import BaseModel, ValidationError

from pearl.documents import Document, PathKey, validate
from pearl.errors import Fault, PolicyError

MAX_ROUNDS = 8
"""Cutting one part may uncover a fault of the part around it, at most as often as parts nest."""


def salvage(model: type[BaseModel], document: Document) -> tuple[Any, list[Fault], set[tuple[str, str]]]:
    """Data that satisfies the schema (None if there is none), the schema's faults, and (section, name) cut out."""
    try:
        validate(model, document, error=PolicyError)
    except PolicyError as e:
        faults = list(e.faults)
    else:
        return document.data, [], set()
    data = copy.deepcopy(document.data)
    lost: set[tuple[str, str]] = set()
    for _ in range(MAX_ROUNDS):
        try:
            model.model_validate(data)
        except ValidationError as e:
            paths = {_path(data, item["loc"]) for item in e.errors()}
        else:
            return data, faults, lost
        for path in sorted(paths, key=lambda p: [*map(_sortable, p)], reverse=True):
            if not path:
                return None, faults, lost
            if path[0] == "spec" and len(path) > 2:
                lost.add((str(path[1]), str(path[2])))
            _cut(data, path)
    return None, faults, lost


def _sortable(part: str | int) -> str:
    """List indices in order of size, so that later elements are cut first and earlier indices stay right."""
    return f"{part:09d}" if isinstance(part, int) else part


def _path(data: Any, loc: tuple[str | int, ...]) -> PathKey:
    """Where to cut for a fault at `loc`; a missing key costs the part that lacks it."""
    path: list[str | int] = []
    for part in loc:
        inside = isinstance(data, dict) and part in data
        if not inside and not (isinstance(data, list) and isinstance(part, int) and part < len(data)):
            continue
        data = data[part]
        path.append(part)
    return tuple(path)


def _cut(data: Any, path: PathKey) -> None:
    for part in path[:-1]:
        try:
            data = data[part]
        except (LookupError, TypeError):
            return
    last = path[-1]
    if isinstance(data, dict):
        data.pop(last, None)
    elif isinstance(data, list) and isinstance(last, int) and last < len(data):
        del data[last]
