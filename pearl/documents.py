"""YAML documents whose every value knows its line and column, and pydantic validation that reports all faults by place.

The reader is stricter than PyYAML's: duplicate keys, aliases, tags and merge keys are faults; only `true` and `false`
are booleans; `1e-4` is a number, `1:30`, `0777` and dates are text.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pearl.core.source import Span
from pearl.errors import Fault, InputError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

MAX_BYTES = 1 << 20
"""A policy or scenario of a thousand nodes takes 0.1 MiB; past this the file is something else."""
MAX_DEPTH = 64
"""Deeper nesting than any field of the schemas; bounds the recursion."""

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)\Z")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*)?\.?[0-9]+([eE][-+]?[0-9]+)?\Z|[-+]?[0-9]+\.\Z")
MAX_DIGITS = 40
"""Longer digit strings are text: no quantity here has them, and Python refuses to print the largest."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml reads ten times faster than pure Python, where PyYAML was built with it."""

PathKey = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)


class Part(BaseModel):
    """Base of every part of a document: strict, frozen, and documented by the strings below its fields.

    Those strings are read from the source when a JSON Schema is asked for, and validators are built at their first use:
    pydantic's `use_attribute_docstrings` would parse the source of every class at every start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(schema)
        properties = handler.resolve_ref_schema(reference)["properties"]
        for name, text in _attribute_docstrings(cls).items():
            field = cls.model_fields[name]
            if text != getattr(field.annotation, "__doc__", None):
                properties[field.alias or name]["description"] = text
        return reference


def _attribute_docstrings(model: type[Part]) -> dict[str, str]:
    """The string below each field of a model and of its bases; empty where the source is not at hand."""
    import ast
    import inspect
    from itertools import pairwise
    from textwrap import dedent

    found: dict[str, str] = {}
    for base in reversed(model.__mro__[: model.__mro__.index(Part)]):
        try:
            body = ast.parse(dedent(inspect.getsource(base))).body[0]
        except OSError:
            continue
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


@dataclass(frozen=True, kw_only=True)
class Document:
    """Plain data, and the place of each value (`spans`) and each mapping key (`key_spans`) by its path."""

    file: str
    text: str
    data: Any
    spans: Mapping[PathKey, Span]
    key_spans: Mapping[PathKey, Span]

    def span(self, path: PathKey) -> Span:
        """Place of the value at `path`, or of its nearest enclosing value."""
        while path not in self.spans and path:
            path = path[:-1]
        return self.spans.get(path, Span(file=self.file, line=1))

    def key_span(self, path: PathKey) -> Span:
        """Place of the key that names the value at `path`, or of the value."""
        return self.key_spans.get(path) or self.span(path)


def read_document(path: Path, *, error: type[InputError] = InputError) -> Document:
    """Read a file; raises `error` with every fault of the YAML itself."""
    name = str(path)
    try:
        if path.stat().st_size > MAX_BYTES and path.is_file():
            raise error(Fault(message=f"{name}: file is larger than {MAX_BYTES} bytes"))
        raw = path.read_bytes()
    except OSError as e:
        raise error(Fault(message=f"cannot read {name}: {e.strerror or e}", hint="check the path")) from None
    except ValueError as e:
        raise error(Fault(message=f"cannot read {name!r}: {e}")) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        line = raw[: e.start].count(b"\n") + 1
        span = Span(file=name, line=line)
        raise error(Fault(message="not UTF-8 text", span=span, expected="a UTF-8 YAML file")) from None
    return parse_document(text, file=name, error=error)


def parse_document(text: str, *, file: str, error: type[InputError] = InputError) -> Document:
    """Parse YAML text; raises `error` with every fault found."""
    start = Span(file=file, line=1)
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        span = Span(file=file, line=mark.line + 1, column=mark.column + 1) if mark else start
        raise error(Fault(message=f"not valid YAML: {e.problem or e.context}", span=span)) from None
    except yaml.YAMLError as e:
        raise error(Fault(message=f"not valid YAML: {' '.join(str(e).split())}", span=start)) from None
    except RecursionError:
        raise error(Fault(message="nested too deeply", span=start)) from None
    except ValueError as e:
        raise error(Fault(message=f"not valid YAML: {e}", span=start)) from None
    if node is None:
        raise error(Fault(message="the file is empty", span=start, expected="a YAML mapping"))
    reader = _Reader(file)
    data = reader.value(node, ())
    if reader.faults:
        raise error(reader.faults)
    return Document(file=file, text=text, data=data, spans=reader.spans, key_spans=reader.key_spans)


class _Reader:
    """Turns YAML nodes into plain data, collecting spans and faults."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[Fault] = []
        self.spans: dict[PathKey, Span] = {}
        self.key_spans: dict[PathKey, Span] = {}
        self._seen: set[int] = set()

    def span(self, node: yaml.Node) -> Span:
        return Span(file=self.file, line=node.start_mark.line + 1, column=node.start_mark.column + 1)

    def value(self, node: yaml.Node, path: PathKey) -> Any:
        self.spans[path] = self.span(node)
        if id(node) in self._seen:
            self.faults.append(Fault(message="aliases (*name) are not allowed", span=self.span(node)))
            return None
        self._seen.add(id(node))
        if len(path) > MAX_DEPTH:
            self.faults.append(Fault(message="nested too deeply", span=self.span(node)))
            return None
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.rsplit(":", 1)[1] not in ("map", "seq"):
            self.faults.append(Fault(message=f"tag {node.tag!r} is not allowed", span=self.span(node)))
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]
        return self.mapping(node, path)

    def mapping(self, node: yaml.Node, path: PathKey) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, child in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(Fault(message="a key must be plain text", span=self.span(key_node)))
                continue
            key = str(key_node.value)
            if key in result:
                first = self.key_spans[(*path, key)]
                self.faults.append(
                    Fault(
                        message=f"duplicate key {key!r}", span=self.span(key_node), hint=f"first at line {first.line}"
                    )
                )
                continue
            self.key_spans[(*path, key)] = self.span(key_node)
            result[key] = self.value(child, (*path, key))
        return result

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        if node.style:
            return text
        if node.tag not in _PLAIN_TAGS:
            self.faults.append(Fault(message=f"tag {node.tag!r} is not allowed", span=self.span(node)))
            return None
        return plain_scalar(text)


_PLAIN_TAGS = {f"tag:yaml.org,2002:{t}" for t in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")}


def plain_scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar, by the YAML 1.2 core rules."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if len(text) <= MAX_DIGITS:
        if _INT.match(text):
            return int(text)
        if _FLOAT.match(text):
            number = float(text)
            return number if math.isfinite(number) else text
    return text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the closest known name, or lists them when few; None if there is nothing to say."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if 0 < len(names) <= 24 else None


def validate(model: type[ModelT], document: Document, *, error: type[InputError] = InputError) -> ModelT:
    """Validate a document's data; raises `error` with every fault, each at its place."""
    try:
        return model.model_validate(document.data)
    except ValidationError as e:
        faults = [_fault(document, model, item) for item in e.errors(include_url=False)]
        unique = {str(fault): fault for fault in faults}
        ordered = sorted(unique.values(), key=lambda f: (f.span.line, f.span.column) if f.span else (0, 0))
        raise error(ordered) from None


def _fault(document: Document, model: type[BaseModel], item: Any) -> Fault:
    path = _real_path(document.data, item["loc"])
    dotted = ".".join(str(p) for p in path) or "the document"
    match item["type"]:
        case "extra_forbidden":
            known = _fields_at(model, path[:-1])
            message, span = f"unknown key {path[-1]!r}", document.key_span(path)
            return Fault(message=message, span=span, hint=nearest(str(path[-1]), known))
        case "missing":
            key = item["loc"][-1]
            return Fault(message=f"{dotted}: key {key!r} is missing", span=document.key_span(path), expected=f"{key!r}")
        case _:
            message = str(item["msg"]).removeprefix("Value error, ")
            given = item.get("input")
            shown = f", not {_short(given)}" if not isinstance(given, (dict, list)) else ""
            return Fault(message=f"{dotted}: {message[:1].lower()}{message[1:]}{shown}", span=document.span(path))


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _real_path(data: Any, loc: Sequence[str | int]) -> PathKey:
    """The part of pydantic's `loc` that exists in the data: union tags and missing keys fall away."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def _fields_at(model: type[BaseModel], path: PathKey) -> set[str]:
    """Names of the fields that are allowed at `path`; empty where the schema cannot tell."""
    models = {model}
    for part in path:
        if isinstance(part, str):
            fields = {f.alias or n: f for m in models for n, f in m.model_fields.items()}
            models = _models_in(fields[part].annotation) if part in fields else set()
    return {f.alias or n for m in models for n, f in m.model_fields.items()}


def _models_in(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    found: set[type[BaseModel]] = set()
    for arg in getattr(annotation, "__args__", ()) or ():
        found |= _models_in(arg)
    return found
