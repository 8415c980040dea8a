"""Units of the policy language: dimensions with integer exponents, and the factor of each named unit to its base unit.

Base units are the second, token, usd, watt and byte; a count or a share has no dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

_ORDER = ("usd", "token", "W", "byte", "s")
"""Order in which dimensions are written: `usd*s`, `token/s`."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A product of powers of base dimensions; `Unit()` is a plain number."""

    powers: tuple[tuple[str, int], ...] = ()
    """(dimension, exponent), sorted, no zero exponent."""

    def __mul__(self, other: Unit) -> Unit:
        return self._combine(other, 1)

    def __truediv__(self, other: Unit) -> Unit:
        return self._combine(other, -1)

    def _combine(self, other: Unit, sign: int) -> Unit:
        if not other.powers:
            return self
        powers = dict(self.powers)
        for dimension, exponent in other.powers:
            powers[dimension] = powers.get(dimension, 0) + sign * exponent
        return Unit(tuple(sorted((d, e) for d, e in powers.items() if e)))

    @property
    def plain(self) -> bool:
        """Whether this is the unit of a count or a share."""
        return not self.powers

    def __str__(self) -> str:
        ordered = sorted(self.powers, key=lambda item: _ORDER.index(item[0]))
        above = "*".join(_power(d, e) for d, e in ordered if e > 0)
        below = "".join(f"/{_power(d, -e)}" for d, e in ordered if e < 0)
        return (above or "1") + below if self.powers else "a plain number"

    @property
    def symbol(self) -> str:
        """The unit as it is written after a value; empty for a plain number."""
        return _symbol(self)


@cache
def _symbol(unit: Unit) -> str:
    return "" if unit.plain else str(unit).replace("token", "tokens", 1)


def _power(dimension: str, exponent: int) -> str:
    return dimension if exponent == 1 else f"{dimension}^{exponent}"


PLAIN = Unit()
SECOND = Unit((("s", 1),))
TOKEN = Unit((("token", 1),))
USD = Unit((("usd", 1),))
WATT = Unit((("W", 1),))
BYTE = Unit((("byte", 1),))
TOKENS_PER_SECOND = TOKEN / SECOND
JOULE = WATT * SECOND


@dataclass(frozen=True, slots=True)
class NamedUnit:
    """A unit as written in a policy: its factor to the base unit, and its dimensions."""

    factor: Fraction
    unit: Unit


def _named(unit: Unit, **factors: int | Fraction) -> dict[str, NamedUnit]:
    return {name: NamedUnit(Fraction(factor), unit) for name, factor in factors.items()}


UNITS: Mapping[str, NamedUnit] = {
    **_named(SECOND, us=Fraction(1, 10**6), ms=Fraction(1, 1000), s=1, min=60, h=3600, d=86400),
    **_named(TOKEN, token=1, tokens=1, ktokens=1000, Mtokens=10**6),
    **_named(USD, usd=1, kusd=1000),
    **_named(WATT, W=1, kW=1000, MW=10**6),
    **_named(JOULE, J=1, kJ=1000, MJ=10**6, Wh=3600, kWh=3600 * 1000, MWh=3600 * 10**6),
    **_named(BYTE, byte=1, kB=10**3, MB=10**6, GB=10**9, TB=10**12),
    **_named(BYTE, KiB=2**10, MiB=2**20, GiB=2**30, TiB=2**40),
}
"""Every unit by the name that a policy writes."""
