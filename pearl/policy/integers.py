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

SAMPLE = 8
"""Entries looked at before a whole column is tried."""

RationalForm = Form[Fraction]
MS_PER_S = 1000


class RowError(ValueError):
    """A form that cannot be a row, in words for the user."""


def fraction(value: float) -> Fraction:
    """A float as the decimal that it is written as."""
    return Fraction(int(value)) if value.is_integer() else Fraction(repr(value))


class Layout:
    """Where each (group, target role) stands in a row, and which of them a count covers."""

    def __init__(self, groups: Sequence[Group]) -> None:
        ordered = sorted(groups, key=lambda group: group.id)
        self.pairs = [(group, target) for group in ordered for target in sorted(set(group.targets))]
        self.keys = [(group.id, target) for group, target in self.pairs]
        self.nodes = tuple(dict.fromkeys(group.node for group in groups if group.node is not None))
        self.zones = tuple(zone for zone in Zone if any(group.zone is zone for group in groups))
        self._of_tally: dict[Tally, list[int]] = {tally: [] for tally in Tally}
        self._of_node: dict[str, list[int]] = {node: [] for node in self.nodes}
        for i, (group, target) in enumerate(self.pairs):
            for tally in _tallies(group, target):
                self._of_tally[tally].append(i)
            if group.node is not None:
                self._of_node[group.node].append(i)
        self._found: dict[CountAtom, list[int]] = {}

    def covered(self, atom: CountAtom) -> list[int]:
        """Places of the pairs that the count covers."""
        if atom not in self._found:
            self._found[atom] = self._covered(atom)
        return self._found[atom]

    def _covered(self, atom: CountAtom) -> list[int]:
        pairs = self.pairs
        if atom.tally not in (Tally.COUNT, Tally.EXPOSURE):
            return self._of_tally[atom.tally]
        places = range(len(pairs)) if atom.node is None else self._of_node.get(atom.node, [])
        roles = SERVING_ROLES if atom.role is None else (atom.role,)
        return [i for i in places if pairs[i][1] in roles and (atom.zone is None or pairs[i][0].zone is atom.zone)]


def _tallies(group: Group, target: Role) -> Iterator[Tally]:
    """The changes that a worker of the group makes by taking the target role."""
    served, serves = group.role is not Role.INACTIVE, target is not Role.INACTIVE
    if serves and not served:
        yield Tally.ADDS
    elif serves and target is not group.role and not group.leaving:
        yield Tally.ROLE_CHANGES
    elif served and not serves and not group.leaving:
        yield Tally.REMOVES
    if serves and group.zone is Zone.OVERLAP:
        yield Tally.BORROWED


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


def _weights(form: RationalForm, layout: Layout) -> Iterator[tuple[Sequence[int], Fraction]]:
    for atom, value in form.terms.items():
        if not isinstance(atom, CountAtom):
            continue
        places = layout.covered(atom)
        if atom.tally is Tally.EXPOSURE:
            for i in places:
                yield (i,), value * fraction(layout.pairs[i][0].reclaim_probability)
        else:
            yield places, value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Extremes of a column: of all entries, and of those for one worker or more."""

    high: float
    live_low: float


class Columns:
    """The tables of one decision, read only where a rule reads them."""

    def __init__(self, tables: Mapping[str, ColumnTable]) -> None:
        self._tables = tables
        self._exact: dict[tuple[str, Axis], tuple[int, list[int]] | None] = {}
        self._ranges: dict[tuple[str, Axis], _Range] = {}

    def axes(self, table: str) -> Mapping[Axis, tuple[float, ...]]:
        """The columns of a table; raises RowError where the scenario gives none."""
        if table not in self._tables:
            raise RowError(f"the scenario gives no values for {table}")
        return self._tables[table].columns

    def range(self, table: str, axis: Axis) -> _Range:
        """Extremes of a column; raises RowError where an entry is negative or not finite."""
        key = (table, axis)
        if key not in self._ranges:
            column = self.axes(table)[axis]
            low, high, live = min(column), max(column), min(column[1:], default=1.0)
            if not (low >= 0 and high < math.inf) or math.isnan(sum(column)):
                raise RowError(f"{table} holds a value that is negative or not finite")
            self._ranges[key] = _Range(high=high, live_low=live)
        return self._ranges[key]

    def exact(self, table: str, axis: Axis) -> tuple[int, list[int]] | None:
        """(d, integers) with value = integer/d, or None where the column is not short decimals."""
        key = (table, axis)
        if key not in self._exact:
            self.range(table, axis)
            self._exact[key] = _decimals(self.axes(table)[axis])
        return self._exact[key]


def _decimals(column: tuple[float, ...]) -> tuple[int, list[int]] | None:
    for factor in DECIMALS:
        if all(round(value * factor) / factor == value for value in column[:SAMPLE]):
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
        largest = max(float(Fraction(s.largest(), s.denominator)) for s in sums)
        peak = max((self._peak(form) for form in forms), default=0.0)
        scale = _scale(max(largest, peak), seed)
        rows = []
        for form, s in zip(forms, sums, strict=True):
            tables: dict[Axis, list[int]] = {}
            for atom, value in _table_atoms(form):
                for axis, column in self.columns.axes(atom.table).items():
                    _add(tables, axis, _whole(column, float(value * scale), inverse=atom.inverse, upward=upward))
            rows.append(self._linear(_rescaled(s, scale, upward=upward), _tables(tables), scale, unit))
        return tuple(rows)

    def _peak(self, form: RationalForm) -> float:
        """The largest magnitude of a table's entry times its coefficient."""
        peak = 0.0
        for atom, value in _table_atoms(form):
            for axis, column in self.columns.axes(atom.table).items():
                extremes = self.columns.range(atom.table, axis)
                if not atom.inverse:
                    peak = max(peak, abs(float(value)) * extremes.high)
                elif extremes.live_low > 0:
                    peak = max(peak, abs(float(value)) / extremes.live_low)
                else:
                    workers = f"{column.index(0.0, 1)} {AXIS_ROLE[axis].value} workers"
                    raise RowError(f"division by {atom.table}, which is zero at {workers}")
        return peak

    def _linear(self, s: _Sum, tables: tuple[Table, ...], scale: Fraction, unit: str) -> Linear:
        keys = self.layout.keys
        return Linear(
            constant=s.constant,
            counts=tuple([(keys[i][0], keys[i][1], number) for i, number in sorted(s.counts.items()) if number]),
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


def _whole(column: Sequence[float], factor: float, *, inverse: bool, upward: bool) -> list[int]:
    """factor·entry or factor/entry as integers; entries are not negative, so the factor carries the sign."""
    if upward:
        factor += abs(factor) * FLOAT_GUARD
    whole = math.ceil if upward else round
    if inverse:
        return [0, *[whole(factor / entry) for entry in column[1:]]]
    return [whole(factor * entry) for entry in column]


def _add(entries: dict[Axis, list[int]], axis: Axis, column: list[int]) -> None:
    before = entries.get(axis)
    if before is not None and len(before) != len(column):
        raise RowError("two tables over one count have different lengths")
    entries[axis] = column if before is None else [a + b for a, b in zip(before, column, strict=True)]


def _tables(entries: Mapping[Axis, list[int]]) -> tuple[Table, ...]:
    return tuple(Table(axis=axis, values=tuple(entries[axis])) for axis in Axis if axis in entries)
