"""Polynomials over names: what coefficients look like before a scenario gives the names their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

Monomial = tuple[tuple[str, int], ...]
"""(name, exponent), in order of first use; the empty monomial is 1."""

MAX_TERMS = 64
"""A product longer than this is no longer readable, and its factors stay factors."""


def number_text(value: Fraction) -> str:
    """A fraction as a short decimal where it has one, else as a/b."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return f"{float(value):.12g}" if rest == 1 else f"{value.numerator}/{value.denominator}"


MAX_TEXT = 200
"""Characters of an opaque symbol."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Σ number·monomial; negative exponents divide."""

    terms: Mapping[Monomial, Fraction] = field(default_factory=dict)

    @classmethod
    def number(cls, value: Fraction) -> Polynomial:
        """A constant."""
        return cls({(): value} if value else {})

    @classmethod
    def symbol(cls, name: str) -> Polynomial:
        """A name."""
        return cls({((name, 1),): Fraction(1)})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, value in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + value
        result = Polynomial({monomial: value for monomial, value in terms.items() if value})
        return result if len(terms) <= 2 * MAX_TERMS else result.opaque()

    def __neg__(self) -> Polynomial:
        return Polynomial({monomial: -value for monomial, value in self.terms.items()})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        if len(self.terms) * len(other.terms) > MAX_TERMS:
            return self.opaque() * other.opaque()
        result = Polynomial()
        for left, a in self.terms.items():
            result += Polynomial({_product(left, right): a * b for right, b in other.terms.items()})
        return result

    def __truediv__(self, other: Polynomial) -> Polynomial:
        if not other.terms:
            raise ZeroDivisionError
        if len(other.terms) > 1:
            return self / other.opaque()
        ((monomial, value),) = other.terms.items()
        inverse = tuple((name, -exponent) for name, exponent in monomial)
        return Polynomial({_product(left, inverse): a / value for left, a in self.terms.items()})

    def __bool__(self) -> bool:
        return bool(self.terms)

    def opaque(self) -> Polynomial:
        """The same number as one symbol in parentheses, abbreviated where it is long."""
        text = str(self)
        return Polynomial.symbol(f"({text})" if len(text) <= MAX_TEXT else "(…)")

    @property
    def constant(self) -> Fraction | None:
        """The number that this is, or None."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def negative(self) -> bool:
        """Whether it is negative whatever positive values its names take; what is opaque may have any sign."""
        plain = all("(" not in name for monomial in self.terms for name, _ in monomial)
        return plain and bool(self.terms) and all(value < 0 for value in self.terms.values())

    def __str__(self) -> str:
        return join_terms([(value, _monomial_text(monomial)) for monomial, value in self.terms.items()])


def _product(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for name, exponent in right:
        powers[name] = powers.get(name, 0) + exponent
    return tuple(sorted((name, exponent) for name, exponent in powers.items() if exponent))


def _monomial_text(monomial: Monomial) -> str:
    above = [_power(name, exponent) for name, exponent in monomial if exponent > 0]
    below = [_power(name, -exponent) for name, exponent in monomial if exponent < 0]
    if not below:
        return "·".join(above)
    return f"{'·'.join(above) or '1'}/{'/'.join(below)}"


def _power(name: str, exponent: int) -> str:
    return name if exponent == 1 else f"{name}^{exponent}"


def join_terms(terms: list[tuple[Fraction, str]]) -> str:
    """`a·x − b·y`: numbers of magnitude 1 are left out."""
    text = ""
    for value, name in terms:
        size = number_text(abs(value))
        if name.startswith("1/"):
            body = f"{size}{name[1:]}"
        else:
            body = name if name and abs(value) == 1 else f"{size}·{name}" if name else size
        sign = "−" if value < 0 else "+"
        text += (f" {sign} " if text else "−" if value < 0 else "") + body
    return text or "0"
