"""What is left of a faulty policy once its faulty parts are cut out, so that one run reports faults of every kind."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from pearl.documents import Document, PathKey, validate
from pearl.errors import Fault, PolicyError
from pearl.policy.located import Node, located
from pearl.policy.schema import API_VERSION, KIND, PolicyFile

MAX_ROUNDS = 8
"""Cutting one part may uncover a fault of the part around it, at most as often as parts nest."""
_HEADER = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "unnamed"}}
"""What stands in for a faulty header: the rest of the file can be checked without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """What a document holds that satisfies the schema."""

    tree: Node | None
    """None where nothing is left."""
    faults: tuple[Fault, ...] = ()
    lost: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(section, name) of the definitions that were cut out."""


def salvage(document: Document) -> Salvage:
    """The part of a policy file that satisfies the schema, and the schema's faults."""
    tree = located(document)
    try:
        validate(PolicyFile, document, error=PolicyError)
    except PolicyError as e:
        faults = e.faults
    else:
        return Salvage(tree=tree)
    data = copy.deepcopy(document.data)
    lost: set[tuple[str, str]] = set()
    for _ in range(MAX_ROUNDS):
        paths = _faulty(data)
        if not paths:
            return Salvage(tree=tree, faults=faults, lost=frozenset(lost))
        for path in paths:
            if not path or not isinstance(data, dict):
                return Salvage(tree=None, faults=faults)
            if path[0] == "spec" and len(path) > 2:
                lost.add((str(path[1]), str(path[2])))
            _cut(data, tree, path)
        _restore_header(data, tree)
    return Salvage(tree=None, faults=faults)


def _faulty(data: Any) -> list[PathKey]:
    """Places to cut, later elements of a list first, so that the indices of earlier ones stay right."""
    try:
        PolicyFile.model_validate(data)
    except ValidationError as e:
        paths = {_path(data, item["loc"]) for item in e.errors()}
        return sorted(paths, key=lambda p: [f"{k:09d}" if isinstance(k, int) else k for k in p], reverse=True)
    return []


def _path(data: Any, loc: tuple[str | int, ...]) -> PathKey:
    """Where to cut for a fault at `loc`; a missing key costs the part that lacks it."""
    path: list[str | int] = []
    for part in loc:
        inside = isinstance(data, dict) and part in data
        if not inside and not (isinstance(data, list) and isinstance(part, int) and part < len(data)):
            if part in _HEADER and not path:
                return (part,)
            continue
        data = data[part]
        path.append(part)
    return tuple(path)


def _cut(data: Any, tree: Node, path: PathKey) -> None:
    """Remove the value at a path from plain data and from the tree, which have the same shape."""
    for part in path[:-1]:
        if not _has(data, part):
            return
        data, tree = data[part], tree.value[part]
    if _has(data, path[-1]):
        del data[path[-1]], tree.value[path[-1]]


def _has(data: Any, part: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, dict) and part in data


def _restore_header(data: dict[str, Any], tree: Node) -> None:
    for key, value in _HEADER.items():
        if key not in data:
            data[key] = copy.deepcopy(value)
            tree.value[key] = located(Document(file=tree.span.file, text="", data=value, spans={}, key_spans={}))
