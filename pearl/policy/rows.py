"""Splitting of what a rule requires into inequalities: `and`, `==`, and max or min where they separate."""

from __future__ import annotations

from collections.abc import Mapping

from pearl.policy.formula import Formula
from pearl.policy.infer import Scope, Type, infer
from pearl.policy.model import Inequality
from pearl.policy.parser import SyntaxFault
from pearl.policy.syntax import COMPARISONS, Binary, Call, Expr, Name

MAX_ROWS = 64
"""Rows of one rule; bounds what nested max and let may multiply to."""

Parts = Mapping[str, tuple[Formula, ...]]
"""The parts of each let that is a max or min."""


def conjuncts(expr: Expr) -> list[Expr]:
    """Operands of a top-level `and`."""
    if isinstance(expr, Binary) and expr.op == "and":
        return [*conjuncts(expr.left), *conjuncts(expr.right)]
    return [expr]


def split(require: Formula, scope: Scope, lets: Parts) -> tuple[Inequality, ...]:
    """The inequalities that `require` stands for; raises SyntaxFault."""
    rows: list[Inequality] = []
    for expr in conjuncts(require.expr):
        rows.extend(_split_comparison(require, expr, scope, lets))
        if len(rows) > MAX_ROWS:
            raise SyntaxFault(f"the rule splits into more than {MAX_ROWS} rows", expr.at, hint="write several rules")
    return tuple(rows)


def _split_comparison(require: Formula, expr: Expr, scope: Scope, lets: Parts) -> list[Inequality]:
    type_ = infer(expr, scope)
    if not isinstance(expr, Binary) or expr.op not in COMPARISONS:
        if type_.boolean:
            hint = "a constant condition belongs in `when`"
            raise SyntaxFault("not a row", expr.at, expected="a comparison with <=, >= or ==", hint=hint)
        raise SyntaxFault("not a condition", expr.at, expected="a comparison with <=, >= or ==")
    left, right = infer(expr.left, scope), infer(expr.right, scope)
    unit = right.unit if left.zero or left.broken else left.unit
    if expr.op in ("<", ">"):
        hint = f"write {expr.op}= instead; counts are whole, so n > 2 is n >= 3"
        raise SyntaxFault(f"a row cannot be strict ({expr.op})", expr.at, expected="<=, >= or ==", hint=hint)
    if expr.op == "==":
        if left.extreme or right.extreme:
            raise SyntaxFault("max or min in an equality is not linear", expr.at, hint="use <= or >=")
        a, b = require.with_expr(expr.left), require.with_expr(expr.right)
        return [Inequality(less=a, more=b, unit=unit), Inequality(less=b, more=a, unit=unit)]
    low, high = (expr.left, expr.right) if expr.op == "<=" else (expr.right, expr.left)
    lows = parts(require.with_expr(low), infer(low, scope), "max", lets, scope)
    highs = parts(require.with_expr(high), infer(high, scope), "min", lets, scope)
    return [Inequality(less=a, more=b, unit=unit) for a in lows for b in highs]


def parts(formula: Formula, type_: Type, kind: str, lets: Parts, scope: Scope) -> list[Formula]:
    """The expressions whose max (or min: `kind`) the formula is; itself where it is neither."""
    if not type_.extreme:
        return [formula]
    expr = formula.expr
    if type_.extreme != kind:
        wrong = f"{type_.extreme} on this side means 'at least one of'"
        hint = "that is not one set of rows; choose one of the arguments"
        raise SyntaxFault(f"{wrong}, which is not linear", expr.at, hint=hint)
    if isinstance(expr, Name):
        return list(lets[expr.id])
    if not isinstance(expr, Call):
        raise SyntaxFault(f"{kind} may not stand inside arithmetic", expr.at)
    result: list[Formula] = []
    for arg in expr.args:
        result.extend(parts(formula.with_expr(arg), infer(arg, scope), kind, lets, scope))
        if len(result) > MAX_ROWS:
            raise SyntaxFault(f"{kind} has more than {MAX_ROWS} arguments", expr.at)
    return result
