"""Numbers that are known as soon as a policy is read: expressions of literals only."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from operator import add, mul, sub, truediv

from pearl.policy.infer import Scope, infer
from pearl.policy.parser import SyntaxFault
from pearl.policy.syntax import Binary, Call, Expr, Name, Number, Unary, walk
from pearl.policy.units import UNITS, Unit

_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {"+": add, "-": sub, "*": mul, "/": truediv}
_EXTREMES: dict[str, Callable[..., Fraction]] = {"max": max, "min": min, "abs": abs}


def literal(expr: Expr) -> tuple[Fraction, Unit]:
    """Value in base units, and unit; raises SyntaxFault where a name other than a unit is read."""
    for part in walk(expr):
        if not isinstance(part, (Number, Unary, Binary, Name, Call)):
            raise SyntaxFault("not a literal", part.at, expected="numbers with units only")
        if isinstance(part, Name) and part.id not in UNITS:
            raise SyntaxFault(f"{part.id!r} may not be read here", part.at, expected="numbers with units only")
    type_ = infer(expr, Scope())
    if not type_.constant:
        raise SyntaxFault("not a number", expr.at, expected="numbers with units only")
    return _value(expr), type_.unit


def _value(expr: Expr) -> Fraction:
    match expr:
        case Number():
            return expr.value
        case Name():
            return UNITS[expr.id].factor
        case Unary():
            return -_value(expr.operand)
        case Call():
            return _EXTREMES[expr.function](*map(_value, expr.args))
        case Binary():
            left, right = _value(expr.left), _value(expr.right)
            if expr.op == "/" and not right:
                raise SyntaxFault("division by zero", expr.at)
            return _OPERATIONS[expr.op](left, right)
        case _:
            raise SyntaxFault("not a literal", expr.at, expected="numbers with units only")
