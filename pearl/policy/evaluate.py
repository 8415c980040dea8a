"""Evaluation of checked expressions, over any coefficient type: exact fractions at binding, polynomials for display."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Generic, Protocol, TypeVar, assert_never

from pearl.core.cluster import Role, Zone
from pearl.errors import PolicyError
from pearl.policy.algebra import MAKESPAN, C, Coefficient, CountAtom, Form, NotLinearError, TableAtom, Tally
from pearl.policy.formula import Formula
from pearl.policy.syntax import Binary, Bool, Call, Expr, IfElse, Index, Name, Number, Unary
from pearl.policy.units import UNITS
from pearl.policy.vocabulary import VOCABULARY, Kind

T = TypeVar("T", bound=Coefficient)

NAMED_COUNTS: Mapping[str, CountAtom] = {
    "N_P": CountAtom(Tally.COUNT, Role.PREFILL),
    "N_D": CountAtom(Tally.COUNT, Role.DECODE),
    "N_C": CountAtom(Tally.COUNT, Role.COLOCATED),
    "role_changes": CountAtom(Tally.ROLE_CHANGES),
    "adds": CountAtom(Tally.ADDS),
    "removes": CountAtom(Tally.REMOVES),
    "borrowed": CountAtom(Tally.BORROWED),
}
"""What each count of the vocabulary counts."""


class EvaluationError(Exception):
    """An expression that has no value under the facts given."""

    def __init__(self, message: str, at: int, *, hint: str | None = None, missing: bool = False) -> None:
        super().__init__(message)
        self.message, self.at, self.hint, self.missing = message, at, hint, missing


class MissingFactError(LookupError):
    """A name that the scenario gives no value; `hint` says what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class MissingFactPolicyError(PolicyError):
    """The same, at its place in the policy."""


@contextmanager
def _placed(formula: Formula) -> Iterator[None]:
    try:
        yield
    except EvaluationError as e:
        kind = MissingFactPolicyError if e.missing else PolicyError
        raise kind(formula.fault(e.message, e.at, hint=e.hint)) from None


class Numbers(Protocol[C]):
    """Where names get their values."""

    def number(self, value: Fraction) -> C:
        """A literal."""
        ...

    def constant(self, name: str) -> C:
        """A scalar of the vocabulary; raises MissingFactError where there is none."""
        ...

    def entry(self, map_name: str, key: str) -> C:
        """An entry of a map, or a forecast; raises MissingFactError."""
        ...

    def defined(self, name: str) -> C | Form[C] | bool | None:
        """A param or let; None where the name is neither. Raises MissingFactError where a let has no value."""
        ...

    def chosen(self, expr: Call | IfElse, evaluate: Evaluator[C]) -> C:
        """A constant max, min, abs or if."""
        ...

    def holds(self, op: str, left: C, right: C) -> bool:
        """A comparison of constants."""
        ...


class Evaluator(Generic[C]):
    """Evaluates expressions; `loop` binds the variable of `foreach`."""

    def __init__(self, numbers: Numbers[C], loop: Mapping[str, str] | None = None) -> None:
        self.numbers = numbers
        self.loop = loop or {}
        self._one = numbers.number(Fraction(1))
        self._zero = numbers.number(Fraction(0))

    def at(self, formula: Formula) -> Form[C]:
        """A number, as a linear form; raises PolicyError at the formula's place."""
        with _placed(formula):
            return self.form(formula.expr)

    def constant_at(self, formula: Formula) -> C:
        """A constant; raises PolicyError at the formula's place."""
        with _placed(formula):
            return self.constant(formula.expr)

    def truth_at(self, formula: Formula) -> bool:
        """A constant condition; raises PolicyError at the formula's place."""
        with _placed(formula):
            return self.truth(formula.expr)

    def form(self, expr: Expr) -> Form[C]:
        """A number, as a linear form."""
        return self._wrapped(self._number(expr))

    def constant(self, expr: Expr) -> C:
        """A number that no decision changes."""
        value = self._number(expr)
        if not isinstance(value, Form):
            return value
        if value.terms:
            raise EvaluationError("not a constant", expr.at)
        return value.constant

    def truth(self, expr: Expr) -> bool:
        """A constant condition."""
        value = self.value(expr)
        if not isinstance(value, bool):
            raise EvaluationError("a number where a condition is needed", expr.at)
        return value

    def value(self, expr: Expr) -> C | Form[C] | bool:
        """Any expression; raises EvaluationError."""
        match expr:
            case Number():
                return self.numbers.number(expr.value)
            case Bool():
                return expr.value
            case Name():
                return self._name(expr)
            case Index():
                return self._entry(expr)
            case Call():
                return self._call(expr)
            case Unary():
                return not self.truth(expr.operand) if expr.op == "not" else -self._number(expr.operand)
            case Binary():
                return self._binary(expr)
            case IfElse():
                return self.numbers.chosen(expr, self)
        assert_never(expr)

    def _name(self, expr: Name) -> C | Form[C] | bool:
        try:
            defined = self.numbers.defined(expr.id)
        except MissingFactError as e:
            raise EvaluationError(e.message, expr.at, hint=e.hint, missing=True) from None
        if defined is not None:
            return defined
        term = VOCABULARY.get(expr.id)
        if term is None:
            return self.numbers.number(UNITS[expr.id].factor) if expr.id in UNITS else self._looked_up(expr)
        match term.kind:
            case Kind.COUNT:
                return Form(self._zero, {NAMED_COUNTS[expr.id]: self._one})
            case Kind.MAKESPAN:
                return Form(self._zero, {MAKESPAN: self._one})
            case Kind.TABLE:
                return Form(self._zero, {TableAtom(expr.id): self._one})
            case _:
                return self._looked_up(expr)

    def _looked_up(self, expr: Name) -> C:
        try:
            return self.numbers.constant(expr.id)
        except MissingFactError as e:
            raise EvaluationError(e.message, expr.at, hint=e.hint, missing=True) from None

    def _entry(self, expr: Index) -> C:
        key = self.loop[expr.key] if expr.variable else expr.key
        try:
            return self.numbers.entry(expr.map, key)
        except MissingFactError as e:
            raise EvaluationError(e.message, expr.at, hint=e.hint, missing=True) from None

    def _call(self, expr: Call) -> C | Form[C]:
        if expr.function not in ("count", "exposure"):
            return self.numbers.chosen(expr, self)
        words = {
            word.name: self.loop[word.value] if not word.quoted and word.value in self.loop else word.value
            for word in expr.keywords
        }
        role, zone = words.get("role"), words.get("zone")
        atom = CountAtom(
            Tally(expr.function), Role(role) if role else None, Zone(zone) if zone else None, words.get("node")
        )
        return Form(self._zero, {atom: self._one})

    def _binary(self, expr: Binary) -> C | Form[C] | bool:
        match expr.op:
            case "and":
                return self.truth(expr.left) and self.truth(expr.right)
            case "or":
                return self.truth(expr.left) or self.truth(expr.right)
            case "+" | "-" | "*" | "/":
                return self._arithmetic(expr)
            case _:
                return self.numbers.holds(expr.op, self.constant(expr.left), self.constant(expr.right))

    def _arithmetic(self, expr: Binary) -> C | Form[C]:
        left, right = self._number(expr.left), self._number(expr.right)
        try:
            if isinstance(left, Form) or isinstance(right, Form):
                return _apply(expr.op, self._wrapped(left), self._wrapped(right))
            return _apply(expr.op, left, right)
        except ZeroDivisionError:
            raise EvaluationError("division by zero", expr.at) from None
        except NotLinearError as e:
            raise EvaluationError(f"not linear: {e}", expr.at) from None

    def _number(self, expr: Expr) -> C | Form[C]:
        value = self.value(expr)
        if isinstance(value, bool):
            raise EvaluationError("a condition where a number is needed", expr.at)
        return value

    def _wrapped(self, value: C | Form[C]) -> Form[C]:
        return value if isinstance(value, Form) else Form(value)


def _apply(op: str, left: T, right: T) -> T:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right


MAX_BITS = 4096
"""Numbers longer than this are refused: a chain of squares doubles its digits with every step."""


def check_size(form: Form[C], formula: Formula, size: Callable[[C], int]) -> None:
    """Refuse a metric whose numbers have outgrown every quantity; raises PolicyError."""
    if max(size(value) for value in (form.constant, *form.terms.values())) > MAX_BITS:
        raise PolicyError(formula.fault("number is too large", 0, hint="check the units, and products of `let`s"))
