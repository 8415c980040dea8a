"""The expression grammar's tree; every node knows where in its text it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import assert_never

from pearl.policy.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A literal in its base unit; `text` is how it was written."""

    value: Fraction
    unit: Unit
    text: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bool:
    """`true` or `false`."""

    value: bool
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name: of the vocabulary, a param, a let or a loop variable."""

    id: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """`map['key']`, or `map[variable]` inside `foreach`."""

    map: str
    key: str
    variable: bool = False
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """`name=value` in a call; the value is a word or quoted text."""

    name: str
    value: str
    quoted: bool
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`function(args, keyword=word)`."""

    function: str
    args: tuple[Expr, ...] = ()
    keywords: tuple[Keyword, ...] = ()
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary:
    """`-x` or `not x`."""

    op: str
    operand: Expr
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """`x op y` with + - * / <= >= == < > and or; `at` is the operator's place."""

    op: str
    left: Expr
    right: Expr
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IfElse:
    """`then if condition else other`."""

    condition: Expr
    then: Expr
    other: Expr
    at: int = 0


Expr = Number | Bool | Name | Index | Call | Unary | Binary | IfElse

COMPARISONS = ("<=", ">=", "==", "<", ">")
ARITHMETIC = ("+", "-", "*", "/")
_LEVEL = {"or": 1, "and": 2, **dict.fromkeys(COMPARISONS, 4), "+": 5, "-": 5, "*": 6, "/": 6}


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct parts of an expression."""
    match expr:
        case Number() | Bool() | Name() | Index():
            return ()
        case Call():
            return expr.args
        case Unary():
            return (expr.operand,)
        case Binary():
            return (expr.left, expr.right)
        case IfElse():
            return (expr.condition, expr.then, expr.other)
    assert_never(expr)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all its parts, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def render(expr: Expr, level: int = 0) -> str:
    """The expression as text, with no more parentheses than needed."""
    match expr:
        case Number():
            return expr.text
        case Bool():
            return str(expr.value).lower()
        case Name():
            return expr.id
        case Index():
            return f"{expr.map}[{expr.key if expr.variable else repr(expr.key)}]"
        case Call():
            words = [f"{k.name}={repr(k.value) if k.quoted else k.value}" for k in expr.keywords]
            return f"{expr.function}({', '.join([*map(render, expr.args), *words])})"
        case Unary():
            word = "not " if expr.op == "not" else expr.op
            return _wrapped(f"{word}{render(expr.operand, 7)}", 3 if expr.op == "not" else 7, level)
        case Binary():
            own = _LEVEL[expr.op]
            inner = f"{render(expr.left, own)} {expr.op} {render(expr.right, own + 1)}"
            return _wrapped(inner, own, level)
        case IfElse():
            inner = f"{render(expr.then, 1)} if {render(expr.condition, 1)} else {render(expr.other)}"
            return _wrapped(inner, 0, level)
    assert_never(expr)


def _wrapped(text: str, own: int, needed: int) -> str:
    return f"({text})" if own < needed else text
