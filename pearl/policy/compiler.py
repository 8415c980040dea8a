"""Reading of single expressions of a policy document: parsed, typed, and every fault collected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pearl.core.facts import Cooldown
from pearl.core.source import Span
from pearl.errors import Fault
from pearl.policy.formula import Formula, read_formula
from pearl.policy.infer import Scope, Type, infer
from pearl.policy.located import Node
from pearl.policy.parser import SyntaxFault
from pearl.policy.quantities import literal
from pearl.policy.syntax import Bool
from pearl.policy.units import SECOND, Unit

_COOLDOWN_STEPS = re.compile(r"\s*(\d{1,6})\s*steps?\s*\Z")


@dataclass(kw_only=True)
class Compiler:
    """Collects faults while it reads one merged policy; `lines` gives each file's text, line by line."""

    lines: Mapping[str, list[str]]
    faults: list[Fault] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)
    let_parts: dict[str, tuple[Formula, ...]] = field(default_factory=dict)

    def formula(self, node: Node) -> Formula | None:
        """Parse a scalar; None after a fault."""
        lines = self.lines.get(node.span.file, [])
        line = lines[node.span.line - 1] if node.span.line <= len(lines) else ""
        result = read_formula(node.value, node.span, line)
        if isinstance(result, Fault):
            self.faults.append(result)
            return None
        return result

    def report(self, formula: Formula, fault: SyntaxFault) -> None:
        """Record a fault at its place."""
        self.faults.append(formula.fault(fault.message, fault.at, expected=fault.expected, hint=fault.hint))

    def typed(self, node: Node | None) -> tuple[Formula, Type] | None:
        """Parse and type a scalar."""
        formula = self.formula(node) if node else None
        if formula is None:
            return None
        try:
            return formula, infer(formula.expr, self.scope)
        except SyntaxFault as e:
            self.report(formula, e)
            return None

    def constant(self, node: Node | None, unit: Unit, what: str) -> Formula | None:
        """A constant expression of a unit."""
        pair = self.typed(node)
        if pair is None:
            return None
        formula, type_ = pair
        if type_.broken:
            return formula
        if not type_.constant:
            self._expected(formula, f"{what} must be a constant", "numbers that no decision changes")
            return None
        if type_.unit != unit and not type_.zero:
            self._expected(formula, f"{what} is in {type_.unit}", _unit_words(unit))
            return None
        return formula

    def _expected(self, formula: Formula, message: str, expected: str, hint: str | None = None) -> None:
        self.faults.append(formula.fault(message, 0, expected=expected, hint=hint))

    def condition(self, node: Node) -> Formula | None:
        """A constant condition."""
        pair = self.typed(node)
        if pair is None:
            return None
        formula, type_ = pair
        if not type_.broken and (not type_.boolean or type_.degree):
            self._expected(formula, "not a constant condition", "true, false or a comparison of constants")
            return None
        return formula

    def literal(self, node: Node | None, unit: Unit | None, what: str) -> Fraction | None:
        """A number of literals only, in base units."""
        pair = self.literal_and_unit(node)
        if pair is None or node is None:
            return None
        value, found = pair
        if unit is not None and found != unit and value:
            fault = Fault(message=f"{what} is in {found}", span=node.span, expected=_unit_words(unit))
            self.faults.append(fault)
            return None
        return value

    def literal_and_unit(self, node: Node | None) -> tuple[Fraction, Unit] | None:
        """A number of literals only, and its unit."""
        formula = self.formula(node) if node else None
        if formula is None:
            return None
        try:
            return literal(formula.expr)
        except SyntaxFault as e:
            self.report(formula, e)
            return None

    def cooldown(self, node: Node | None) -> Cooldown:
        """`2 steps`, `30s`, or a list of both."""
        steps, seconds = 0, 0.0
        if node is None or node.value is None:
            return Cooldown()
        for item in node.value if isinstance(node.value, list) else [node]:
            counted = _COOLDOWN_STEPS.match(str(item.value))
            if counted:
                steps = max(steps, int(counted[1]))
                continue
            value = self.literal(item, SECOND, "cooldown")
            if value is not None:
                seconds = max(seconds, float(value))
        return Cooldown(steps=steps, seconds=seconds)

    def constant_or(self, node: Node | None, unit: Unit, what: str, default: Any) -> Formula:
        """A constant expression, or a default where the key is absent."""
        found = self.constant(node, unit, what) if node is not None and node.value is not None else None
        if found is not None:
            return found
        span = node.span if node else Span(file="", line=1)
        formula = read_formula(default, span, "")
        if isinstance(formula, Fault):
            raise AssertionError(f"default {default!r} does not parse")
        return formula

    def condition_or(self, node: Node | None, default: bool) -> Formula:
        """A constant condition, or a default where the key is absent."""
        found = self.condition(node) if node is not None and node.value is not None else None
        return found or Formula(expr=Bool(value=default), text=str(default).lower(), span=Span(file="", line=1))


def _unit_words(unit: Unit) -> str:
    return "a plain number" if unit.plain else f"a value in {unit}"
