"""Exact enumeration with numpy: every assignment that can matter, all tiers at once. The oracle of the other solvers.

Groups are merged into blocks whose members no rule or tier tells apart. A block of workers that may take any role is
enumerated by its totals per role, filled with the fewest role changes in closed form (see `_Pool`); any other block by
the compositions of its size. A problem is the product of its blocks' options.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from pearl.core.cluster import SERVING_ROLES, Mode, Role, Zone
from pearl.core.problem import (
    AXIS_ROLE,
    UNREACHABLE_MS,
    Change,
    DecisionProblem,
    Group,
    Linear,
    MakespanTables,
    Rule,
)
from pearl.errors import SolverError
from pearl.solving.check import check_problem
from pearl.solving.protocol import Capabilities, Limits, Solution, SolveStatus
from pearl.solving.tiers import PricedTier, change_of, changes_of, held_bound, priced_tiers, thresholds_ms

MAX_POINTS = 2_000_000
"""Points of one mode that are enumerated at most: about a second and half a gigabyte on one core."""

SAFE = 2**62
"""Values stay below this, so that no int64 sum overflows."""

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


class Enumerate:
    """Reads the structured problem, and needs no MIP library."""

    id = "enumerate"
    capabilities = Capabilities(reads="problem", note=f"up to {MAX_POINTS:,} assignments; takes no time limit")

    def library_version(self) -> str:
        """Version of numpy."""
        return np.__version__

    def solve(self, problem: DecisionProblem, *, limits: Limits) -> Solution:  # noqa: ARG002 (bounded by MAX_POINTS)
        """Solve every tier exactly; SolverError where the problem has too many points or too large numbers."""
        check_problem(problem)
        tiers = priced_tiers(problem)
        counted = _Counted.of(problem, tiers)
        _refuse_large_numbers(problem, tiers)
        blocks = _blocks(problem, counted)
        candidates = [_candidates(problem, mode, blocks, counted, tiers) for mode in Mode if mode in problem.modes]
        values = np.concatenate([c.values for c in candidates], axis=1) if candidates else np.empty((1, 0), np.int64)
        if not values.shape[1]:
            return Solution(status=SolveStatus.INFEASIBLE)
        best = _lexicographic(values, [tier.tolerance_ppb for tier in tiers])
        return _solution(candidates, best)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """Expressions that read counts, and whether each is a price on changes alone."""

    expressions: tuple[Linear, ...]
    row_of: dict[int, int]
    """Row of features by the identity of the expression."""
    change_price: tuple[tuple[int, int, int] | None, ...]
    """(role change, add, remove) prices of an expression that reads nothing else, else None."""
    every_swap: bool
    """Whether an intermediate number of swaps (see `_Pool`) may be best."""

    @classmethod
    def of(cls, problem: DecisionProblem, tiers: Sequence[PricedTier]) -> _Counted:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
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


_Block = _Class | _Pool


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


def _blocks(problem: DecisionProblem, counted: _Counted) -> tuple[_Block, ...]:
    weights = _weights(problem, counted)
    pools: dict[tuple[object, ...], list[Group]] = {}
    classes: dict[tuple[object, ...], list[Group]] = {}
    for group in problem.groups:
        overlap = group.zone is Zone.OVERLAP
        if len(group.targets) == len(ROLES) and not group.leaving:
            pools.setdefault((overlap, _pool_weights(weights[group.id], counted)), []).append(group)
        else:
            key = (overlap, group.role, group.targets, group.leaving, weights[group.id])
            classes.setdefault(key, []).append(group)
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
        *(_Class(groups=tuple(groups), weights=weights[groups[0].id]) for groups in classes.values()),
    )


def _pool_weights(weights: Weights, counted: _Counted) -> Weights:
    """Weights of a pool's member, without prices on changes: those enter by the kind of change."""
    nothing = (0,) * len(ROLES)
    return tuple(nothing if price else row for row, price in zip(weights, counted.change_price, strict=True))


def _weights(problem: DecisionProblem, counted: _Counted) -> dict[str, Weights]:
    """By group: coefficients by role, one row per counted expression; zero for roles that it may not take."""
    table = {group.id: [[0] * len(ROLES) for _ in counted.expressions] for group in problem.groups}
    for k, expr in enumerate(counted.expressions):
        for group_id, role, coefficient in expr.counts:
            if role in problem.group_by_id[group_id].targets:
                table[group_id][k][COLUMN[role]] = coefficient
    return {group_id: tuple(tuple(row) for row in rows) for group_id, rows in table.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Points:
    """Points of one mode: their features, makespans, and places in the product of the blocks' options."""

    row_of: dict[int, int]
    features: Ints
    makespan_ms: Ints
    places: Ints

    def keep(self, mask: NDArray[np.bool_]) -> _Points:
        kept = np.flatnonzero(mask)
        return _Points(
            row_of=self.row_of,
            features=self.features[:, kept],
            makespan_ms=self.makespan_ms[kept],
            places=self.places[kept],
        )

    def workers(self, role: Role) -> Ints:
        workers: Ints = self.features[COLUMN[role]]
        return workers

    def value(self, expr: Linear) -> Ints:
        value: Ints = expr.constant + expr.makespan * self.makespan_ms
        if expr.counts:
            value = value + self.features[self.row_of[id(expr)]]
        for table in expr.tables:
            value = value + _read(table.values, self.workers(AXIS_ROLE[table.axis]))
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """The feasible points of one mode, and the value of each tier (tiers × points)."""

    blocks: tuple[_Block, ...]
    features: list[Ints]
    """Options of each block, one a column."""
    points: _Points
    values: Ints


def _candidates(
    problem: DecisionProblem, mode: Mode, blocks: tuple[_Block, ...], counted: _Counted, tiers: Sequence[PricedTier]
) -> _Candidates:
    _refuse_if_many(prod(block.options(mode) for block in blocks), mode)
    features = [block.features(mode) for block in blocks]
    _refuse_if_many(prod(each.shape[1] for each in features), mode)
    whole = np.zeros((FIRST_EXPR + len(counted.expressions), 1), dtype=np.int64)
    for each in features:
        whole = (whole[:, :, None] + each[:, None, :]).reshape(len(whole), -1)
    points = _Points(
        row_of=counted.row_of,
        features=whole,
        makespan_ms=_makespans(problem.tables, mode, whole),
        places=np.arange(whole.shape[1]),
    )
    points = points.keep(_possible(problem, mode, points))
    allowed, price = _hurdle(problem, mode, points)
    for rule in problem.rules:
        if rule.when in (None, mode):
            holds, penalty = _rule(rule, points.value(rule.expr))
            allowed, price = allowed & holds, price + penalty
    values = [
        np.max([points.value(term) for term in priced.tier.terms], axis=0) + priced.price_weight * price
        for priced in tiers
    ]
    return _Candidates(
        blocks=blocks,
        features=features,
        points=points.keep(allowed),
        values=np.vstack(values)[:, np.flatnonzero(allowed)],
    )


def _refuse_if_many(points: int, mode: Mode) -> None:
    if points > MAX_POINTS:
        raise SolverError(
            f"{points:,} assignments to enumerate in {mode} mode, more than {MAX_POINTS:,}; use a MIP solver (cpsat)"
        )


def _makespans(tables: MakespanTables, mode: Mode, features: Ints) -> Ints:
    if mode is Mode.COLOCATED:
        return _read(tables.colocated_ms, features[COLUMN[Role.COLOCATED]])
    prefill, decode = features[COLUMN[Role.PREFILL]], features[COLUMN[Role.DECODE]]
    if tables.pairs:
        makespans: Ints = _pair_grid(tables)[prefill, decode]
        return makespans
    return np.maximum(_read(tables.prefill_ms, prefill), _read(tables.decode_ms, decode))


def _read(column: Sequence[int], counts: Ints) -> Ints:
    entries: Ints = np.array(column, dtype=np.int64)[counts]
    return entries


def _pair_grid(tables: MakespanTables) -> Ints:
    """Makespan by (prefill, decode) counts."""
    grid = np.full((len(tables.prefill_ms), len(tables.decode_ms)), UNREACHABLE_MS, dtype=np.int64)
    most = (len(tables.prefill_ms), len(tables.decode_ms))
    fit = [(r.prefill, r.decode, r.makespan_ms) for r in tables.pairs if r.prefill < most[0] and r.decode < most[1]]
    prefill, decode, makespan_ms = np.array(fit, dtype=np.int64).reshape(-1, 3).T
    np.minimum.at(grid, (prefill, decode), makespan_ms)
    if tables.exact_pairs:
        return grid
    return np.minimum.accumulate(np.minimum.accumulate(grid, axis=0), axis=1)


def _possible(problem: DecisionProblem, mode: Mode, points: _Points) -> NDArray[np.bool_]:
    """One mode, a makespan, fixed and excluded counts, and the terms of borrowing."""
    needed = [role for role in MODE_ROLES[mode] if role is not Role.INACTIVE]
    holds = points.makespan_ms < UNREACHABLE_MS
    for role in needed:
        holds &= points.workers(role) >= 1
    if problem.fixed is not None:
        for serving_role in SERVING_ROLES:
            holds &= points.workers(serving_role) == problem.fixed.of(serving_role)
    for excluded in problem.excluded:
        holds &= np.any([points.workers(role) != excluded.of(role) for role in SERVING_ROLES], axis=0)
    borrowed = points.features[BORROWED]
    holds &= borrowed <= problem.borrow.max_workers
    if problem.borrow.gate_ms is not None:
        holds &= (borrowed == 0) | (points.makespan_ms <= problem.borrow.gate_ms)
    return holds


def _hurdle(problem: DecisionProblem, mode: Mode, points: _Points) -> tuple[NDArray[np.bool_], Ints]:
    """Where hysteresis lets a point pass, and what it charges, in ms."""
    allowed, charge = np.ones(len(points.places), dtype=np.bool_), np.zeros(len(points.places), dtype=np.int64)
    hurdle = problem.hurdle
    if hurdle is None:
        return allowed, charge
    role_changes, adds, removes = points.features[FIRST_CHANGE:FIRST_EXPR]
    switched = problem.current_mode not in (None, mode)
    happens = {
        Change.MODE: np.full_like(allowed, switched),
        Change.RATIO: (role_changes > 0) & (not switched),
        Change.RESIZE: adds + removes > 0,
    }
    for kind in hurdle.forbidden:
        allowed &= ~happens[kind]
    thresholds = thresholds_ms(problem)
    threshold = sum((happens[kind] * ms for kind, ms in thresholds.items()), start=charge)
    if hurdle.gate:
        gated = np.any([happens[kind] for kind in thresholds], axis=0)
        allowed &= ~gated | (points.makespan_ms + threshold <= hurdle.stay_ms)
    return allowed, threshold if hurdle.charge else charge


def _rule(rule: Rule, value: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Where a rule lets a point pass, and its penalty in ms."""
    if rule.soft is None:
        return value <= 0, np.zeros_like(value)
    scale = rule.expr.scale
    units = -(-np.maximum(value, 0) * scale.denominator // scale.numerator)
    most = rule.soft.max_violation
    return (units <= most) if most is not None else np.ones(len(units), dtype=np.bool_), units * rule.soft.penalty_ms


def _lexicographic(values: Ints, tolerances_ppb: Sequence[int]) -> int:
    """First point that is best tier by tier, then, within all tolerances, best again in the order of the tiers."""
    alive = np.arange(values.shape[1])
    last = len(tolerances_ppb) - 1
    for k, ppb in enumerate(tolerances_ppb):
        tier = values[k, alive]
        alive = alive[tier <= held_bound(int(tier.min()), ppb if k < last else 0)]
    for k, ppb in enumerate(tolerances_ppb[:-1]):
        if ppb:
            tier = values[k, alive]
            alive = alive[tier == tier.min()]
    return int(alive[0])


def _solution(candidates: Sequence[_Candidates], best: int) -> Solution:
    for each in candidates:
        if best < each.values.shape[1]:
            break
        best -= each.values.shape[1]
    options = np.unravel_index(int(each.points.places[best]), [block.shape[1] for block in each.features])
    assignment: dict[tuple[str, Role], int] = {}
    for block, features, option in zip(each.blocks, each.features, options, strict=True):
        assignment.update(block.assign(features[:, option].tolist()))
    values = tuple(int(value) for value in each.values[:, best])
    return Solution(
        status=SolveStatus.OPTIMAL,
        assignment=assignment,
        makespan_ms=int(each.points.makespan_ms[best]),
        tier_values=values,
        bound=values[0],
    )


def _refuse_large_numbers(problem: DecisionProblem, tiers: Sequence[PricedTier]) -> None:
    """Bound every intermediate value in Python integers, so that int64 cannot overflow."""
    price = sum(thresholds_ms(problem).values())
    for rule in problem.rules:
        size = _magnitude(problem, rule.expr) * rule.expr.scale.denominator
        if size >= SAFE:
            raise SolverError(f"rule {rule.name!r} reaches {size:.1e}, too large to enumerate in 64 bits")
        if rule.soft is not None:
            price += rule.soft.penalty_ms * (size // rule.expr.scale.numerator + 1)
    for priced in tiers:
        size = max(_magnitude(problem, term) for term in priced.tier.terms) + priced.price_weight * price
        if size >= SAFE:
            raise SolverError(f"tier {priced.tier.name!r} reaches {size:.1e}, too large to enumerate in 64 bits")


def _magnitude(problem: DecisionProblem, expr: Linear) -> int:
    sizes = problem.group_by_id
    return (
        abs(expr.constant)
        + sum(abs(coefficient) * sizes[group].size for group, _, coefficient in expr.counts)
        + abs(expr.makespan) * UNREACHABLE_MS
        + sum(max(map(abs, table.values)) for table in expr.tables)
    )
