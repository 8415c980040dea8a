"""Linear forms over the quantities that a decision chooses, with coefficients from any field-like number type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from pearl.core.cluster import Role, Zone


class Coefficient(Protocol):
    """What a coefficient can do: a fraction at binding, a polynomial of names for display."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...
    def __mul__(self, other: Self, /) -> Self: ...
    def __truediv__(self, other: Self, /) -> Self: ...
    def __neg__(self) -> Self: ...
    def __bool__(self) -> bool: ...


C = TypeVar("C", bound=Coefficient)


class Tally(StrEnum):
    """What a count counts."""

    COUNT = "count"
    EXPOSURE = "exposure"
    ROLE_CHANGES = "role_changes"
    ADDS = "adds"
    REMOVES = "removes"
    BORROWED = "borrowed"


class CountAtom(NamedTuple):
    """A number of workers; None means any."""

    tally: Tally
    role: Role | None = None
    zone: Zone | None = None
    node: str | None = None


class TableAtom(NamedTuple):
    """A table at the current counts, or one over it."""

    table: str
    inverse: bool = False


class MakespanAtom(NamedTuple):
    """The makespan, in seconds."""

    name: str = "T"


MAKESPAN = MakespanAtom()
Atom = CountAtom | TableAtom | MakespanAtom


class NotLinearError(ValueError):
    """A product or quotient that leaves the language; the checker refuses these first, with a hint."""


@dataclass(frozen=True, slots=True)
class Form(Generic[C]):
    """constant + Σ coefficient·atom."""

    constant: C
    terms: Mapping[Atom, C] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.constant) or bool(self.terms)

    def __add__(self, other: Form[C]) -> Form[C]:
        terms = dict(self.terms)
        for atom, value in other.terms.items():
            terms[atom] = terms[atom] + value if atom in terms else value
        return Form(self.constant + other.constant, terms)

    def __neg__(self) -> Form[C]:
        return Form(-self.constant, {atom: -value for atom, value in self.terms.items()})

    def __sub__(self, other: Form[C]) -> Form[C]:
        return self + -other

    def __mul__(self, other: Form[C]) -> Form[C]:
        if other.terms and self.terms:
            raise NotLinearError("a product of two quantities that the decision chooses")
        form, factor = (other, self.constant) if other.terms else (self, other.constant)
        return Form(form.constant * factor, {atom: value * factor for atom, value in form.terms.items()})

    def __truediv__(self, other: Form[C]) -> Form[C]:
        if not other.terms:
            by = other.constant
            return Form(self.constant / by, {atom: value / by for atom, value in self.terms.items()})
        (atom, value), *more = other.terms.items()
        if self.terms or more or other.constant or not isinstance(atom, TableAtom) or atom.inverse:
            raise NotLinearError("a quotient by a quantity that the decision chooses")
        zero = self.constant - self.constant
        return Form(zero, {TableAtom(atom.table, inverse=True): self.constant / value})
