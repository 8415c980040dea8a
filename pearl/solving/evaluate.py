"""The exact meaning of a decision problem, in plain integers: the judge of every solver's answer.

Written apart from the formulation on purpose. It shares with it only the order of tiers and what counts as a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from pearl.core.cluster import Counts, Mode, Role
from pearl.core.problem import (
    AXIS_ROLE,
    UNREACHABLE_MS,
    Assignment,
    Change,
    DecisionProblem,
    Linear,
    Rule,
    assignment_counts,
)
from pearl.solving.tiers import change_of, priced_tiers, thresholds_ms


class Builtin(StrEnum):
    """Names of the conditions that a problem sets without a policy rule; an answer that breaks one lists its name."""

    ONE_MODE = "one_mode"
    """Some worker serves, and all serving workers run in one mode, with both roles where it is disaggregated."""
    ALLOWED_MODE = "allowed_mode"
    REACHABLE = "reachable"
    """The makespan tables hold a value for the counts."""
    FIXED_COUNTS = "fixed_counts"
    EXCLUDED_COUNTS = "excluded_counts"
    HYSTERESIS = "hysteresis"
    COOLDOWN = "cooldown"
    BORROW_LIMIT = "borrow_limit"
    BORROW_GATE = "borrow_gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an assignment is worth, and what it breaks.

    `rule_values` and `violations` align with `problem.rules`: the value of `expr` (None while the rule is off), and the
    whole units by which a soft rule is broken (0 for hard rules). `broken` holds (name, amount) for every hard
    condition that fails: amount in the integers of the rule's expression, ms for time, workers for counts.
    """

    counts: Counts
    mode: Mode | None
    makespan_ms: int
    faults: tuple[str, ...]
    """Why the assignment is none: unknown group or role, wrong totals."""
    broken: tuple[tuple[str, int], ...]
    rule_values: tuple[int | None, ...]
    violations: tuple[int, ...]
    penalty_ms: int
    charge_ms: int
    changes: frozenset[Change]
    role_changes: int
    adds: int
    removes: int
    tier_values: tuple[int, ...]
    """By `pearl.solving.tiers.priced_tiers`."""

    @property
    def feasible(self) -> bool:
        """Whether every hard condition holds."""
        return not self.faults and not self.broken

    @property
    def soft_broken(self) -> bool:
        """Whether some soft rule is broken."""
        return any(self.violations)


def evaluate(problem: DecisionProblem, assignment: Assignment) -> Evaluation:
    """Evaluate an assignment exactly; one that is malformed comes back with `faults` and no tier values."""
    faults = _structural_faults(problem, assignment)
    if faults:
        return _malformed(problem, faults)
    counts = assignment_counts(problem, assignment)
    mode = _single_mode(counts)
    makespan_ms = problem.tables.makespan_ms(counts)
    tally = _tally_changes(problem, assignment)
    changes = _kinds(problem, mode, tally)
    values = tuple(
        linear_value(rule.expr, assignment, counts, makespan_ms) if rule.when in (None, mode) else None
        for rule in problem.rules
    )
    violations = tuple(
        violation_units(rule, value) if rule.soft and value is not None else 0
        for rule, value in zip(problem.rules, values, strict=True)
    )
    penalty_ms = sum(r.soft.penalty_ms * v for r, v in zip(problem.rules, violations, strict=True) if r.soft)
    thresholds = thresholds_ms(problem)
    charge_ms = sum(thresholds.get(c, 0) for c in changes) if problem.hurdle and problem.hurdle.charge else 0
    broken = [
        *_broken_structure(problem, counts, mode, makespan_ms),
        *_broken_hurdle(problem, changes, makespan_ms),
        *_broken_borrow(problem, counts, makespan_ms),
        *_broken_rules(problem.rules, values, violations),
    ]
    price_ms = penalty_ms + charge_ms
    tier_values = tuple(
        max(linear_value(term, assignment, counts, makespan_ms) for term in priced.tier.terms)
        + priced.price_weight * price_ms
        for priced in priced_tiers(problem)
    )
    return Evaluation(
        counts=counts,
        mode=mode,
        makespan_ms=makespan_ms,
        faults=(),
        broken=tuple(broken),
        rule_values=values,
        violations=violations,
        penalty_ms=penalty_ms,
        charge_ms=charge_ms,
        changes=changes,
        role_changes=tally["role_change"],
        adds=tally["add"],
        removes=tally["remove"],
        tier_values=tier_values,
    )


def linear_value(expr: Linear, assignment: Assignment, counts: Counts, makespan_ms: int) -> int:
    """Integer value of an expression: constant + counts + makespan·T + its tables at the counts."""
    total = expr.constant + expr.makespan * makespan_ms
    total += sum(coefficient * assignment.get((group, role), 0) for group, role, coefficient in expr.counts)
    return total + sum(table.values[counts.of(AXIS_ROLE[table.axis])] for table in expr.tables)


def violation_units(rule: Rule, value: int) -> int:
    """Whole units of the rule's scale by which it is broken, rounded up: ceil(max(0, value) / scale)."""
    return -(-max(0, value) * rule.expr.scale.denominator // rule.expr.scale.numerator)


def today(problem: DecisionProblem) -> Assignment | None:
    """The assignment that changes nothing by choice; None where some group must change in a way left open."""
    kept: dict[tuple[str, Role], int] = {}
    for group in problem.groups:
        if group.role in group.targets:
            kept[group.id, group.role] = group.size
        elif len(group.targets) == 1:
            kept[group.id, group.targets[0]] = group.size
        else:
            return None
    return {key: number for key, number in kept.items() if number}


def _structural_faults(problem: DecisionProblem, assignment: Assignment) -> tuple[str, ...]:
    faults: list[str] = []
    placed = dict.fromkeys(problem.group_by_id, 0)
    for (group_id, role), number in assignment.items():
        group = problem.group_by_id.get(group_id)
        if group is None:
            faults.append(f"unknown group {group_id!r}")
            continue
        if number < 0:
            faults.append(f"{number} workers of {group_id!r} in role {role}")
        if number and role not in group.targets:
            faults.append(f"{group_id!r} may not take role {role}")
        placed[group_id] += number
    faults.extend(
        f"{placed[group.id]} of {group.size} workers of {group.id!r} are placed"
        for group in problem.groups
        if placed[group.id] != group.size
    )
    return tuple(faults)


def _malformed(problem: DecisionProblem, faults: tuple[str, ...]) -> Evaluation:
    return Evaluation(
        counts=Counts(),
        mode=None,
        makespan_ms=UNREACHABLE_MS,
        faults=faults,
        broken=(),
        rule_values=(None,) * len(problem.rules),
        violations=(0,) * len(problem.rules),
        penalty_ms=0,
        charge_ms=0,
        changes=frozenset(),
        role_changes=0,
        adds=0,
        removes=0,
        tier_values=(),
    )


def _single_mode(counts: Counts) -> Mode | None:
    """The mode of a pool that runs exactly one; None for an idle, mixed or one-sided pool."""
    if counts.colocated and not counts.prefill and not counts.decode:
        return Mode.COLOCATED
    if not counts.colocated and counts.prefill and counts.decode:
        return Mode.DISAGGREGATED
    return None


def _tally_changes(problem: DecisionProblem, assignment: Assignment) -> dict[str, int]:
    tally = {"role_change": 0, "add": 0, "remove": 0}
    for (group_id, role), number in assignment.items():
        kind = change_of(problem.group_by_id[group_id], role)
        if kind is not None:
            tally[kind] += number
    return tally


def _kinds(problem: DecisionProblem, mode: Mode | None, tally: dict[str, int]) -> frozenset[Change]:
    kinds: set[Change] = set()
    if problem.current_mode is not None and mode is not problem.current_mode:
        kinds.add(Change.MODE)
    elif tally["role_change"]:
        kinds.add(Change.RATIO)
    if tally["add"] or tally["remove"]:
        kinds.add(Change.RESIZE)
    return frozenset(kinds)


def _broken_structure(
    problem: DecisionProblem, counts: Counts, mode: Mode | None, makespan_ms: int
) -> list[tuple[str, int]]:
    broken: list[tuple[str, int]] = []
    if mode is None:
        broken.append((Builtin.ONE_MODE, 1))
    elif mode not in problem.modes:
        broken.append((Builtin.ALLOWED_MODE, 1))
    if makespan_ms >= UNREACHABLE_MS:
        broken.append((Builtin.REACHABLE, makespan_ms - UNREACHABLE_MS + 1))
    if any(_same_serving(counts, excluded) for excluded in problem.excluded):
        broken.append((Builtin.EXCLUDED_COUNTS, 1))
    if problem.fixed is not None:
        pairs = [(problem.fixed.of(axis_role), counts.of(axis_role)) for axis_role in AXIS_ROLE.values()]
        distance = sum(abs(wanted - found) for wanted, found in pairs)
        if distance:
            broken.append((Builtin.FIXED_COUNTS, distance))
    return broken


def _same_serving(counts: Counts, other: Counts) -> bool:
    return all(counts.of(role) == other.of(role) for role in AXIS_ROLE.values())


def _broken_hurdle(problem: DecisionProblem, changes: frozenset[Change], makespan_ms: int) -> list[tuple[str, int]]:
    hurdle = problem.hurdle
    if hurdle is None:
        return []
    broken: list[tuple[str, int]] = []
    if changes & hurdle.forbidden:
        broken.append((Builtin.COOLDOWN, len(changes & hurdle.forbidden)))
    thresholds = thresholds_ms(problem)
    gated = changes & thresholds.keys()
    if hurdle.gate and gated:
        excess = makespan_ms + sum(thresholds[change] for change in gated) - hurdle.stay_ms
        if excess > 0:
            broken.append((Builtin.HYSTERESIS, excess))
    return broken


def _broken_borrow(problem: DecisionProblem, counts: Counts, makespan_ms: int) -> list[tuple[str, int]]:
    broken: list[tuple[str, int]] = []
    terms = problem.borrow
    if counts.borrowed > terms.max_workers:
        broken.append((Builtin.BORROW_LIMIT, counts.borrowed - terms.max_workers))
    if counts.borrowed and terms.gate_ms is not None and makespan_ms > terms.gate_ms:
        broken.append((Builtin.BORROW_GATE, makespan_ms - terms.gate_ms))
    return broken


def _broken_rules(
    rules: Sequence[Rule], values: Sequence[int | None], violations: Sequence[int]
) -> list[tuple[str, int]]:
    broken: list[tuple[str, int]] = []
    for rule, value, violation in zip(rules, values, violations, strict=True):
        if value is None:
            continue
        if rule.soft is None:
            excess = value
        elif rule.soft.max_violation is None or violation <= rule.soft.max_violation:
            continue
        else:
            excess = (Fraction(value) - rule.soft.max_violation * rule.expr.scale).__ceil__()
        if excess > 0:
            broken.append((rule.name, excess))
    return broken
