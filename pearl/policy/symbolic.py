"""A policy's rows before any scenario: linear forms whose coefficients are polynomials of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from pearl.core.cluster import Zone
from pearl.errors import Fault, PolicyError
from pearl.policy.algebra import MAKESPAN, Form
from pearl.policy.evaluate import EvaluationError, Evaluator, check_size
from pearl.policy.formula import Formula
from pearl.policy.model import Let, Param, RuleSpec, TierSpec
from pearl.policy.polynomial import Polynomial
from pearl.policy.syntax import Call, IfElse, render

SLOWER_ONLY = "only a slower batch could meet this"
SLOWER_HINT = "T may be bounded from above, as in T <= 10min, and minimised"
ANY_NODE = "node"
"""Stands for the node of a rule that is repeated for every node."""

SymbolicForm = Form[Polynomial]
SymbolicValue = Polynomial | SymbolicForm | bool


@dataclass(frozen=True, slots=True)
class SymbolicNumbers:
    """Names stand for themselves; params and constant lets for their values."""

    values: dict[str, SymbolicValue] = field(default_factory=dict)

    def number(self, value: Fraction) -> Polynomial:
        """A literal."""
        return Polynomial.number(value)

    def constant(self, name: str) -> Polynomial:
        """A scalar of the vocabulary."""
        return Polynomial.symbol(name)

    def entry(self, map_name: str, key: str) -> Polynomial:
        """An entry of a map."""
        return Polynomial.symbol(f"{map_name}[{key}]")

    def defined(self, name: str) -> SymbolicValue | None:
        """A param or let."""
        return self.values.get(name)

    def chosen(self, expr: Call | IfElse, evaluate: Evaluator[Polynomial]) -> Polynomial:
        """A constant max, min, abs or if: computed where its arguments are numbers, else as written."""
        if isinstance(expr, Call):
            found = [evaluate.constant(arg).constant for arg in expr.args]
            numbers = [value for value in found if value is not None]
            if len(numbers) == len(found):
                return Polynomial.number(extreme(expr.function, numbers))
        return Polynomial.symbol(f"({render(expr)})")

    def holds(self, op: str, left: Polynomial, right: Polynomial) -> bool:
        """A condition has no value yet; only `when`, `enabled` and ifs hold one, and none is evaluated here."""
        raise EvaluationError(f"{left} {op} {right} has no value before a scenario", 0)


def extreme(function: str, values: list[Fraction]) -> Fraction:
    """max, min or abs."""
    match function:
        case "max":
            return max(values)
        case "min":
            return min(values)
        case _:
            return abs(values[0])


class Symbolic:
    """A policy whose lets are evaluated symbolically; raises PolicyError where one has no value."""

    def __init__(self, params: Iterable[Param], lets: Iterable[Let]) -> None:
        self.numbers = SymbolicNumbers({param.name: Polynomial.number(param.value) for param in params})
        plain = Evaluator(self.numbers)
        for let in lets:
            if let.boolean:
                self.numbers.values[let.name] = True
            elif not let.parts:
                form = plain.at(let.formula)
                check_size(form, let.formula, _bits)
                self.numbers.values[let.name] = form

    def rule(self, rule: RuleSpec) -> Iterator[tuple[str, SymbolicForm]]:
        """Names and left sides of the rule's rows `<= 0`; a node stands for itself."""
        values = {"node": (ANY_NODE,), "zone": tuple(map(str, Zone))}.get(rule.foreach or "", ("",))
        for value in values:
            evaluate = Evaluator(self.numbers, {rule.foreach: value} if rule.foreach else {})
            for i, row in enumerate(rule.rows):
                yield row_name(rule, i, value), evaluate.at(row.less) - evaluate.at(row.more)

    def tier(self, tier: TierSpec) -> Iterator[SymbolicForm]:
        """The expressions whose maximum is minimised."""
        for part in tier.parts:
            form = Evaluator(self.numbers).at(part)
            yield -form if tier.maximize else form


def row_name(rule: RuleSpec, index: int, value: str) -> str:
    """`name`, `name[node-1]`, `name.2`, `name[node-1].2`."""
    name = f"{rule.name}[{value}]" if rule.foreach else rule.name
    return f"{name}.{index + 1}" if len(rule.rows) > 1 else name


def _bits(value: Polynomial) -> int:
    return max((bits(number) for number in value.terms.values()), default=0)


def bits(value: Fraction) -> int:
    """Length of a fraction's longer half in bits."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def makespan_faults(
    params: Iterable[Param], lets: Iterable[Let], rules: Iterable[RuleSpec], tiers: Iterable[TierSpec]
) -> list[Fault]:
    """Rules and tiers that ask for a larger T, and expressions without a value."""
    try:
        symbolic = Symbolic(params, lets)
    except PolicyError as e:
        return list(e.faults)
    faults: list[Fault] = []
    for rule in rules:
        faults.extend(_slower(rule.require, (form for _, form in symbolic.rule(rule))))
    for tier in tiers:
        faults.extend(_slower(tier.parts[0], symbolic.tier(tier)))
    return faults


def _slower(formula: Formula, forms: Iterator[SymbolicForm]) -> list[Fault]:
    try:
        wrong = any(MAKESPAN in form.terms and form.terms[MAKESPAN].negative for form in forms)
    except PolicyError as e:
        return list(e.faults)
    return [formula.fault(SLOWER_ONLY, 0, hint=SLOWER_HINT)] if wrong else []
