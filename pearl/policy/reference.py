"""The reference of the policy language, written from the schema and the vocabulary, so that it cannot fall behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pearl.policy.schema import PolicyFile
from pearl.policy.units import UNITS
from pearl.policy.vocabulary import CONSTANT_FUNCTIONS, FUNCTIONS, SOURCES, VOCABULARY, Kind, Term

SCHEMA_ID = "https://pearl.dev/schemas/v1alpha1/scheduling-policy.json"

_INTRODUCTION = """\
# Policy reference

Written by `pearl policy reference` from the schema and the vocabulary; a test keeps it current.

A policy is a YAML file. `pearl policy check FILE` reports every fault with file, line and column; `pearl policy math
FILE` prints the rows that it compiles to. An unknown or duplicate name is an error, and so are a param and a forecast
that nothing reads.

## Expressions

Numbers carry units (`8s`, `25%`, `2 GiB`, `14500 usd * 1 s`), and both sides of a sum or comparison must agree in
them. An expression is **constant** (numbers, params, scalars, forecasts), **affine** in the counts and `T`, or
**tabulated** in one count; anything else is refused with a hint.

| operators | rule |
|---|---|
| `+ - * /` | one factor of a product is constant; a divisor is constant, or a table under a constant |
| `<= >= ==` | rows of `require`, joined by `and`; `<` and `>` between constants only |
| `and or not`, `a if c else b` | between constants |
| `max(...)`, `min(...)` | of constants anywhere; of counts as `max(...) <= c`, `c >= max(...)`, `min(...) >= c`, \
`minimize: max(...)`, `maximize: min(...)` |

A rule that divides by a table holds for one worker or more of each role that the table covers, and only in the modes
that the table covers. A row is computed in exact integers where they stay below 2^40, and is otherwise rounded to 2^-30
of its largest number, never to a looser row.

## Inheritance

`extends` names policies to start from. Params, forecasts, metrics and rules are merged by name, field by field: a child
may change, soften or (`disabled: true`) remove an inherited rule by repeating its name; the sections `decision`,
`objective` and `solver` are merged by field. The sha256 of the whole is recorded in every decision.
"""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a policy file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **PolicyFile.model_json_schema(),
    }


def reference() -> str:
    """The reference as Markdown."""
    parts = [_INTRODUCTION, "## Fields\n", *_sections(json_schema()), "## Names\n", *_names(), *_units()]
    return "\n".join(parts).rstrip() + "\n"


def _sections(schema: Mapping[str, Any]) -> Iterator[str]:
    sections = {"SchedulingPolicy (the file)": schema, **_by_reading(schema["$defs"])}
    for title, section in sections.items():
        if "properties" not in section:
            continue
        yield f"### {title.removesuffix('Section')}\n"
        yield f"{_one_line(section.get('description', ''))}\n"
        yield "| field | type | meaning |\n|---|---|---|"
        required = section.get("required", ())
        for name, field in section["properties"].items():
            need = ", required" if name in required else _default(field)
            yield f"| `{name}` | {_type(field, schema)}{need} | {_one_line(field.get('description', ''))} |"
        yield ""


def _by_reading(definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    order = ("Metadata", "Spec", "Param", "Forecast", "Decision", "Hysteresis", "Cooldown", "Borrow", "Constraint")
    places = {name: i for i, name in enumerate((*order, "Soft", "Objective", "Tier", "Solver"))}
    return dict(sorted(definitions.items(), key=lambda item: places.get(item[0].removesuffix("Section"), 99)))


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    return f", default `{default}`" if isinstance(default, (str, int, float)) and default != "" else ""


def _type(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in field:
        target = schema["$defs"][field["$ref"].rsplit("/", 1)[1]]
        return " / ".join(f"`{value}`" for value in target["enum"]) if "enum" in target else "section"
    if "anyOf" in field:
        kinds = [_type(option, schema) for option in field["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field or "const" in field:
        return " / ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field.get("type")
    if kind == ["string", "number"]:
        return "expression"
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return "list"
    return {"object": "mapping"}.get(str(kind), str(kind))


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _names() -> Iterator[str]:
    titles = {
        Kind.SCALAR: "Scalars: one number for the whole decision",
        Kind.COUNT: "Counts: chosen by the decision",
        Kind.FUNCTION: "Counts with arguments",
        Kind.MAKESPAN: "Makespan",
        Kind.TABLE: "Tables: a number that depends on one count",
        Kind.MAP: "Maps: a number by key",
    }
    for kind, title in titles.items():
        yield f"### {title}\n"
        yield from _table(term for term in VOCABULARY.values() if term.kind is kind)
    yield "### Forecast sources\n"
    yield from _table(iter(SOURCES.values()))
    yield "### Functions\n"
    yield "| function | gives |\n|---|---|"
    yield from (f"| `{name}(…)` | {FUNCTIONS[name]} |" for name in CONSTANT_FUNCTIONS)
    yield ""


def _table(terms: Iterator[Term]) -> Iterator[str]:
    yield "| name | unit | meaning |\n|---|---|---|"
    for term in terms:
        keys = f"; {'arguments' if term.kind is Kind.FUNCTION else 'keys'}: {', '.join(term.keys)}" if term.keys else ""
        yield f"| `{term.name}` | {term.unit.symbol or 'number'} | {term.meaning}{keys} |"
    yield ""


def _units() -> Iterator[str]:
    yield "## Units\n"
    by_unit: dict[str, list[str]] = {}
    for name, named in UNITS.items():
        by_unit.setdefault(str(named.unit), []).append(f"`{name}`")
    yield "| measures | units |\n|---|---|"
    yield from (f"| {unit} | {', '.join(names)} |" for unit, names in by_unit.items())
    yield "| share | `%` |\n"
