"""A document as a tree whose every value knows its place, so that policies from several files can be merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pearl.core.source import Span
from pearl.documents import Document, PathKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A value, its place, and the place of the key that names it."""

    value: Any
    """A scalar, a dict of nodes or a list of nodes."""
    span: Span
    key_span: Span

    def get(self, *path: str | int) -> Node | None:
        """The node at a path of keys and indices, or None."""
        node = self
        for part in path:
            value = node.value
            if isinstance(part, str) and isinstance(value, dict) and part in value:
                node = value[part]
            elif isinstance(part, int) and isinstance(value, list) and part < len(value):
                node = value[part]
            else:
                return None
        return node

    def items(self) -> Iterator[tuple[str, Node]]:
        """Entries of a mapping."""
        yield from self.value.items() if isinstance(self.value, dict) else ()

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def replaced(self, value: Any) -> Node:
        """The same place with another value."""
        return Node(value=value, span=self.span, key_span=self.key_span)


def located(document: Document, path: PathKey = ()) -> Node:
    """The tree of a document."""
    return _located(document, document.data, path)


def _located(document: Document, data: Any, path: PathKey) -> Node:
    if isinstance(data, dict):
        value: Any = {key: _located(document, child, (*path, key)) for key, child in data.items()}
    elif isinstance(data, list):
        value = [_located(document, child, (*path, i)) for i, child in enumerate(data)]
    else:
        value = data
    return Node(value=value, span=document.span(path), key_span=document.key_span(path))
