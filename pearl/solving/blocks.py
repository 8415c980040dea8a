"""How groups of workers may be dealt to roles, as arrays: the options of each block of groups, with their features.

Groups are merged into blocks whose members no rule or tier tells apart. A block of workers that may take any role is
enumerated by its totals per role, filled with the fewest role changes in closed form (see `_Pool`); any other block by
the compositions of its size. An assignment of the whole problem is one option of every block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pearl.core.cluster import SERVING_ROLES, Mode, Role, Zone
from pearl.core.problem import DecisionProblem, Group, Linear
from pearl.solving.tiers import PricedTier, change_of, changes_of

Ints = NDArray[np.int64]
Weights = tuple[tuple[int, ...], ...]
ROLES = (*SERVING_ROLES, Role.INACTIVE)
COLUMN = {role: k for k, role in enumerate(ROLES)}
MODE_ROLES = {
    Mode.COLOCATED: (Role.COLOCATED, Role.INACTIVE),
    Mode.DISAGGREGATED: (Role.PREFILL, Role.DECODE, Role.INACTIVE),
}
CHANGE_KINDS = ("role_change", "add", "remove")

# Rows of a block's features: workers by role, borrowed workers, changes by kind; then one row per counted expression.
BORROWED = len(ROLES)
FIRST_CHANGE = BORROWED + 1
FIRST_EXPR = FIRST_CHANGE + len(CHANGE_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Expressions that read counts, and whether each is a price on changes alone."""

    expressions: tuple[Linear, ...]
    row_of: dict[int, int]
    """Row of features by the identity of the expression."""
    change_price: tuple[tuple[int, int, int] | None, ...]
    """(role change, add, remove) prices of an expression that reads nothing else, else None."""
    every_swap: bool
    """Whether an intermediate number of swaps (see `_Pool`) may be best."""

    @classmethod
    def of(cls, problem: DecisionProblem, tiers: Sequence[PricedTier]) -> Counted:
        """Those of the rules and tiers of a problem."""
        in_rules = [rule.expr for rule in problem.rules]
        in_tiers = [term for priced in tiers for term in priced.tier.terms]
        expressions = tuple({id(expr): expr for expr in in_rules + in_tiers if expr.counts}.values())
        changes = {(group.id, role): kind for group, role, kind in changes_of(problem)}
        targets = {(group.id, role) for group in problem.groups for role in group.targets}
        prices = tuple(_change_price(expr, changes, targets) for expr in expressions)
        linear = {id(p.tier.terms[0]) for p in tiers if len(p.tier.terms) == 1 and not p.tolerance_ppb}
        bent = {id(expr) for expr in in_rules} | {id(term) for term in in_tiers if id(term) not in linear}
        return cls(
            expressions=expressions,
            row_of={id(expr): FIRST_EXPR + k for k, expr in enumerate(expressions)},
            change_price=prices,
            every_swap=any(price and id(e) in bent for e, price in zip(expressions, prices, strict=True)),
        )


def _change_price(
    expr: Linear, changes: dict[tuple[str, Role], str], targets: set[tuple[str, Role]]
) -> tuple[int, int, int] | None:
    """Prices of a role change, an addition and a removal, where the expression is nothing but them; else None."""
    coefficients = {(group, role): value for group, role, value in expr.counts}
    prices = dict.fromkeys(CHANGE_KINDS, 0)
    for key, kind in changes.items():
        prices[kind] = max(prices[kind], coefficients.get(key, 0))
    if any(coefficients.get(key, 0) != prices[kind] for key, kind in changes.items()):
        return None
    if any(key in targets and key not in changes for key in coefficients):
        return None
    return prices["role_change"], prices["add"], prices["remove"]


class Block(Protocol):
    """Groups whose members no rule or tier tells apart."""

    def options(self, mode: Mode) -> int:
        """At least how many options there are, told without making them."""
        ...

    def features(self, mode: Mode) -> Ints:
        """The options, one a column: workers by role, borrowed ones, changes by kind, counted expressions."""
        ...

    def assign(self, option: Sequence[int]) -> dict[tuple[str, Role], int]:
        """Workers by group and role under an option, given as its column of features."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Groups alike in everything: options are the compositions of their size over their targets."""

    groups: tuple[Group, ...]
    weights: Weights
    """Coefficients by role (order of ROLES), one row per counted expression."""

    @property
    def size(self) -> int:
        return sum(group.size for group in self.groups)

    def options(self, mode: Mode) -> int:
        return _compositions_of(self.size, self._roles(mode))

    def features(self, mode: Mode) -> Ints:
        first = self.groups[0]
        totals = _totals(self.size, self._roles(mode))
        kinds = [change_of(first, role) for role in ROLES]
        changes = [[int(kind == name) for kind in kinds] for name in CHANGE_KINDS]
        rows = np.array([_borrow_weights(first), *changes, *self.weights], dtype=np.int64)
        return np.vstack([totals, rows @ totals])

    def assign(self, option: Sequence[int]) -> dict[tuple[str, Role], int]:
        return _deal(self.groups, {role: option[COLUMN[role]] for role in self.groups[0].targets})

    def _roles(self, mode: Mode) -> tuple[Role, ...]:
        return tuple(role for role in MODE_ROLES[mode] if role in self.groups[0].targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Workers that may take any role, told apart by their current role at most.

    Options are totals t per role. With s of today, keeping min(s, t) in every role leaves the fewest changes of each
    kind but one: a role change may be *swapped* for a removal and an addition while inactive workers stay inactive,
    which can be cheaper, or pass another gate. Prices on changes are linear, so either no swap or all of them is best,
    unless a rule, a maximum or a tolerance bends the price: then every number of swaps is an option.
    """

    groups: tuple[Group, ...]
    weights: Weights
    """Coefficients by role, one row per counted expression; zero for prices on changes."""
    change_price: tuple[tuple[int, int, int] | None, ...]
    every_swap: bool

    @property
    def size(self) -> int:
        return sum(group.size for group in self.groups)

    def options(self, mode: Mode) -> int:
        return _compositions_of(self.size, MODE_ROLES[mode])

    def features(self, mode: Mode) -> Ints:
        today = tuple(self._today().values())
        totals, changes = _pool_options(today, MODE_ROLES[mode], every_swap=self.every_swap)
        prices = np.array([price or (0, 0, 0) for price in self.change_price], dtype=np.int64).reshape(-1, 3)
        rows = np.array([_borrow_weights(self.groups[0]), *self.weights], dtype=np.int64) @ totals
        return np.vstack([totals, rows[:1], changes, rows[1:] + prices @ changes])

    def assign(self, option: Sequence[int]) -> dict[tuple[str, Role], int]:
        want = {role: option[COLUMN[role]] for role in ROLES}
        have = self._today()
        role_changes, adds, removes = option[FIRST_CHANGE:FIRST_EXPR]
        leavers = [role for role in SERVING_ROLES for _ in range(have[role] - want[role])]
        openings = [role for role in SERVING_ROLES for _ in range(want[role] - have[role])]
        moves = Counter(zip(leavers[:role_changes], openings[:role_changes], strict=True))
        moves.update(zip([Role.INACTIVE] * adds, openings[role_changes:], strict=True))
        moves.update(zip(leavers[role_changes:], [Role.INACTIVE] * removes, strict=True))
        for role in ROLES:
            moves[role, role] = have[role] - sum(n for (current, _), n in moves.items() if current is role)
        dealt: dict[tuple[str, Role], int] = {}
        for current in ROLES:
            groups = tuple(group for group in self.groups if group.role is current)
            dealt.update(_deal(groups, {role: moves[current, role] for role in ROLES}))
        return dealt

    def _today(self) -> dict[Role, int]:
        return {role: sum(g.size for g in self.groups if g.role is role) for role in ROLES}


@lru_cache(maxsize=64)
def _pool_options(today: tuple[int, ...], roles: tuple[Role, ...], *, every_swap: bool) -> tuple[Ints, Ints]:
    """Totals (roles × options) and changes (kinds × options) of a pool with so many workers in each role today."""
    totals = _totals(sum(today), roles)
    gain = totals - np.array(today, dtype=np.int64)[:, None]
    idle = gain[COLUMN[Role.INACTIVE]]
    adds, removes = np.maximum(-idle, 0), np.maximum(idle, 0)
    role_changes = np.maximum(gain[: len(SERVING_ROLES)], 0).sum(axis=0) - adds
    resting = np.minimum(totals[COLUMN[Role.INACTIVE]], today[COLUMN[Role.INACTIVE]])
    most = np.minimum(role_changes, resting)
    option, swaps = _swap_options(most, every=every_swap)
    changes = np.vstack([role_changes[option] - swaps, adds[option] + swaps, removes[option] + swaps])
    return totals[:, option], changes


def _swap_options(most: Ints, *, every: bool) -> tuple[Ints, Ints]:
    """For each option, the numbers of swaps to try: none and `most`, or everything between."""
    plain = np.arange(len(most))
    if not most.any():
        return plain, np.zeros_like(plain)
    if every:
        option = np.repeat(plain, most + 1)
        first = np.repeat(np.cumsum(most + 1) - (most + 1), most + 1)
        return option, np.arange(len(option)) - first
    swapped = np.flatnonzero(most)
    return np.concatenate([plain, swapped]), np.concatenate([np.zeros_like(plain), most[swapped]])


@lru_cache(maxsize=64)
def _totals(size: int, roles: tuple[Role, ...]) -> Ints:
    """Every way to give `size` workers the roles: an array of workers, roles × ways."""
    ways = np.zeros((len(ROLES), _compositions_of(size, roles)), dtype=np.int64)
    if not ways.shape[1]:
        return ways
    first = np.arange(size + 1)
    match len(roles):
        case 0:
            pass
        case 1:
            ways[COLUMN[roles[0]]] = size
        case 2:
            ways[COLUMN[roles[0]]] = first
            ways[COLUMN[roles[1]]] = size - first
        case _:
            second = np.concatenate([first[: size + 1 - n] for n in range(size + 1)])
            ways[COLUMN[roles[0]]] = np.repeat(first, size + 1 - first)
            ways[COLUMN[roles[1]]] = second
            ways[COLUMN[roles[2]]] = size - second - ways[COLUMN[roles[0]]]
    return ways


def _compositions_of(size: int, roles: tuple[Role, ...]) -> int:
    return comb(size + len(roles) - 1, size) if roles else int(size == 0)


def _borrow_weights(group: Group) -> list[int]:
    return [int(group.zone is Zone.OVERLAP and role is not Role.INACTIVE) for role in ROLES]


def _deal(groups: Sequence[Group], shares: dict[Role, int]) -> dict[tuple[str, Role], int]:
    """Fill the groups, in order, with the shares, in order."""
    queue = [(role, number) for role, number in shares.items() if number]
    dealt: dict[tuple[str, Role], int] = {}
    for group in groups:
        room = group.size
        while room and queue:
            role, number = queue.pop(0)
            placed = min(room, number)
            dealt[group.id, role] = placed
            room -= placed
            if number > placed:
                queue.insert(0, (role, number - placed))
    return dealt


def blocks_of(problem: DecisionProblem, counted: Counted) -> tuple[Block, ...]:
    """The blocks of a problem: every group is in one of them."""
    weights = _weights(problem, counted)
    pools: dict[tuple[object, ...], list[Group]] = {}
    alike: dict[tuple[object, ...], list[Group]] = {}
    for group in problem.groups:
        overlap = group.zone is Zone.OVERLAP
        if len(group.targets) == len(ROLES) and not group.leaving:
            pools.setdefault((overlap, _pool_weights(weights[group.id], counted)), []).append(group)
        else:
            key = (overlap, group.role, group.targets, group.leaving, weights[group.id])
            alike.setdefault(key, []).append(group)
    return (
        *(
            _Pool(
                groups=tuple(groups),
                weights=_pool_weights(weights[groups[0].id], counted),
                change_price=counted.change_price,
                every_swap=counted.every_swap,
            )
            for groups in pools.values()
        ),
        *(_Alike(groups=tuple(groups), weights=weights[groups[0].id]) for groups in alike.values()),
    )


def _pool_weights(weights: Weights, counted: Counted) -> Weights:
    """Weights of a pool's member, without prices on changes: those enter by the kind of change."""
    nothing = (0,) * len(ROLES)
    return tuple(nothing if price else row for row, price in zip(weights, counted.change_price, strict=True))


def _weights(problem: DecisionProblem, counted: Counted) -> dict[str, Weights]:
    """By group: coefficients by role, one row per counted expression; zero for roles that it may not take."""
    table = {group.id: [[0] * len(ROLES) for _ in counted.expressions] for group in problem.groups}
    for k, expr in enumerate(counted.expressions):
        for group_id, role, coefficient in expr.counts:
            if role in problem.group_by_id[group_id].targets:
                table[group_id][k][COLUMN[role]] = coefficient
    return {group_id: tuple(tuple(row) for row in rows) for group_id, rows in table.items()}
