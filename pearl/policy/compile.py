"""A merged policy document to a checked `Policy`: every expression parsed and typed, every fault collected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pearl.core.cluster import Mode
from pearl.core.facts import Cooldown
from pearl.core.source import Span
from pearl.errors import Fault
from pearl.policy.formula import Formula, read_formula
from pearl.policy.infer import BROKEN, Scope, Type, infer
from pearl.policy.located import Node
from pearl.policy.model import ForecastSpec, Let, Param, RuleSpec, SoftSpec, TierSpec, When
from pearl.policy.ordering import in_order
from pearl.policy.parser import SyntaxFault
from pearl.policy.quantities import literal
from pearl.policy.rows import conjuncts, parts, split
from pearl.policy.syntax import Bool, Call, Name, walk
from pearl.policy.units import PLAIN, SECOND, UNITS, Unit
from pearl.policy.vocabulary import FUNCTIONS, MODE_WORDS, SOURCES, VOCABULARY

_COOLDOWN_STEPS = re.compile(r"\s*(\d{1,6})\s*steps?\s*\Z")
ZERO_SECONDS = Fraction(0)


@dataclass(kw_only=True)
class Compiler:
    """Collects faults while it reads one merged policy; `lines` gives each file's text, line by line."""

    lines: Mapping[str, list[str]]
    faults: list[Fault] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)
    let_parts: dict[str, tuple[Formula, ...]] = field(default_factory=dict)

    # -- formulas ------------------------------------------------------------------------------------------------

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

    # -- definitions ---------------------------------------------------------------------------------------------

    def own_name(self, name: str, node: Node, taken: Mapping[str, str]) -> bool:
        """Whether a param or let may go by a name that nothing else has."""
        if name in VOCABULARY or name in FUNCTIONS or name in UNITS or name in MODE_WORDS or name in ("node", "zone"):
            kind = "a unit" if name in UNITS else "a word of the language"
            self.faults.append(Fault(message=f"{name!r} is {kind}", span=node.key_span, hint="choose another name"))
            return False
        if name in taken:
            message = f"{name!r} is also a {taken[name]}"
            self.faults.append(Fault(message=message, span=node.key_span, hint="choose another name"))
            return False
        return True

    def params(self, section: Node | None) -> tuple[Param, ...]:
        """The params; their types enter the scope."""
        result: list[Param] = []
        types: dict[str, Type] = {}
        for name, node in section.items() if section else ():
            types[name] = BROKEN
            if not self.own_name(name, node, {}):
                continue
            pair = self.literal_and_unit(node.get("value"))
            if pair is None:
                continue
            value, unit = pair
            types[name] = Type(unit=unit)
            self._bounds(name, node, value, unit)
            result.append(Param(name=name, value=value, unit=unit, span=node.key_span))
        self.scope.params = types
        return tuple(result)

    def _bounds(self, name: str, node: Node, value: Fraction, unit: Unit) -> None:
        for key, word in (("min", "at least"), ("max", "at most")):
            bound_node = node.get(key)
            if bound_node is None:
                continue
            bound = self.literal(bound_node, unit, f"{key} of {name}")
            if bound is None or (value >= bound if key == "min" else value <= bound):
                continue
            given, limit = (node.get("value"), bound_node)
            shown = given.value if given else ""
            fault = Fault(
                message=f"{name} = {shown} is out of range",
                span=given.span if given else node.span,
                expected=f"{word} {limit.value}",
            )
            self.faults.append(fault)

    def forecasts(self, section: Node | None) -> tuple[ForecastSpec, ...]:
        """The forecasts; their units enter the scope. Defaults are checked later, since they may read names."""
        units: dict[str, Unit | None] = {}
        result: list[ForecastSpec] = []
        for name, node in section.items() if section else ():
            units[name] = self._source_unit(node)
            unit = units[name]
            quantile = self.literal(node.get("quantile"), PLAIN, "quantile")
            if quantile is not None and not 0 <= quantile <= 1:
                span = node.value["quantile"].span
                self.faults.append(Fault(message="quantile is out of range", span=span, expected="0 to 1"))
            horizon = self.literal(node.get("horizon"), SECOND, "horizon")
            max_age = self.literal(node.get("max_age"), SECOND, "max_age")
            stale = node.get("on_stale")
            default_node = node.get("default")
            default = self.constant(default_node, unit, "default") if default_node and unit else None
            if unit is None:
                continue
            result.append(
                ForecastSpec(
                    name=name,
                    source=str(node.value["source"].value),
                    unit=unit,
                    quantile=0.5 if quantile is None else float(quantile),
                    on_stale=str(stale.value) if stale else "fail",
                    span=node.key_span,
                    horizon_s=None if horizon is None else float(horizon),
                    max_age_s=None if max_age is None else float(max_age),
                    default=default,
                )
            )
        self.scope.forecasts = units
        self._one_horizon(result)
        return tuple(result)

    def _source_unit(self, node: Node) -> Unit | None:
        source, declared = node.get("source"), node.get("unit")
        if source is None:
            return None
        known = SOURCES.get(str(source.value))
        if declared is None:
            if known is None:
                from pearl.documents import nearest

                hint = nearest(str(source.value), SOURCES) or "give `unit:` for a source of your own"
                message = f"unknown forecast source {str(source.value)!r}"
                expected = "a known source, or `unit:` for one of your own"
                self.faults.append(Fault(message=message, span=source.span, expected=expected, hint=hint))
                return None
            return known.unit
        pair = self.literal_and_unit(declared)
        unit = pair[1] if pair else None
        if unit is not None and known is not None and unit != known.unit:
            message = f"source {known.name} is in {known.unit}, not {unit}"
            self.faults.append(Fault(message=message, span=declared.span, hint="leave `unit:` out"))
            return None
        return unit

    def _one_horizon(self, forecasts: list[ForecastSpec]) -> None:
        first: dict[str, ForecastSpec] = {}
        for forecast in forecasts:
            other = first.setdefault(forecast.source, forecast)
            if other.horizon_s != forecast.horizon_s:
                message = f"forecasts {other.name!r} and {forecast.name!r} read {forecast.source} over two horizons"
                self.faults.append(Fault(message=message, span=forecast.span, hint="give both the same horizon"))

    def lets(self, section: Node | None) -> tuple[Let, ...]:
        """The metrics in an order in which each reads only earlier ones; their types enter the scope."""
        formulas: dict[str, Formula] = {}
        nodes = dict(section.items()) if section else {}
        for name, node in nodes.items():
            self.scope.lets[name] = BROKEN
            taken = dict.fromkeys(self.scope.params, "param")
            formula = self.formula(node) if self.own_name(name, node, taken) else None
            if formula:
                formulas[name] = formula
        reads = {name: _names(formula) & formulas.keys() for name, formula in formulas.items()}
        order, cycle = in_order(reads)
        if cycle:
            path = " -> ".join([*cycle, cycle[0]])
            span = nodes[cycle[0]].key_span
            self.faults.append(Fault(message=f"let: {path} reads itself", span=span, hint="break the cycle"))
        return tuple(let for name in order if (let := self._let(name, formulas[name])))

    def _let(self, name: str, formula: Formula) -> Let | None:
        try:
            type_ = infer(formula.expr, self.scope)
            pieces = parts(formula, type_, type_.extreme, self.let_parts, self.scope) if type_.extreme else []
            if type_.boolean and type_.degree:
                raise SyntaxFault("a let cannot be a row", formula.expr.at, hint="write it under constraints")
        except SyntaxFault as e:
            self.report(formula, e)
            return None
        self.scope.lets[name] = type_
        self.let_parts[name] = tuple(pieces)
        return Let(
            name=name,
            formula=formula,
            unit=type_.unit,
            constant=type_.constant,
            boolean=type_.boolean,
            parts=tuple(pieces),
        )

    # -- rules and tiers -----------------------------------------------------------------------------------------

    def rules(self, section: Node | None) -> tuple[RuleSpec, ...]:
        """The rules that are not disabled."""
        result: list[RuleSpec] = []
        for node in section.value if section and isinstance(section.value, list) else ():
            disabled = node.get("disabled")
            if disabled is not None and disabled.value is True:
                continue
            rule = self._rule(node)
            if rule:
                result.append(rule)
        return tuple(result)

    def _rule(self, node: Node) -> RuleSpec | None:
        name = str(node.value["name"].value)
        require_node = node.get("require")
        when = self._when(node.get("when"))
        if require_node is None:
            hint = "a rule that changes an inherited one must have its name"
            message = f"rule {name!r} requires nothing"
            self.faults.append(Fault(message=message, span=node.span, expected="'require'", hint=hint))
            return None
        foreach_node = node.get("foreach")
        foreach = str(foreach_node.value) if foreach_node and foreach_node.value else None
        self.scope.loop = foreach
        try:
            return self._rule_rows(node, name, require_node, when, foreach)
        finally:
            self.scope.loop = None

    def _rule_rows(
        self, node: Node, name: str, require_node: Node, when: When | None, foreach: str | None
    ) -> RuleSpec | None:
        require = self.formula(require_node)
        if require is None:
            return None
        try:
            rows = split(require, self.scope, self.let_parts)
        except SyntaxFault as e:
            self.report(require, e)
            return None
        self._loop_is_used(require, foreach, node)
        relaxable_node, message = node.get("relaxable"), node.get("message")
        relaxable = relaxable_node is None or bool(relaxable_node.value)
        soft_node = node.get("soft")
        if soft_node is not None and soft_node.value is not None and not relaxable:
            hint = "remove soft, or say relaxable: true"
            fault = Fault(message=f"rule {name!r} is soft and not relaxable", span=soft_node.key_span, hint=hint)
            self.faults.append(fault)
        return RuleSpec(
            name=name,
            require=require,
            rows=rows,
            when=when or When(),
            foreach=foreach,
            soft=self._soft(soft_node, rows[0].unit) if rows else None,
            relaxable=relaxable,
            message=str(message.value) if message and message.value else "",
            span=require.span,
        )

    def _loop_is_used(self, require: Formula, foreach: str | None, node: Node) -> None:
        if foreach is None:
            return
        used = any(
            (isinstance(part, Call) and any(w.value == foreach and not w.quoted for w in part.keywords))
            or getattr(part, "variable", False)
            for part in walk(require.expr)
        )
        if not used:
            hint = f"as in count({foreach}={foreach})"
            span = node.value["foreach"].key_span
            self.faults.append(Fault(message=f"`require` never reads {foreach!r}", span=span, hint=hint))

    def _soft(self, node: Node | None, unit: Unit) -> SoftSpec | None:
        if node is None or node.value is None:
            return None
        penalty = self.constant(node.get("penalty"), SECOND, "penalty")
        limit = self.constant(node.get("max_violation"), PLAIN, "max_violation")
        per = self.constant(node.get("per"), unit, "per")
        return SoftSpec(penalty=penalty, max_violation=limit, per=per) if penalty else None

    def _when(self, node: Node | None) -> When | None:
        formula = self.formula(node) if node and node.value is not None else None
        if formula is None:
            return When()
        modes: set[str] = set()
        conditions: list[Formula] = []
        for expr in conjuncts(formula.expr):
            if isinstance(expr, Name) and expr.id in MODE_WORDS:
                modes.add(expr.id)
                continue
            try:
                type_ = infer(expr, self.scope)
                if not type_.broken and (not type_.boolean or type_.degree):
                    raise SyntaxFault("not a condition", expr.at, expected="a mode or a constant condition")
            except SyntaxFault as e:
                self.report(formula, _mode_fault(e))
                return None
            conditions.append(formula.with_expr(expr))
        mode = Mode(next(iter(modes))) if len(modes) == 1 else None
        return When(mode=mode, never=len(modes) > 1, conditions=tuple(conditions))

    def tiers(self, section: Node | None) -> tuple[TierSpec, ...]:
        """The objective's tiers."""
        nodes = section.value if section and isinstance(section.value, list) else []
        result = [tier for node in nodes if (tier := self._tier(node))]
        for name, node in _twice(nodes):
            self.faults.append(Fault(message=f"two tiers are called {name!r}", span=node.span))
        return tuple(result)

    def _tier(self, node: Node) -> TierSpec | None:
        name = str(node.value["name"].value)
        given = [key for key in ("minimize", "maximize") if node.get(key)]
        tolerance = self.literal(node.get("tolerance"), PLAIN, "tolerance") or Fraction(0)
        if not 0 <= tolerance <= 1:
            span = node.value["tolerance"].span
            self.faults.append(Fault(message="tolerance is out of range", span=span, expected="0% to 100%"))
        if len(given) != 1:
            fault = Fault(message=f"tier {name!r}", span=node.span, expected="either 'minimize' or 'maximize'")
            self.faults.append(fault)
            return None
        pair = self.typed(node.get(given[0]))
        if pair is None:
            return None
        formula, type_ = pair
        if type_.boolean:
            self._expected(formula, f"tier {name!r} is a condition", "a number")
            return None
        kind = "max" if given[0] == "minimize" else "min"
        try:
            pieces = parts(formula, type_, kind, self.let_parts, self.scope)
        except SyntaxFault as e:
            self.report(formula, e)
            return None
        return TierSpec(
            name=name,
            parts=tuple(pieces),
            unit=type_.unit,
            maximize=given[0] == "maximize",
            tolerance=tolerance,
            text=f"{given[0]} {formula.text}",
            span=formula.span,
        )

    # -- decision ------------------------------------------------------------------------------------------------

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


def _names(formula: Formula) -> set[str]:
    return {part.id for part in walk(formula.expr) if isinstance(part, Name)}


def _twice(nodes: list[Node]) -> Iterator[tuple[str, Node]]:
    seen: set[str] = set()
    for node in nodes:
        name = str(node.value["name"].value)
        if name in seen:
            yield name, node
        seen.add(name)


def _mode_fault(fault: SyntaxFault) -> SyntaxFault:
    if fault.message.startswith("mode "):
        hint = "a mode may be joined to conditions by `and` only; for the other mode name it"
        return SyntaxFault(fault.message.replace("stand in `when`", "stand alone"), fault.at, hint=hint)
    return fault
