"""The JSON form of a model: everything that the neutral IR holds, integers exact."""

from __future__ import annotations

import json
from typing import Any

from pearl.core.source import Span
from pearl.errors import Fault, InputError
from pearl.solving.ir import Model, Objective, Row, Variable

API_VERSION = "pearl.dev/v1alpha1"
KIND = "Model"


def json_text(model: Model) -> str:
    """The JSON text of `model`: one variable, row or objective a line, so that two models can be compared by line."""
    sections = []
    for key, value in model_document(model).items():
        items = ",\n".join(f"  {json.dumps(item)}" for item in value) if isinstance(value, list) else ""
        sections.append(f' "{key}": ' + (f"[\n{items}\n ]" if items else json.dumps(value)))
    return "{\n" + ",\n".join(sections) + "\n}\n"


def model_document(model: Model) -> dict[str, Any]:
    """`model` as JSON values; `model_from_json` reads its text back."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "variables": [{"name": v.name, "low": v.low, "high": v.high} for v in model.variables],
        "rows": [_row_document(row) for row in model.rows],
        "objectives": [
            {"name": o.name, "terms": _pairs(o.terms), "constant": o.constant, "tolerancePpb": o.tolerance_ppb}
            for o in model.objectives
        ],
    }


def model_from_json(text: str, *, file: str = "model.json") -> Model:
    """The model that `text` describes; InputError where it does not describe one. `file` is named in the message."""
    try:
        document = json.loads(text)
        if (document["apiVersion"], document["kind"]) != (API_VERSION, KIND):
            raise ValueError(f"apiVersion {API_VERSION} and kind {KIND} expected")
        return _checked(
            Model(
                variables=tuple(Variable(**variable) for variable in document["variables"]),
                rows=tuple(_row(row) for row in document["rows"]),
                objectives=tuple(_objective(objective) for objective in document["objectives"]),
            )
        )
    except json.JSONDecodeError as error:
        span = Span(file=file, line=error.lineno, column=error.colno)
        raise InputError(Fault(message=f"not JSON: {error.msg}", span=span)) from error
    except (KeyError, TypeError, ValueError) as error:
        fault = Fault(message=f"not a model: {error}", span=Span(file=file, line=1), hint="docs/solvers.md")
        raise InputError(fault) from error


def _checked(model: Model) -> Model:
    """`model`, once its numbers are integers and its terms name variables that it has."""
    parts: tuple[Row | Objective, ...] = (*model.rows, *model.objectives)
    for part in parts:
        if part.terms and part.terms[-1][0] >= len(model.variables):
            raise ValueError(f"{part.name!r} names variable {part.terms[-1][0]} of {len(model.variables)}")
    numbers = [(v.name, number) for v in model.variables for number in (v.low, v.high)]
    numbers += [(r.name, number) for r in model.rows for number in (r.low, r.high) if number is not None]
    numbers += [(o.name, number) for o in model.objectives for number in (o.constant, o.tolerance_ppb)]
    numbers += [(p.name, number) for p in parts for term in p.terms for number in term]
    for name, number in numbers:
        if type(number) is not int:
            raise ValueError(f"{name!r} holds {number!r} where an integer must be")
    return model


def _row_document(row: Row) -> dict[str, Any]:
    span = row.span and {"file": row.span.file, "line": row.span.line, "column": row.span.column}
    terms = _pairs(row.terms)
    return {"name": row.name, "terms": terms, "low": row.low, "high": row.high, "rule": row.rule, "span": span}


def _pairs(terms: tuple[tuple[int, int], ...]) -> list[list[int]]:
    return [list(term) for term in terms]


def _terms(pairs: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((index, coefficient) for index, coefficient in pairs)


def _row(fields: dict[str, Any]) -> Row:
    span = Span(**fields["span"]) if fields["span"] else None
    return Row(**{**fields, "terms": _terms(fields["terms"]), "span": span})


def _objective(fields: dict[str, Any]) -> Objective:
    return Objective(
        name=fields["name"],
        terms=_terms(fields["terms"]),
        constant=fields["constant"],
        tolerance_ppb=fields["tolerancePpb"],
    )
