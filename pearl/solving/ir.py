"""The neutral IR: an integer linear model in canonical form, which every back end reads the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pearl.core.source import Span


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
    terms: tuple[tuple[int, int], ...]
    """(variable index, coefficient)."""
    low: int | None = None
    high: int | None = None
    rule: str = ""
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Minimise constant + Σ coefficient·variable, then hold within `tolerance_ppb` of the optimum, rounded down."""

    name: str
    terms: tuple[tuple[int, int], ...]
    constant: int = 0
    tolerance_ppb: int = 0
    """Parts per 10⁹ of the optimum's absolute value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Variables, rows, and objectives in lexicographic order."""

    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    objectives: tuple[Objective, ...]


Point = tuple[int, ...]
"""A value for each variable, by index."""

Values = Mapping[str, int]
