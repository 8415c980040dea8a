"""Validation of a document against its schema, empty values refused: `event:` with nothing after it is a slip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pearl.documents import Document, PathKey, validate
from pearl.errors import Fault, ScenarioError
from pearl.scenario.fields import Spec

SpecT = TypeVar("SpecT", bound=Spec)


def validate_filled(model: type[SpecT], document: Document) -> SpecT:
    """The model of the document's data; raises ScenarioError with every fault."""
    empty = list(_empty(document, document.data, ()))
    places = {fault.span for fault in empty}
    try:
        parsed = validate(model, document, error=ScenarioError)
    except ScenarioError as e:
        raise ScenarioError(in_file_order([*empty, *(f for f in e.faults if f.span not in places)])) from None
    if empty:
        raise ScenarioError(empty)
    return parsed


def in_file_order(faults: list[Fault]) -> list[Fault]:
    """The faults by line and column."""
    return sorted(faults, key=lambda fault: (fault.span.line, fault.span.column) if fault.span else (0, 0))


def _empty(document: Document, value: Any, path: PathKey) -> Iterator[Fault]:
    if value is None:
        name = ".".join(map(str, path)) or "the document"
        yield Fault(message=f"{name} is empty", span=document.span(path), hint="give a value, or leave the key out")
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _empty(document, child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _empty(document, child, (*path, index))
