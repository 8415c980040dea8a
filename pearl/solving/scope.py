"""Bounds that follow from the groups alone: counts by role, expressions by mode, and the makespan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from pearl.core.cluster import SERVING_ROLES, Mode, Role, Zone
from pearl.core.problem import AXIS_ROLE, UNREACHABLE_MS, Axis, Change, DecisionProblem, Linear

MODE_ROLES: Mapping[Mode, tuple[Role, ...]] = {
    Mode.COLOCATED: (Role.COLOCATED, Role.INACTIVE),
    Mode.DISAGGREGATED: (Role.PREFILL, Role.DECODE, Role.INACTIVE),
}
AXIS_MODE: Mapping[Axis, Mode] = {
    Axis.COLOCATED: Mode.COLOCATED,
    Axis.PREFILL: Mode.DISAGGREGATED,
    Axis.DECODE: Mode.DISAGGREGATED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Makespans that a model keeps, in ms: nothing is faster than `low_ms`, and slower ones are left out."""

    low_ms: int
    high_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Smallest and largest count of each serving role while its mode runs; a high below its low bars the mode."""

    low: Mapping[Role, int]
    high: Mapping[Role, int]
    serving: int
    """Largest number of workers that may serve."""

    def domain(self, axis: Axis) -> range:
        """Counts of the axis while its mode runs."""
        role = AXIS_ROLE[axis]
        return range(self.low[role], self.high[role] + 1)


def scope_of(problem: DecisionProblem) -> Scope:
    """Bounds on counts from sizes, targets, fixed counts, the borrow limit, and modes that hysteresis bars."""
    scope = _counts_scope(problem)
    barred = [mode for mode in Mode if not _may_run(problem, scope, mode)]
    high = {role: 0 if any(role in MODE_ROLES[mode] for mode in barred) else most for role, most in scope.high.items()}
    return Scope(low=scope.low, high=high, serving=scope.serving)


def _counts_scope(problem: DecisionProblem) -> Scope:
    low: dict[Role, int] = dict.fromkeys(SERVING_ROLES, 0)
    own: dict[Role, int] = dict.fromkeys(SERVING_ROLES, 0)
    borrowed: dict[Role, int] = dict.fromkeys(SERVING_ROLES, 0)
    serving = overlap = 0
    for group in problem.groups:
        roles = [role for role in group.targets if role is not Role.INACTIVE]
        if group.zone is Zone.OVERLAP:
            overlap += group.size if roles else 0
        else:
            serving += group.size if roles else 0
        for role in roles:
            reach = borrowed if group.zone is Zone.OVERLAP else own
            reach[role] += group.size
            if len(group.targets) == 1:
                low[role] += group.size
    most = max(0, problem.borrow.max_workers)
    serving += min(overlap, most)
    high = {role: own[role] + min(borrowed[role], most) for role in own}
    for serving_role in SERVING_ROLES:
        low[serving_role] = max(1, low[serving_role])
        if problem.fixed is not None:
            low[serving_role] = max(low[serving_role], problem.fixed.of(serving_role))
            high[serving_role] = min(high[serving_role], problem.fixed.of(serving_role))
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        high[role] = min(high[role], serving - low[other])
    return Scope(low=low, high=high, serving=serving)


def _may_run(problem: DecisionProblem, scope: Scope, mode: Mode) -> bool:
    if mode not in problem.modes:
        return False
    hurdle = problem.hurdle
    if hurdle is None or problem.current_mode in (None, mode):
        return True
    if Change.MODE in hurdle.forbidden:
        return False
    return not hurdle.gate or _fastest_ms(problem, scope, mode) + hurdle.mode_ms <= hurdle.stay_ms


def narrowed(problem: DecisionProblem, scope: Scope, window: Window) -> Scope:
    """The scope without counts whose own path, or the path that they leave workers for, is slower than the window.

    Pairs bound both counts from below: every pair in the window has at least so many.

    Where serving workers are scarce, few counts are left: this is what keeps exact rungs few.
    """
    tables = problem.tables
    columns = {Axis.COLOCATED: tables.colocated_ms}
    if not tables.pairs:
        columns |= {Axis.PREFILL: tables.prefill_ms, Axis.DECODE: tables.decode_ms}
    low, high = dict(scope.low), dict(scope.high)
    for axis, column in columns.items():
        fast = [n for n in scope.domain(axis) if column[n] <= window.high_ms]
        role = AXIS_ROLE[axis]
        low[role], high[role] = (fast[0], fast[-1]) if fast else (1, 0)
    if tables.pairs:
        fast_pairs = [rung for rung in tables.pairs if rung.makespan_ms <= window.high_ms]
        low[Role.PREFILL] = max(low[Role.PREFILL], min((rung.prefill for rung in fast_pairs), default=1))
        low[Role.DECODE] = max(low[Role.DECODE], min((rung.decode for rung in fast_pairs), default=1))
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        high[role] = min(high[role], scope.serving - low[other])
    return Scope(low=low, high=high, serving=scope.serving)


def bounds_in_mode(
    problem: DecisionProblem, scope: Scope, expr: Linear, mode: Mode, makespan: tuple[int, int]
) -> tuple[int, int]:
    """Smallest and largest value of an expression over the assignments of one mode, makespan within its bounds."""
    weights: dict[str, dict[Role, int]] = {}
    for group_id, role, coefficient in expr.counts:
        weights.setdefault(group_id, {})[role] = coefficient
    low = high = expr.constant
    for group_id, by_role in weights.items():
        group = problem.group_by_id[group_id]
        roles = [role for role in group.targets if role in MODE_ROLES[mode]] or group.targets
        reach = [by_role.get(role, 0) for role in roles]
        low += group.size * min(reach)
        high += group.size * max(reach)
    ends = (expr.makespan * makespan[0], expr.makespan * makespan[1])
    low, high = low + min(ends), high + max(ends)
    for table in expr.tables:
        counts = scope.domain(table.axis) if AXIS_MODE[table.axis] is mode else range(1)
        values = [table.values[n] for n in counts] or [0]
        low, high = low + min(values), high + max(values)
    return low, high


def lower_bound_ms(problem: DecisionProblem, scope: Scope) -> int:
    """No assignment is faster: the best table value over the counts in scope; UNREACHABLE_MS if none can run."""
    return min(_fastest_ms(problem, scope, mode) for mode in Mode)


def _fastest_ms(problem: DecisionProblem, scope: Scope, mode: Mode) -> int:
    tables = problem.tables
    if mode is Mode.COLOCATED:
        return min((tables.colocated_ms[n] for n in scope.domain(Axis.COLOCATED)), default=UNREACHABLE_MS)
    prefill, decode = scope.domain(Axis.PREFILL), scope.domain(Axis.DECODE)
    if not prefill or not decode:
        return UNREACHABLE_MS
    if tables.pairs:
        fit = (
            rung.makespan_ms
            for rung in tables.pairs
            if rung.prefill < prefill.stop and rung.decode < decode.stop and rung.prefill + rung.decode <= scope.serving
        )
        return min(fit, default=UNREACHABLE_MS)
    best = UNREACHABLE_MS
    fastest = list(accumulate((tables.decode_ms[n] for n in decode), min))
    for n in prefill:
        spare = min(scope.serving - n, decode.stop - 1) - decode.start
        if spare >= 0:
            best = min(best, max(tables.prefill_ms[n], fastest[spare]))
    return best
