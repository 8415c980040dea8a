"""Building a model: variables and canonical rows, with the bounds that make coefficients tight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd

from pearl.core.source import Span
from pearl.solving.ir import Model, Objective, Row, Terms, Variable, canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """constant + Σ coefficient·variable."""

    terms: tuple[tuple[int, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Affine) -> Affine:
        return Affine(terms=self.terms + other.terms, constant=self.constant + other.constant)

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine) -> Affine:
        return self + -other

    def __mul__(self, factor: int) -> Affine:
        return Affine(terms=tuple((k, factor * c) for k, c in self.terms), constant=factor * self.constant)


def constant(value: int) -> Affine:
    """The affine expression that is always `value`."""
    return Affine(constant=value)


def total(parts: Iterable[tuple[Affine, int]]) -> Affine:
    """Σ factor·part."""
    terms: list[tuple[int, int]] = []
    offset = 0
    for part, factor in parts:
        terms.extend((k, factor * c) for k, c in part.terms)
        offset += factor * part.constant
    return Affine(terms=tuple(terms), constant=offset)


@dataclass(kw_only=True)
class ModelBuilder:
    """Collects variables and rows; rows that the bounds imply are left out."""

    variables: list[Variable] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objectives: list[Objective] = field(default_factory=list)

    def integer(self, name: str, low: int, high: int) -> Affine:
        """A new integer variable."""
        self.variables.append(Variable(name=name, low=low, high=high))
        return Affine(terms=((len(self.variables) - 1, 1),))

    def binary(self, name: str) -> Affine:
        """A new 0-1 variable."""
        return self.integer(name, 0, 1)

    def at_most(self, name: str, expr: Affine, *, rule: str = "", span: Span | None = None) -> None:
        """Require expr <= 0, with coefficients divided by their common divisor (which tightens the constant)."""
        terms = canonical(expr.terms)
        high = -expr.constant
        if not terms and high < 0:
            # A row without variables that does not hold: kept, so that the solver says infeasible.
            self.rows.append(Row(name=name, terms=(), high=high, rule=rule, span=span))
            return
        if sum(c * (self.variables[k].high if c > 0 else self.variables[k].low) for k, c in terms) <= high:
            return
        terms, divisor = _reduced(terms)
        self.rows.append(Row(name=name, terms=terms, high=high // divisor, rule=rule, span=span))

    def equal(self, name: str, expr: Affine) -> None:
        """Require expr = 0."""
        self.rows.append(Row(name=name, terms=canonical(expr.terms), low=-expr.constant, high=-expr.constant))

    def when(self, name: str, on: Affine, expr: Affine, *, most: int, rule: str = "", span: Span | None = None) -> None:
        """Require expr <= 0 while the 0-1 expression `on` is 1; `most` bounds expr while it is 0."""
        slack = max(0, most)
        self.at_most(name, expr + (on - constant(1)) * slack, rule=rule, span=span)

    def minimize(self, name: str, expr: Affine, *, tolerance_ppb: int = 0) -> None:
        """Append an objective."""
        objective = Objective(
            name=name, terms=canonical(expr.terms), constant=expr.constant, tolerance_ppb=tolerance_ppb
        )
        self.objectives.append(objective)

    def build(self) -> Model:
        """The model as it stands."""
        return Model(variables=tuple(self.variables), rows=tuple(self.rows), objectives=tuple(self.objectives))


def _reduced(terms: Terms) -> tuple[Terms, int]:
    divisor = gcd(*(c for _, c in terms))
    return (terms, 1) if divisor == 1 else (tuple((k, c // divisor) for k, c in terms), divisor)
