"""Names that every MPS and LP reader accepts, one to one with those of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pearl.errors import SolverContractError
from pearl.solving.backend import integer_point
from pearl.solving.ir import Model, Point

LONGEST = 200
"""CPLEX LP allows 255 characters; the rest is for suffixes."""

RESERVED = frozenset(
    {"bin", "binaries", "binary", "bound", "bounds", "columns", "end", "endata", "free", "gen", "general", "generals"}
    | {"inf", "infinity", "int", "integer", "integers", "marker", "max", "maximize", "maximum", "min", "minimize"}
    | {"minimum", "name", "nan", "obj", "objsense", "ranges", "rhs", "rows", "semi", "sin", "sos", "st", "subject"}
)
"""Words that some reader takes for a keyword, whatever their case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Exported names, by index; no two of a kind are the same."""

    variables: tuple[str, ...]
    rows: tuple[str, ...]
    objectives: tuple[str, ...]


def exported_names(model: Model) -> Names:
    """Names under which `write_model` exports the variables, rows and objectives of `model`."""
    rows = _unique([*(objective.name for objective in model.objectives), *(row.name for row in model.rows)], "r")
    return Names(
        variables=_unique((variable.name for variable in model.variables), "v"),
        objectives=rows[: len(model.objectives)],
        rows=rows[len(model.objectives) :],
    )


def point_of(model: Model, values: Mapping[str, float]) -> Point:
    """The point that another tool found, from its values by exported name; a variable left out is 0.

    Raises SolverContractError where a name is unknown, a value is not integral, or the point does not hold.
    """
    names = exported_names(model).variables
    if unknown := sorted(set(values) - set(names)):
        raise SolverContractError(f"the solution names a variable {unknown[0]!r} that the model does not have")
    return integer_point("imported solution", model, [values.get(name, 0.0) for name in names])


def _unique(names: Iterable[str], prefix: str) -> tuple[str, ...]:
    taken: set[str] = set()
    result = []
    for name in names:
        plain = _sanitised(name, prefix)
        number, candidate = 2, plain
        while candidate.lower() in taken:
            candidate, number = f"{plain}_{number}", number + 1
        taken.add(candidate.lower())
        result.append(candidate)
    return tuple(result)


def _sanitised(name: str, prefix: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:LONGEST]
    # A first letter e is read as the exponent of a number that stands before it.
    if not plain or not plain[0].isalpha() or plain[0] in "eE" or plain.lower() in RESERVED:
        return f"{prefix}_{plain}" if plain else prefix
    return plain
