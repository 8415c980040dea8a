"""Exact enumeration with numpy: every assignment that can matter, all tiers at once. The oracle of the other solvers.

A problem is the product of its blocks' options (`pearl.solving.blocks`); its points are columns of arrays, from which
rules and gates strike, and tier by tier the best remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from pearl.core.cluster import SERVING_ROLES, Mode, Role
from pearl.core.problem import AXIS_ROLE, UNREACHABLE_MS, Change, DecisionProblem, Linear, MakespanTables, Rule
from pearl.errors import SolverError
from pearl.solving.blocks import (
    BORROWED,
    COLUMN,
    FIRST_CHANGE,
    FIRST_EXPR,
    MODE_ROLES,
    Block,
    Counted,
    Ints,
    blocks_of,
)
from pearl.solving.check import check_problem
from pearl.solving.protocol import Capabilities, Limits, Solution, SolveStatus
from pearl.solving.tiers import PricedTier, held_bound, priced_tiers, thresholds_ms

MAX_POINTS = 2_000_000
"""Points of one mode that are enumerated at most: about a second and half a gigabyte on one core."""

SAFE = 2**62
"""Values stay below this, so that no int64 sum overflows."""


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
        counted = Counted.of(problem, tiers)
        _refuse_large_numbers(problem, tiers)
        blocks = blocks_of(problem, counted)
        candidates = [_candidates(problem, mode, blocks, counted, tiers) for mode in Mode if mode in problem.modes]
        values = np.concatenate([c.values for c in candidates], axis=1) if candidates else np.empty((1, 0), np.int64)
        if not values.shape[1]:
            return Solution(status=SolveStatus.INFEASIBLE)
        best = _lexicographic(values, [tier.tolerance_ppb for tier in tiers])
        return _solution(candidates, best)


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

    blocks: tuple[Block, ...]
    features: list[Ints]
    """Options of each block, one a column."""
    points: _Points
    values: Ints


def _candidates(
    problem: DecisionProblem, mode: Mode, blocks: tuple[Block, ...], counted: Counted, tiers: Sequence[PricedTier]
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
