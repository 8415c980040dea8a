"""Published JSON Schemas: pydantic's, told in the terms of the document rather than of Python."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pearl.scenario.units import BASE_UNITS, Dimension

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def tidy_schema(model: type[BaseModel], *, title: str) -> dict[str, Any]:
    """The model's schema; null, which the reader refuses, is left out, and default quantities carry their unit."""
    schema: dict[str, Any] = _tidy(model.model_json_schema())
    return {"$schema": DRAFT} | schema | {"title": title}


def _tidy(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidy(part) for part in node if part != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    result = {key: _tidy(value) for key, value in node.items() if not (key == "default" and value is None)}
    options = result.get("anyOf")
    if isinstance(options, list) and len(options) == 1:
        only = result.pop("anyOf")[0]
        result = result | only | {key: result[key] for key in ("description",) if key in result}
    if "default" in result and (unit := _unit(result)):
        result["default"] = f"{result['default']:g}{unit}"
    return result


def _unit(node: dict[str, Any]) -> str:
    title = node.get("title")
    return BASE_UNITS[Dimension(title)] if title in {dimension.value for dimension in Dimension} else ""
