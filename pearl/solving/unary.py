"""Rules that only bound one count, such as KV capacity: found, so that they cost a row and no rungs."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.core.cluster import Role
from pearl.core.problem import AXIS_ROLE, Axis, DecisionProblem, Rule
from pearl.solving.scope import AXIS_MODE, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRange:
    """What a rule allows of one count: a range while its mode runs, and whether the other mode may run at all."""

    axis: Axis
    counts: range | None
    """None where no count will do."""
    idle_allowed: bool


def allowed_counts(problem: DecisionProblem, scope: Scope, rule: Rule) -> CountRange | None:
    """The range of counts that a hard rule allows; None where it reads more than one count, or allows no one range."""
    axis = _only_axis(problem, rule)
    if axis is None or rule.soft is not None or rule.expr.makespan:
        return None
    mode = AXIS_MODE[axis]
    each = rule.expr.counts[0][2] if rule.expr.counts else 0

    columns = [table.values for table in rule.expr.tables]
    domain = scope.domain(axis)
    allowed = list(domain)
    if rule.when in (None, mode):
        slack = [-rule.expr.constant - each * n for n in domain]
        for column in columns:
            slack = [left - column[n] for n, left in zip(domain, slack, strict=True)]
        allowed = [n for n, left in zip(domain, slack, strict=True) if left >= 0]
    idle = rule.expr.constant + sum(column[0] for column in columns)
    if allowed and len(allowed) != allowed[-1] - allowed[0] + 1:
        return None
    return CountRange(
        axis=axis,
        counts=range(allowed[0], allowed[-1] + 1) if allowed else None,
        idle_allowed=rule.when is mode or idle <= 0,
    )


def _only_axis(problem: DecisionProblem, rule: Rule) -> Axis | None:
    """The one axis that the rule reads, each of its workers counting alike."""
    axes = {table.axis for table in rule.expr.tables}
    counts = {(group, role): coefficient for group, role, coefficient in rule.expr.counts}
    roles = {role for _, role in counts}
    if Role.INACTIVE in roles or len(set(counts.values())) > 1:
        return None
    axes |= {axis for axis, role in AXIS_ROLE.items() if role in roles}
    if len(axes) != 1:
        return None
    axis = next(iter(axes))
    role = AXIS_ROLE[axis]
    everyone = {(group.id, role) for group in problem.groups if role in group.targets}
    return axis if not counts or everyone <= counts.keys() else None
