"""Export of a model for other tools: free MPS, CPLEX LP, and JSON without loss.

MPS and LP hold one objective. The other tiers, the rules behind the rows, and names that had to change are comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from pearl.errors import Fault, UsageError
from pearl.files import write_whole
from pearl.solving.ir import Model, Objective, Row, Terms
from pearl.solving.model_json import json_text
from pearl.solving.naming import Names, exported_names

LINE_WIDTH = 100
"""LP readers may refuse lines beyond 560 characters."""

FORMATS = (".mps", ".lp", ".json")


def write_model(model: Model, path: Path, *, tier: int = 0) -> None:
    """Write `model` in the format that the suffix of `path` names: .mps, .lp or .json.

    `tier` is the index of the objective that MPS and LP hold; earlier tiers are not held at their optimum in the file.
    The JSON form holds every tier and is documented in docs/solvers.md. The file is whole or not there; one that was
    there stays until then. Raises UsageError for another suffix, or a tier that the model does not have, and InputError
    for a file that cannot be written.
    """
    write_whole(path, rendered(model, path.suffix.lower(), tier=tier))


def check_format(path: Path) -> None:
    """Raise UsageError where the suffix of `path` names no format."""
    if path.suffix.lower() not in FORMATS:
        _refuse(path.suffix.lower())


def _refuse(suffix: str) -> NoReturn:
    raise UsageError(Fault(message=f"no model format {suffix!r}", expected=f"a file name in {', '.join(FORMATS)}"))


def rendered(model: Model, suffix: str, *, tier: int = 0) -> str:
    """The text that `write_model` writes."""
    if suffix not in FORMATS:
        _refuse(suffix)
    if suffix == ".json":
        return json_text(model)
    if not 0 <= tier < max(1, len(model.objectives)):
        raise UsageError(Fault(message=f"no tier {tier}", expected=f"0 to {len(model.objectives) - 1}"))
    if not model.variables:
        raise UsageError(Fault(message=f"a model without variables has no {suffix} form", hint="export .json"))
    objective = model.objectives[tier] if model.objectives else Objective(name="none", terms=())
    names = exported_names(model)
    name = names.objectives[tier] if model.objectives else "none"
    lines = _mps(model, objective, name, names) if suffix == ".mps" else _lp(model, objective, name, names)
    mark = "*" if suffix == ".mps" else "\\"
    comments = (f"{mark} {line}" for line in _comments(model, tier, names))
    return "\n".join((*comments, *lines)) + "\n"


def _comments(model: Model, tier: int, names: Names) -> Iterator[str]:
    yield f"PEARL model: {len(model.variables)} variables, {len(model.rows)} rows, {len(model.objectives)} tiers"
    for index, objective in enumerate(model.objectives):
        here = " (the objective below)" if index == tier else ""
        yield f"tier {index} {_one_line(objective.name)}{here}, tolerance {objective.tolerance_ppb} ppb:"
        if index != tier:
            yield from (f"  {line}" for line in _wrapped(_terms(objective.terms, names, objective.constant)))
    for row, name in zip(model.rows, names.rows, strict=True):
        if row.rule:
            place = f" at {_one_line(str(row.span))}" if row.span else ""
            yield f"row {name}: rule {_one_line(row.rule)}{place}"
        if row.low is None and row.high is None:
            yield f"row {name} has no bound and is left out"
    for kind, originals, exported in (
        ("variable", (v.name for v in model.variables), names.variables),
        ("row", (r.name for r in model.rows), names.rows),
    ):
        for original, name in zip(originals, exported, strict=True):
            if original != name:
                yield f"{kind} {name} is {_one_line(original)}"


def _mps(model: Model, objective: Objective, objective_name: str, names: Names) -> Iterator[str]:
    """Free MPS: ranges in RANGES, integers between markers, both bounds of every variable written out."""
    bounded = [(row, name) for row, name in zip(model.rows, names.rows, strict=True) if _kind(row) != "N"]
    yield "NAME pearl"
    yield "ROWS"
    yield f" N {objective_name}"
    yield from (f" {_kind(row)} {name}" for row, name in bounded)
    yield "COLUMNS"
    yield " MARKER 'MARKER' 'INTORG'"
    columns: list[list[str]] = [[] for _ in model.variables]
    for terms, row_name in [(objective.terms, objective_name), *((row.terms, name) for row, name in bounded)]:
        for index, coefficient in terms:
            columns[index].append(f" {names.variables[index]} {row_name} {coefficient}")
    for index, entries in enumerate(columns):
        yield from entries or [f" {names.variables[index]} {objective_name} 0"]
    yield " MARKER 'MARKER' 'INTEND'"
    yield "RHS"
    if objective.constant:
        yield f" RHS {objective_name} {-objective.constant}"  # By convention the constant is minus this entry.
    for row, name in bounded:
        if side := row.high if row.low is None else row.low:
            yield f" RHS {name} {side}"
    ranges = [(row.high - row.low, name) for row, name in bounded if row.low is not None and row.high is not None]
    if any(width for width, _ in ranges):
        yield "RANGES"
        yield from (f" RNG {name} {width}" for width, name in ranges if width)
    yield "BOUNDS"
    for variable, name in zip(model.variables, names.variables, strict=True):
        yield f" LO BND {name} {variable.low}"
        yield f" UP BND {name} {variable.high}"
    yield "ENDATA"


def _kind(row: Row) -> str:
    """MPS row type; a range is a G row, its width above `low` in RANGES."""
    if row.low is None:
        return "N" if row.high is None else "L"
    return "E" if row.low == row.high else "G"


def _lp(model: Model, objective: Objective, objective_name: str, names: Names) -> Iterator[str]:
    """CPLEX LP; a range is two rows, which every reader understands."""
    yield "Minimize"
    yield from _wrapped([f"{objective_name}:", *_terms(objective.terms, names, objective.constant)])
    yield "Subject To"
    for row, name in zip(model.rows, names.rows, strict=True):
        terms = _terms(row.terms, names)
        for suffix, relation, side in _sides(row):
            yield from _wrapped([f"{name}{suffix}:", *terms, f"{relation} {side}"])
    yield "Bounds"
    for variable, name in zip(model.variables, names.variables, strict=True):
        yield f" {variable.low} <= {name} <= {variable.high}"
    yield "General"
    yield from _wrapped(names.variables)
    yield "End"


def _sides(row: Row) -> Iterator[tuple[str, str, int]]:
    if row.low is not None and row.low == row.high:
        yield "", "=", row.low
        return
    both = row.low is not None and row.high is not None
    if row.low is not None:
        yield "__low" if both else "", ">=", row.low
    if row.high is not None:
        yield "__high" if both else "", "<=", row.high


def _terms(terms: Terms, names: Names, constant: int = 0) -> list[str]:
    """Signed terms; an empty sum is a zero of the first variable, since LP has no other."""
    parts = [f"{'-' if c < 0 else '+'} {abs(c)} {names.variables[index]}" for index, c in terms]
    parts = parts or [f"+ 0 {names.variables[0]}"]
    return [*parts, f"{'-' if constant < 0 else '+'} {abs(constant)}"] if constant else parts


def _wrapped(words: Iterable[str]) -> Iterator[str]:
    """Words joined into lines of at most LINE_WIDTH where words allow."""
    line = ""
    for word in words:
        if line and len(line) + 1 + len(word) > LINE_WIDTH:
            yield line
            line = ""
        line = f"{line} {word}"
    if line:
        yield line


def _one_line(text: str) -> str:
    """Text for a comment, which a line break would end."""
    return " ".join(text.split())
