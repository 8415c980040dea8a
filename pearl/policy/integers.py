"""Linear forms to integer rows: exact where the numbers allow it, else rounded so that a row never becomes looser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pearl.core.cluster import SERVING_ROLES, Role, Zone
from pearl.core.facts import ColumnTable
from pearl.core.problem import AXIS_ROLE, Axis, Group, Linear, Table
from pearl.policy.algebra import MAKESPAN, CountAtom, Form, TableAtom, Tally

EXACT_LIMIT = 1 << 40
"""Integers below this stay exact in every solver: times 4,096 workers they are below 2^52, within a double."""
ROUNDED_BITS = 30
"""Resolution of a rounded row: 2^-30 of its largest coefficient."""
FLOAT_GUARD = 2.0**-48
"""Relative error that a float division and two products may have made, generously; added before rounding up."""
DECIMALS = (1, 1000, 10**6)
"""Tables whose entries are whole multiples of 1/1000 or 1/10^6 (milliseconds, microseconds) stay exact."""

RationalForm = Form[Fraction]
MS_PER_S = 1000


class RowError(ValueError):
    """A form that cannot be a row, in words for the user."""


def fraction(value: float) -> Fraction:
    """A float as the decimal that it is written as."""
    return Fraction(int(value)) if value.is_integer() else Fraction(repr(value))


@dataclass(frozen=True, slots=True)
class _Pair:
    group: Group
    target: Role


class Layout:
    """Where each (group, target role) stands in a row, and which of them a count covers."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.pairs = [_Pair(g, r) for g in sorted(groups, key=lambda g: g.id) for r in sorted(set(g.targets))]
        self.keys = [(pair.group.id, pair.target) for pair in self.pairs]
        self.nodes = tuple(dict.fromkeys(g.node for g in groups if g.node is not None))
        self.zones = tuple(zone for zone in Zone if any(g.zone is zone for g in groups))
        self._by_node: dict[str | None, list[int]] = {None: list(range(len(self.pairs)))}
        for i, pair in enumerate(self.pairs):
            if pair.group.node is not None:
                self._by_node.setdefault(pair.group.node, []).append(i)
        self._found: dict[CountAtom, tuple[int, ...]] = {}

    def covered(self, atom: CountAtom) -> tuple[int, ...]:
        """Places of the pairs that the count covers."""
        if atom not in self._found:
            near = self._by_node.get(atom.node, [])
            self._found[atom] = tuple(i for i in near if _covers(atom, self.pairs[i]))
        return self._found[atom]


def _covers(atom: CountAtom, pair: _Pair) -> bool:
    group, target = pair.group, pair.target
    serves = target in SERVING_ROLES
    match atom.tally:
        case Tally.COUNT | Tally.EXPOSURE:
            fits_role = serves if atom.role is None else target is atom.role
            return fits_role and (atom.zone is None or group.zone is atom.zone)
        case Tally.ROLE_CHANGES:
            return serves and group.role in SERVING_ROLES and target is not group.role and not group.leaving
        case Tally.ADDS:
            return serves and group.role is Role.INACTIVE
        case Tally.REMOVES:
            return not serves and group.role in SERVING_ROLES and not group.leaving
        case Tally.BORROWED:
            return serves and group.zone is Zone.OVERLAP


@dataclass(kw_only=True)
class _Sum:
    """A form over the pairs, exact: every number is an integer over `denominator`."""

    denominator: int
    constant: int
    counts: dict[int, int]
    makespan: int

    def largest(self) -> int:
        return max(abs(self.constant), abs(self.makespan), *map(abs, self.counts.values()), 0)


def _collect(form: RationalForm, layout: Layout, seed: int) -> _Sum:
    weighted = list(_weights(form, layout))
    makespan = form.terms.get(MAKESPAN, Fraction(0)) / MS_PER_S
    denominator = math.lcm(
        seed, form.constant.denominator, makespan.denominator, *(value.denominator for _, value in weighted)
    )
    counts: dict[int, int] = {}
    for places, value in weighted:
        number = value.numerator * (denominator // value.denominator)
        for i in places:
            counts[i] = counts.get(i, 0) + number
    return _Sum(
        denominator=denominator,
        constant=form.constant.numerator * (denominator // form.constant.denominator),
        counts=counts,
        makespan=makespan.numerator * (denominator // makespan.denominator),
    )


def _weights(form: RationalForm, layout: Layout) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    for atom, value in form.terms.items():
        if not isinstance(atom, CountAtom):
            continue
        places = layout.covered(atom)
        if atom.tally is Tally.EXPOSURE:
            for i in places:
                yield (i,), value * fraction(layout.pairs[i].group.reclaim_probability)
        else:
            yield places, value


class Columns:
    """The tables of one decision, read only where a rule reads them."""

    def __init__(self, tables: Mapping[str, ColumnTable]) -> None:
        self._tables = tables
        self._exact: dict[tuple[str, Axis], tuple[int, list[int]] | None] = {}

    def axes(self, table: str) -> Mapping[Axis, tuple[float, ...]]:
        """The columns of a table; raises RowError where the scenario gives none."""
        if table not in self._tables:
            raise RowError(f"the scenario gives no values for {table}")
        return self._tables[table].columns

    def exact(self, table: str, axis: Axis) -> tuple[int, list[int]] | None:
        """(d, integers) with value = integer/d, or None where the column is not short decimals."""
        key = (table, axis)
        if key not in self._exact:
            self._exact[key] = _decimals(self.axes(table)[axis])
        return self._exact[key]


def _decimals(column: tuple[float, ...]) -> tuple[int, list[int]] | None:
    if not all(map(math.isfinite, column)):
        raise RowError("a table holds a value that is not finite")
    for factor in DECIMALS:
        numbers = [round(value * factor) for value in column]
        if all(number / factor == value for number, value in zip(numbers, column, strict=True)):
            return factor, numbers
    return None


def _table_atoms(form: RationalForm) -> list[tuple[TableAtom, Fraction]]:
    return [(atom, value) for atom, value in form.terms.items() if isinstance(atom, TableAtom) and value]


class Rounder:
    """Builds integer forms of one decision."""

    def __init__(self, layout: Layout, columns: Columns) -> None:
        self.layout = layout
        self.columns = columns

    def rows(self, forms: Sequence[RationalForm], *, unit: str, upward: bool, seed: int = 1) -> tuple[Linear, ...]:
        """Forms over one scale, a multiple of `seed` where exact; `upward` rounds every number up, else to nearest."""
        exact = self._exact(forms, seed)
        if exact is not None:
            return tuple(self._linear(s, tables, Fraction(s.denominator), unit) for s, tables in exact)
        return self._rounded(forms, unit=unit, upward=upward, seed=seed)

    def _exact(self, forms: Sequence[RationalForm], seed: int) -> list[tuple[_Sum, tuple[Table, ...]]] | None:
        denominator = seed
        for form in forms:
            for atom, value in _table_atoms(form):
                for axis in self.columns.axes(atom.table):
                    column = None if atom.inverse else self.columns.exact(atom.table, axis)
                    if column is None:
                        return None
                    denominator = math.lcm(denominator, (value / column[0]).denominator)
        sums = [_collect(form, self.layout, denominator) for form in forms]
        joint = math.lcm(*(s.denominator for s in sums))
        if any(s.denominator != joint for s in sums):
            sums = [_collect(form, self.layout, joint) for form in forms]
        tables = [self._exact_tables(form, joint) for form in forms]
        largest = max(s.largest() for s in sums)
        for table in (t for each in tables for t in each):
            largest = max(largest, max(table.values, default=0), -min(table.values, default=0))
        return list(zip(sums, tables, strict=True)) if largest < EXACT_LIMIT else None

    def _exact_tables(self, form: RationalForm, denominator: int) -> tuple[Table, ...]:
        entries: dict[Axis, list[int]] = {}
        for atom, value in _table_atoms(form):
            for axis in self.columns.axes(atom.table):
                column = self.columns.exact(atom.table, axis)
                if column is not None:
                    factor = int(value * denominator / column[0])
                    _add(entries, axis, [factor * number for number in column[1]])
        return _tables(entries)

    def _rounded(self, forms: Sequence[RationalForm], *, unit: str, upward: bool, seed: int) -> tuple[Linear, ...]:
        sums = [_collect(form, self.layout, 1) for form in forms]
        entries = [list(self._entries(form)) for form in forms]
        largest = max(s.largest() / Fraction(s.denominator) for s in sums)
        peak = max((abs(v) for each in entries for _, column in each for v in column), default=0.0)
        scale = _scale(max(float(largest), peak), seed)
        rows = []
        for s, columns in zip(sums, entries, strict=True):
            tables: dict[Axis, list[int]] = {}
            for axis, column in columns:
                _add(tables, axis, _whole(column, float(scale), upward=upward))
            rows.append(self._linear(_rescaled(s, scale, upward=upward), _tables(tables), scale, unit))
        return tuple(rows)

    def _entries(self, form: RationalForm) -> Iterator[tuple[Axis, list[float]]]:
        for atom, value in _table_atoms(form):
            factor = float(value)
            for axis, column in self.columns.axes(atom.table).items():
                if not all(map(math.isfinite, column)):
                    raise RowError(f"{atom.table} holds a value that is not finite")
                if not atom.inverse:
                    yield axis, [factor * entry for entry in column]
                    continue
                if 0.0 in column[1:]:
                    workers = f"{column.index(0.0, 1)} {AXIS_ROLE[axis].value} workers"
                    raise RowError(f"division by {atom.table}, which is zero at {workers}")
                yield axis, [0.0, *(factor / entry for entry in column[1:])]

    def _linear(self, s: _Sum, tables: tuple[Table, ...], scale: Fraction, unit: str) -> Linear:
        keys = self.layout.keys
        return Linear(
            constant=s.constant,
            counts=tuple((*keys[i], s.counts[i]) for i in sorted(s.counts) if s.counts[i]),
            makespan=s.makespan,
            tables=tables,
            scale=scale,
            unit=unit,
        )


def _scale(largest: float, seed: int) -> Fraction:
    """A power of two, times the seed, that brings `largest` to about 2^30."""
    if not math.isfinite(largest):
        raise RowError("a number is too large")
    exponent = ROUNDED_BITS - (math.frexp(largest * seed)[1] if largest else 0)
    return Fraction(2) ** max(exponent, 0) * seed if seed > 1 else Fraction(2) ** exponent


def _rescaled(s: _Sum, scale: Fraction, *, upward: bool) -> _Sum:
    above, below = scale.numerator, scale.denominator * s.denominator
    found: dict[int, int] = {}

    def whole(value: int) -> int:
        if value not in found:
            found[value] = -(-value * above // below) if upward else (2 * value * above + below) // (2 * below)
        return found[value]

    return _Sum(
        denominator=1,
        constant=whole(s.constant),
        counts={i: whole(value) for i, value in s.counts.items()},
        makespan=whole(s.makespan),
    )


def _whole(column: list[float], scale: float, *, upward: bool) -> list[int]:
    if not upward:
        return [round(value * scale) for value in column]
    return [math.ceil(value * scale + abs(value * scale) * FLOAT_GUARD) for value in column]


def _add(entries: dict[Axis, list[int]], axis: Axis, column: list[int]) -> None:
    before = entries.get(axis)
    if before is not None and len(before) != len(column):
        raise RowError("two tables over one count have different lengths")
    entries[axis] = column if before is None else [a + b for a, b in zip(before, column, strict=True)]


def _tables(entries: Mapping[Axis, list[int]]) -> tuple[Table, ...]:
    return tuple(Table(axis=axis, values=tuple(entries[axis])) for axis in Axis if axis in entries)
