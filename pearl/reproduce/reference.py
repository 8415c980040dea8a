"""The tables of the page on calibration, written from the schema, so that they cannot fall behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pearl.reproduce.calibration import CalibrationDocument, CalibrationSpec, ParameterSpec, TargetSpec
from pearl.reproduce.measures import Measure, Measured
from pearl.scenario.fields import Spec
from pearl.scenario.json_schema import tidy_schema
from pearl.scenario.schema import MetadataSpec
from pearl.scenario.units import Dimension

_UNITS = {Dimension.TIME: "seconds", Dimension.SHARE: "share"}


def reference() -> str:
    """Every key of a calibration file and every kind of measure, as Markdown."""
    tables = (
        ("The file", CalibrationDocument),
        ("`metadata`", MetadataSpec),
        ("`spec`", CalibrationSpec),
        ("`spec.parameters.NAME`", ParameterSpec),
        ("`spec.targets[]`", TargetSpec),
    )
    parts = [line for title, model in tables for line in _keys(title, model)]
    return "\n".join([*parts, *_measures()])


def measures() -> tuple[type[Measured], ...]:
    """Every measure, in the order of the schema."""
    union, *_ = get_args(Measure)
    return get_args(union)


def _keys(title: str, model: type[Spec]) -> Iterator[str]:
    schema = tidy_schema(model, title="")
    yield f"### {title}\n"
    yield "| key | type | meaning |\n|---|---|---|"
    for key, field in schema["properties"].items():
        need = ", required" if key in schema["required"] else _default(field)
        meaning = field.get("description") or _target(field, schema)["description"]
        yield f"| `{key}` | {_type(field, schema)}{need} | {_one_line(meaning)} |"
    yield ""


def _measures() -> Iterator[str]:
    yield "### `spec.targets[].measure`\n"
    yield "| kind | what it is | arguments | unit |\n|---|---|---|---|"
    arguments: dict[str, str] = {}
    for model in measures():
        fields = tidy_schema(model, title="")["properties"]
        own = [key for key in fields if key != "kind"]
        arguments |= {key: fields[key]["description"] for key in own}
        kinds = " or ".join(f"`{kind}`" for kind in get_args(model.model_fields["kind"].annotation))
        listed = ", ".join(f"`{key}`" for key in own)
        yield f"| {kinds} | {_one_line(model.__doc__ or '')} | {listed} | {_UNITS[model.dimension]} |"
    yield "\n| argument | meaning |\n|---|---|"
    for key, meaning in arguments.items():
        yield f"| `{key}` | {_one_line(meaning)} |"
    yield ""


def _type(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    field = _target(field, schema)
    if "anyOf" in field:
        return " or ".join(_type(option, schema) for option in field["anyOf"])
    if "discriminator" in field:
        return "section with `kind`"
    if field.get("title") == "number or quantity":
        return "number or quantity"
    if "enum" in field or "const" in field:
        return " / ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field['items'], schema)}s"
    kind = str(field["type"])
    return {"object": "section", "integer": "whole number", "boolean": "true or false"}.get(kind, kind)


def _target(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition that a field refers to, or the field."""
    target: Mapping[str, Any] = schema["$defs"][field["$ref"].rsplit("/", 1)[1]] if "$ref" in field else field
    return target


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    return "" if default in (None, "") else f", default `{str(default).lower()}`"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
