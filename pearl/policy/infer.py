"""Types of expressions: unit, degree (constant < affine in counts and T < tabulated in one count), and use of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import assert_never

from pearl.core.cluster import Role, Zone
from pearl.documents import nearest
from pearl.policy.parser import SyntaxFault
from pearl.policy.syntax import (
    ARITHMETIC,
    COMPARISONS,
    Binary,
    Bool,
    Call,
    Expr,
    IfElse,
    Index,
    Keyword,
    Name,
    Number,
    Unary,
    render,
)
from pearl.policy.units import PLAIN, UNITS, Unit
from pearl.policy.vocabulary import CONSTANT_FUNCTIONS, FUNCTIONS, LOOP_VARIABLES, MODE_WORDS, VOCABULARY, Kind


class Degree(IntEnum):
    """How an expression depends on what is decided."""

    CONSTANT = 0
    AFFINE = 1
    TABULATED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """What is known of an expression before any scenario."""

    unit: Unit = PLAIN
    degree: Degree = Degree.CONSTANT
    boolean: bool = False
    zero: bool = False
    """The literal 0, which fits every unit."""
    table: bool = False
    """A table times a constant: what may be divided by."""
    extreme: str = ""
    """`max` or `min` of expressions that are not all constant."""
    broken: bool = False
    """A faulty definition, already reported: fits everywhere."""

    @property
    def constant(self) -> bool:
        """Whether it is a number that no decision changes."""
        return self.degree is Degree.CONSTANT and not self.boolean


BROKEN = Type(broken=True)


@dataclass(kw_only=True)
class Scope:
    """Names that an expression may read, and which of them were read."""

    params: Mapping[str, Type] = field(default_factory=dict)
    lets: dict[str, Type] = field(default_factory=dict)
    forecasts: Mapping[str, Unit | None] = field(default_factory=dict)
    """Unit of each forecast; None where its declaration is faulty."""
    used: set[tuple[str, str]] = field(default_factory=set)
    """(section, name); also (`vocabulary`, name) and (`dimension`, `node`)."""
    loop: str | None = None
    """The variable that `foreach` binds."""

    def known(self) -> set[str]:
        """Every name that stands for a number."""
        loops = {self.loop} if self.loop else set()
        terms = {name for name, term in VOCABULARY.items() if term.kind is not Kind.MAP}
        return terms | set(self.params) | set(self.lets) | loops


def infer(expr: Expr, scope: Scope) -> Type:
    """The type of an expression; raises SyntaxFault at the first fault."""
    match expr:
        case Number():
            return Type(unit=expr.unit, zero=expr.value == 0)
        case Bool():
            return Type(boolean=True)
        case Name():
            return _name(expr, scope)
        case Index():
            return _index(expr, scope)
        case Call():
            return _call(expr, scope)
        case Unary():
            return _unary(expr, scope)
        case Binary():
            return _binary(expr, scope)
        case IfElse():
            return _if_else(expr, scope)
    assert_never(expr)


def _binary(expr: Binary, scope: Scope) -> Type:
    if expr.op in ARITHMETIC:
        return _arithmetic(expr, scope)
    if expr.op in COMPARISONS:
        return _comparison(expr, scope)
    return _logical(expr, (expr.left, expr.right), scope)


def _name(expr: Name, scope: Scope) -> Type:
    name = expr.id
    if name in scope.params:
        scope.used.add(("params", name))
        return scope.params[name]
    if name in scope.lets:
        scope.used.add(("let", name))
        return scope.lets[name]
    term = VOCABULARY.get(name)
    if term is None:
        return _odd_name(expr, scope)
    scope.used.add(("vocabulary", name))
    match term.kind:
        case Kind.SCALAR:
            return Type(unit=term.unit)
        case Kind.COUNT | Kind.MAKESPAN:
            return Type(unit=term.unit, degree=Degree.AFFINE)
        case Kind.TABLE:
            return Type(unit=term.unit, degree=Degree.TABULATED, table=True)
        case Kind.MAP:
            raise SyntaxFault(f"{name!r} is a map", expr.at, expected=f"a key, such as {name}[{_example_key(name)}]")
        case Kind.FUNCTION:
            raise SyntaxFault(f"{name!r} is a function", expr.at, expected=f"arguments, such as {name}(role=decode)")
    assert_never(term.kind)


def _odd_name(expr: Name, scope: Scope) -> Type:
    name = expr.id
    if name in UNITS:
        return Type(unit=UNITS[name].unit)
    if name in MODE_WORDS:
        raise SyntaxFault(f"mode {name!r} may only stand in `when`", expr.at, hint=f"give the rule `when: {name}`")
    if name in scope.forecasts:
        raise SyntaxFault(f"{name!r} is a forecast", expr.at, hint=f"read it as forecast[{name!r}]")
    if name in LOOP_VARIABLES:
        hint = f"it selects workers, as in count({name}={name}), in a rule with `foreach: {name}`"
        raise SyntaxFault(f"{name!r} is not a number", expr.at, hint=hint)
    raise SyntaxFault(f"unknown name {name!r}", expr.at, hint=nearest(name, scope.known()))


def _example_key(name: str) -> str:
    keys = VOCABULARY[name].keys
    return repr(str(keys[0])) if keys else "'name'"


def _index(expr: Index, scope: Scope) -> Type:
    if expr.map == "forecast":
        return _forecast(expr, scope)
    term = VOCABULARY.get(expr.map)
    if term is None or term.kind is not Kind.MAP:
        maps = [name for name, t in VOCABULARY.items() if t.kind is Kind.MAP]
        raise SyntaxFault(f"{expr.map!r} is not a map", expr.at, hint=nearest(expr.map, maps))
    scope.used.add(("vocabulary", expr.map))
    if expr.variable:
        if expr.key != scope.loop or (expr.map, expr.key) != ("price", "zone"):
            raise SyntaxFault(f"key {expr.key} is not quoted", expr.at, expected=f"{expr.map}[{expr.key!r}]")
    elif expr.key not in term.keys:
        raise SyntaxFault(f"{expr.map} has no key {expr.key!r}", expr.at, hint=nearest(expr.key, map(str, term.keys)))
    return Type(unit=term.unit)


def _forecast(expr: Index, scope: Scope) -> Type:
    if expr.variable:
        raise SyntaxFault(f"key {expr.key} is not quoted", expr.at, expected=f"forecast[{expr.key!r}]")
    if expr.key not in scope.forecasts:
        hint = nearest(expr.key, scope.forecasts) or "declare it under `forecast:`"
        raise SyntaxFault(f"unknown forecast {expr.key!r}", expr.at, hint=hint)
    scope.used.add(("forecast", expr.key))
    unit = scope.forecasts[expr.key]
    return BROKEN if unit is None else Type(unit=unit)


def _call(expr: Call, scope: Scope) -> Type:
    if expr.function not in FUNCTIONS:
        raise SyntaxFault(f"unknown function {expr.function!r}", expr.at, hint=nearest(expr.function, FUNCTIONS))
    if expr.function not in CONSTANT_FUNCTIONS:
        return _selection(expr, scope)
    if expr.keywords:
        raise SyntaxFault(f"{expr.function} takes no {expr.keywords[0].name}=", expr.keywords[0].at)
    types = [infer(arg, scope) for arg in expr.args]
    if expr.function == "abs":
        if len(types) != 1:
            raise SyntaxFault("abs takes one argument", expr.at, expected="abs(x)")
        _need_constant(types, expr, "abs of a quantity that the decision chooses is not linear")
        return replace(types[0], table=False)
    if len(types) < 2:
        raise SyntaxFault(f"{expr.function} takes two or more arguments", expr.at)
    return _extreme(expr, types)


def _extreme(expr: Call, types: list[Type]) -> Type:
    joint = types[0]
    for arg, type_ in zip(expr.args, types, strict=True):
        joint = _same_unit(joint, type_, arg.at, f"arguments of {expr.function}")
    degree = max(t.degree for t in types)
    if degree is Degree.CONSTANT:
        return replace(joint, table=False)
    other = [t.extreme for t in types if t.extreme and t.extreme != expr.function]
    if other:
        raise SyntaxFault(f"{other[0]} inside {expr.function} is not linear", expr.at, hint="write separate rules")
    return Type(unit=joint.unit, degree=degree, extreme=expr.function)


def _selection(expr: Call, scope: Scope) -> Type:
    scope.used.add(("vocabulary", expr.function))
    if any(word.name == "node" for word in expr.keywords):
        scope.used.add(("dimension", "node"))
    if expr.args:
        raise SyntaxFault(
            f"{expr.function} takes keywords only", expr.at, expected=f"{expr.function}(role=decode, zone=reserved)"
        )
    names = [word.name for word in expr.keywords]
    for word in expr.keywords:
        if names.count(word.name) > 1:
            raise SyntaxFault(f"{word.name}= is given twice", word.at)
        _keyword(expr.function, word, scope)
    return Type(degree=Degree.AFFINE)


def _keyword(function: str, word: Keyword, scope: Scope) -> None:
    known = VOCABULARY[function].keys
    if word.name not in known:
        raise SyntaxFault(f"{function} has no {word.name}=", word.at, hint=nearest(word.name, known))
    if word.value == scope.loop and not word.quoted:
        if word.name != scope.loop:
            raise SyntaxFault(f"{word.name}= cannot be a {scope.loop}", word.at)
        return
    match word.name:
        case "node":
            if not word.quoted:
                hint = "quote a node's name, or bind the variable with `foreach: node`"
                raise SyntaxFault(f"unknown variable {word.value!r}", word.at, hint=hint)
        case "role" | "zone":
            values = [str(v) for v in (Role if word.name == "role" else Zone)]
            if word.value not in values:
                raise SyntaxFault(f"unknown {word.name} {word.value!r}", word.at, hint=nearest(word.value, values))


def _unary(expr: Unary, scope: Scope) -> Type:
    if expr.op == "not":
        return _logical(expr, (expr.operand,), scope)
    operand = infer(expr.operand, scope)
    _need_number((operand,), expr)
    _no_extreme(operand, expr)
    return operand


def _logical(expr: Expr, operands: Iterable[Expr], scope: Scope) -> Type:
    word = expr.op if isinstance(expr, (Unary, Binary)) else "if"
    for operand in operands:
        type_ = infer(operand, scope)
        if not type_.boolean and not type_.broken:
            raise SyntaxFault(f"{word!r} needs a condition", operand.at, expected="a comparison, true or false")
        if type_.degree is not Degree.CONSTANT:
            hint = "only `and` may join rows, at the top of `require`" if word != "and" else None
            raise SyntaxFault(f"{word!r} may only join constant conditions here", expr.at, hint=hint)
    return Type(boolean=True)


def _comparison(expr: Binary, scope: Scope) -> Type:
    left, right = infer(expr.left, scope), infer(expr.right, scope)
    _need_number((left, right), expr)
    _same_unit(left, right, expr.at, f"the two sides of {expr.op}")
    return Type(boolean=True, degree=max(left.degree, right.degree))


def _if_else(expr: IfElse, scope: Scope) -> Type:
    _logical(expr, (expr.condition,), scope)
    then, other = infer(expr.then, scope), infer(expr.other, scope)
    _need_number((then, other), expr)
    _need_constant((then, other), expr, "both values of an if must be constant")
    return replace(_same_unit(then, other, expr.at, "the two values of an if"), table=False, zero=False)


def _arithmetic(expr: Binary, scope: Scope) -> Type:
    left, right = infer(expr.left, scope), infer(expr.right, scope)
    if left.broken or right.broken:
        return BROKEN
    _need_number((left, right), expr)
    _no_extreme(left, expr)
    _no_extreme(right, expr)
    match expr.op:
        case "+" | "-":
            joint = _same_unit(left, right, expr.at, f"the two sides of {expr.op}")
            return Type(unit=joint.unit, degree=max(left.degree, right.degree), zero=left.zero and right.zero)
        case "*":
            return _product(expr, left, right)
        case _:
            return _quotient(expr, left, right)


def _product(expr: Binary, left: Type, right: Type) -> Type:
    if not left.constant and not right.constant:
        what = f"{render(expr.left, 6)} * {render(expr.right, 7)}"
        raise SyntaxFault(f"{what} is not linear", expr.at, expected="a constant on one side", hint=_product_hint(expr))
    return Type(
        unit=left.unit * right.unit,
        degree=max(left.degree, right.degree),
        table=left.table or right.table,
        zero=left.zero or right.zero,
    )


def _product_hint(expr: Binary) -> str:
    if any(isinstance(side, Name) and side.id == "T" for side in (expr.left, expr.right)):
        return "to bound a rate over the makespan, divide the budget by T_prefill and T_decode instead, in two rows"
    return "fix one factor as a param, or bound each factor in a rule of its own"


def _quotient(expr: Binary, left: Type, right: Type) -> Type:
    unit = left.unit / right.unit
    if right.zero:
        raise SyntaxFault("division by zero", expr.at)
    if right.constant:
        return Type(unit=unit, degree=left.degree, table=left.table, zero=left.zero)
    if right.table and left.constant:
        return Type(unit=unit, degree=Degree.TABULATED)
    by = render(expr.right, 7)
    if isinstance(expr.right, Name) and expr.right.id == "T":
        hint = "divide by T_prefill and by T_decode instead, in two rows"
    else:
        hint = "multiply both sides by it where that leaves a constant factor, or divide a constant by a table"
    raise SyntaxFault(f"division by {by} is not linear", expr.at, hint=hint)


def _need_number(types: Iterable[Type], expr: Expr) -> None:
    if any(t.boolean for t in types):
        word = expr.op if isinstance(expr, (Unary, Binary)) else "if"
        raise SyntaxFault(f"{word!r} needs numbers, not conditions", expr.at)


def _need_constant(types: Iterable[Type], expr: Expr, message: str) -> None:
    if any(t.degree is not Degree.CONSTANT or t.boolean for t in types if not t.broken):
        raise SyntaxFault(message, expr.at)


def _no_extreme(type_: Type, expr: Expr) -> None:
    if type_.extreme:
        where = "`max(...) <= c`, `c >= max(...)`, `min(...) >= c`, `minimize: max(...)` or `maximize: min(...)`"
        raise SyntaxFault(f"{type_.extreme} may not stand inside arithmetic", expr.at, expected=where)


def _same_unit(left: Type, right: Type, at: int, what: str) -> Type:
    if left.broken or right.broken:
        return right if left.broken else left
    if left.boolean or right.boolean:
        raise SyntaxFault(f"{what} must be numbers", at)
    if left.zero:
        return replace(right, zero=right.zero)
    if right.zero or left.unit == right.unit:
        return left
    raise SyntaxFault(f"{what} have different units: {left.unit} and {right.unit}", at, expected="the same unit")
