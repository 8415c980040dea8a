"""`--cluster-set ray.address=auto`: a value of a document replaced by its path, with its place kept for messages."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pearl.core.source import Span
from pearl.documents import Document, PathKey, parse_document
from pearl.errors import Fault, InputError, ScenarioError

_INDEX = re.compile(r"[0-9]{1,6}")


def with_sets(document: Document, sets: Mapping[str, str]) -> Document:
    """The document with these values of its `spec`, written as in YAML; raises ScenarioError with every fault."""
    faults: list[Fault] = []
    for name, text in sets.items():
        try:
            document = _with_set(document, name, text)
        except InputError as e:
            faults += e.faults
    if faults:
        raise ScenarioError(faults)
    return document


def _with_set(document: Document, name: str, text: str) -> Document:
    file = f"--cluster-set {name}"
    if not text.strip():
        raise ScenarioError(Fault(message=f"{file}: no value", expected="a value as written in the file"))
    path: PathKey = ("spec", *(int(part) if _INDEX.fullmatch(part) else part for part in name.split(".")))
    value = parse_document(text, file=file, error=ScenarioError)
    data = copy.deepcopy(document.data)
    _put(data, path, value.data, file)
    below = len(path)
    spans = {place: span for place, span in document.spans.items() if place[:below] != path}
    key_spans = {place: span for place, span in document.key_spans.items() if place[:below] != path}
    return replace(
        document,
        data=data,
        spans={**spans, **{(*path, *place): span for place, span in value.spans.items()}},
        key_spans={
            **key_spans,
            **{(*path, *place): span for place, span in value.key_spans.items()},
            path: Span(file=file, line=1),
        },
    )


def _put(data: Any, path: PathKey, value: Any, file: str) -> None:
    for index, part in enumerate(path):
        last = index == len(path) - 1
        match data, part:
            case dict(), str():
                data[part] = value if last else data.get(part, {})
            case list(), int() if part < len(data):
                data[part] = value if last else data[part]
            case _:
                inside = ".".join(map(str, path[1:index])) or "the cluster"
                fault = Fault(
                    message=f"{inside} has no {part!r} to set",
                    span=Span(file=file, line=1),
                    expected="keys joined by dots, as in limits.drain",
                )
                raise ScenarioError(fault)
        data = data[part]
