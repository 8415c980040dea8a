"""Sanity of a decision problem: what no solver could give a meaning to is refused before any runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pearl.core.problem import AXIS_ROLE, Axis, DecisionProblem, Linear


def check_problem(problem: DecisionProblem) -> None:
    """Raise ValueError, naming every fault, for a problem that its maker should not have posed."""
    faults = [*_group_faults(problem), *_table_faults(problem), *_price_faults(problem)]
    if faults:
        raise ValueError("not a decision problem: " + "; ".join(faults))


def _group_faults(problem: DecisionProblem) -> Iterator[str]:
    if len(problem.group_by_id) != len(problem.groups):
        yield "group ids repeat"
    for group in problem.groups:
        if group.size < 0:
            yield f"group {group.id!r} has {group.size} workers"
        if not group.targets or len(set(group.targets)) != len(group.targets):
            yield f"targets of group {group.id!r} must be distinct and at least one"


def _table_faults(problem: DecisionProblem) -> Iterator[str]:
    tables = problem.tables
    columns = {
        Axis.COLOCATED: tables.colocated_ms,
        Axis.PREFILL: tables.prefill_ms,
        Axis.DECODE: tables.decode_ms,
    }
    largest = {
        axis: sum(group.size for group in problem.groups if role in group.targets) for axis, role in AXIS_ROLE.items()
    }
    for axis, column in columns.items():
        if len(column) <= largest[axis]:
            yield f"the {axis} makespans cover {len(column) - 1} workers, {largest[axis]} may take the role"
        if column and min(column) < 0:
            yield f"the {axis} makespans hold a negative time"
    if any(rung.makespan_ms < 0 for rung in tables.pairs):
        yield "a pair holds a negative time"
    for name, expr in _expressions(problem):
        yield from _expression_faults(problem, name, expr, largest)


def _expression_faults(problem: DecisionProblem, name: str, expr: Linear, largest: Mapping[Axis, int]) -> Iterator[str]:
    if expr.scale <= 0:
        yield f"{name}: scale {expr.scale} is not positive"
    for table in expr.tables:
        if len(table.values) <= largest[table.axis]:
            covered = len(table.values) - 1
            yield f"{name}: a table covers {covered} workers, {largest[table.axis]} may take the role"
    unknown = {group_id for group_id, _, _ in expr.counts} - problem.group_by_id.keys()
    if unknown:
        yield f"{name}: unknown groups {', '.join(sorted(unknown))}"


def _price_faults(problem: DecisionProblem) -> Iterator[str]:
    for tier in problem.tiers:
        if not tier.terms:
            yield f"tier {tier.name!r} has no terms"
        if any(term.makespan < 0 for term in tier.terms):
            yield f"tier {tier.name!r} maximises the makespan"
        if tier.tolerance < 0:
            yield f"tier {tier.name!r} has a negative tolerance"
    for rule in problem.rules:
        if rule.soft and (rule.soft.penalty_ms < 0 or (rule.soft.max_violation or 0) < 0):
            yield f"rule {rule.name!r} has a negative penalty or maximum violation"
    hurdle = problem.hurdle
    if hurdle and min(hurdle.mode_ms, hurdle.ratio_ms, hurdle.resize_ms or 0) < 0:
        yield "a hysteresis threshold is negative"


def _expressions(problem: DecisionProblem) -> Iterator[tuple[str, Linear]]:
    for rule in problem.rules:
        yield f"rule {rule.name!r}", rule.expr
    for tier in problem.tiers:
        for term in tier.terms:
            yield f"tier {tier.name!r}", term
