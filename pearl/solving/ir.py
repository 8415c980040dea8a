"""The neutral IR: an integer linear model in canonical form, which every back end reads the same way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pearl.core.source import Span

Terms = tuple[tuple[int, int], ...]
"""(variable index, coefficient), canonical: sorted by index, each index once, no zero coefficient."""


def canonical(terms: Iterable[tuple[int, int]]) -> Terms:
    """Terms in canonical form; coefficients of the same variable add up."""
    total: dict[int, int] = {}
    for index, coefficient in terms:
        total[index] = total.get(index, 0) + coefficient
    return tuple(sorted((index, coefficient) for index, coefficient in total.items() if coefficient))


def _refuse_unless_canonical(name: str, terms: Terms) -> None:
    """Back ends read duplicates differently (CP-SAT sums, MathOpt overwrites, HiGHS rejects), so none may exist."""
    last = -1
    for index, coefficient in terms:
        if index <= last or not coefficient:
            raise ValueError(f"terms of {name!r} are not canonical; build them with pearl.solving.ir.canonical")
        last = index


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An integer variable with finite bounds."""

    name: str
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """low <= Σ coefficient·variable <= high, either side possibly absent.

    Canonical: terms sorted by variable index, each variable once, no zero coefficient. `rule` names the policy rule
    that the row comes from, empty for rows of the formulation itself.
    """

    name: str
    terms: Terms
    low: int | None = None
    high: int | None = None
    rule: str = ""
    span: Span | None = None

    def __post_init__(self) -> None:
        _refuse_unless_canonical(self.name, self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Minimise constant + Σ coefficient·variable, then hold within `tolerance_ppb` of the optimum, rounded down."""

    name: str
    terms: Terms
    constant: int = 0
    tolerance_ppb: int = 0
    """Parts per 10⁹ of the optimum's absolute value."""

    def __post_init__(self) -> None:
        _refuse_unless_canonical(self.name, self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Variables, rows, and objectives in lexicographic order."""

    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    objectives: tuple[Objective, ...]


Point = tuple[int, ...]
"""A value for each variable, by index."""

Values = Mapping[str, int]
