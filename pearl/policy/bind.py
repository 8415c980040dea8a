"""A checked policy and the facts of one decision to rows, tiers and thresholds: nothing is left to evaluate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from pearl.core.cluster import Mode
from pearl.core.facts import BoundBorrow, BoundHysteresis, BoundPolicy, Facts
from pearl.core.problem import Axis, Linear, Rule, Soft, Tier
from pearl.errors import PolicyError
from pearl.policy.algebra import MAKESPAN, TableAtom
from pearl.policy.evaluate import Evaluator, MissingFactError, MissingFactPolicyError, check_size
from pearl.policy.forecasts import Resolved, resolve
from pearl.policy.formula import Formula
from pearl.policy.integers import Columns, Layout, RationalForm, Rounder, RowError, fraction
from pearl.policy.model import Inequality, Policy, RuleSpec, SoftSpec, TierSpec
from pearl.policy.symbolic import SLOWER_HINT, SLOWER_ONLY, bits, extreme, row_name
from pearl.policy.syntax import Call, IfElse
from pearl.policy.units import SECOND, Unit

_MODE_OF: Mapping[Axis, Mode] = {
    Axis.COLOCATED: Mode.COLOCATED,
    Axis.PREFILL: Mode.DISAGGREGATED,
    Axis.DECODE: Mode.DISAGGREGATED,
}
MS_PER_S = 1000

Value = Fraction | RationalForm | bool


def bind_policy(policy: Policy, facts: Facts) -> BoundPolicy:
    """Bind a policy to the facts of one decision; raises PolicyError where an expression has no value under them."""
    return _Binder(policy, facts).bound()


@dataclass(kw_only=True)
class _Numbers:
    """Values of names, as exact fractions."""

    facts: Facts
    values: dict[str, Value] = field(default_factory=dict)
    missing: dict[str, MissingFactError] = field(default_factory=dict)
    """Lets that have no value, and why."""
    forecasts: Mapping[str, Fraction] = field(default_factory=dict)
    stale: str = ""

    def number(self, value: Fraction) -> Fraction:
        return value

    def constant(self, name: str) -> Fraction:
        value = self.facts.scalars.get(name)
        if value is None:
            raise MissingFactError(f"the scenario gives no value for {name!r}")
        return _finite(value, name)

    def entry(self, map_name: str, key: str) -> Fraction:
        if map_name == "forecast":
            if key not in self.forecasts:
                raise MissingFactError(f"forecast {key!r} has no samples", "give it a `default:`")
            return self.forecasts[key]
        value = self.facts.maps.get(map_name, {}).get(key)
        if value is None:
            raise MissingFactError(f"the scenario gives no value for {map_name}[{key!r}]")
        return _finite(value, f"{map_name}[{key!r}]")

    def defined(self, name: str) -> Value | None:
        if name in self.missing:
            raise self.missing[name]
        return self.values.get(name)

    def chosen(self, expr: Call | IfElse, evaluate: Evaluator[Fraction]) -> Fraction:
        if isinstance(expr, IfElse):
            return evaluate.constant(expr.then if evaluate.truth(expr.condition) else expr.other)
        return extreme(expr.function, [evaluate.constant(arg) for arg in expr.args])

    def holds(self, op: str, left: Fraction, right: Fraction) -> bool:
        match op:
            case "<=":
                return left <= right
            case ">=":
                return left >= right
            case "<":
                return left < right
            case ">":
                return left > right
            case _:
                return left == right


def _finite(value: float, name: str) -> Fraction:
    if not math.isfinite(value):
        raise MissingFactError(f"the scenario's value for {name} is not finite")
    return fraction(float(value))


class _Binder:
    def __init__(self, policy: Policy, facts: Facts) -> None:
        self.policy = policy
        self.numbers = _Numbers(facts=facts)
        self.evaluate = Evaluator(self.numbers)
        self.layout = Layout(facts.groups)
        self.rounder = Rounder(self.layout, Columns(facts.tables))
        self.columns = self.rounder.columns

    def bound(self) -> BoundPolicy:
        policy = self.policy
        self.numbers.values.update({param.name: param.value for param in policy.params})
        forecasts = self._forecasts()
        self._lets()
        return BoundPolicy(
            name=policy.name,
            sha256=policy.sha256,
            modes=policy.modes,
            rules=tuple(rule for spec in policy.rules for rule in self._rule(spec)),
            tiers=tuple(self._tier(spec) for spec in policy.tiers),
            hysteresis=self._hysteresis(),
            borrow=self._borrow(forecasts.stale),
            solver=policy.solver,
            predictor=policy.predictor,
            metrics=dict(self._metrics()),
            constants={n: v for n, v in self.numbers.values.items() if isinstance(v, Fraction)},
            forecasts=tuple(forecasts.values.values()),
        )

    def _forecasts(self) -> Resolved:
        resolved = resolve(
            self.policy.forecasts,
            self.numbers.facts.samples,
            lambda formula: float(self.evaluate.constant_at(formula)),
        )
        self.numbers.forecasts = {name: fraction(found.value) for name, found in resolved.values.items()}
        return resolved

    def _lets(self) -> None:
        """Evaluate every metric. One that lacks a fact is an error only where a rule, tier or threshold reads it."""
        numbers = self.numbers
        for let in self.policy.lets:
            if let.parts:
                continue
            try:
                if let.boolean:
                    numbers.values[let.name] = self.evaluate.truth_at(let.formula)
                    continue
                form = self.evaluate.at(let.formula)
            except MissingFactPolicyError as e:
                numbers.missing[let.name] = MissingFactError(f"metric {let.name!r}: {e.faults[0].message}")
                continue
            check_size(form, let.formula, bits)
            numbers.values[let.name] = form if form.terms else form.constant

    def _metrics(self) -> Iterator[tuple[str, Linear]]:
        for let in self.policy.lets:
            if let.constant or let.boolean or let.name in self.numbers.missing:
                continue
            formulas = let.parts or (let.formula,)
            for i, formula in enumerate(formulas, 1):
                name = f"{let.name}.{i}" if let.parts else let.name
                try:
                    (row,) = self._linear([self.evaluate.at(formula)], formula, let.unit, upward=False)
                except MissingFactPolicyError:
                    continue
                yield name, row

    def _linear(
        self, forms: list[RationalForm], formula: Formula, unit: Unit, *, upward: bool, seed: int = 1
    ) -> tuple[Linear, ...]:
        try:
            return self.rounder.rows(forms, unit=unit.symbol, upward=upward, seed=seed)
        except (RowError, OverflowError) as e:
            raise PolicyError(formula.fault(str(e), 0)) from None

    # -- rules ---------------------------------------------------------------------------------------------------

    def _rule(self, spec: RuleSpec) -> Iterator[Rule]:
        when = spec.when
        if when.never or not all(self.evaluate.truth_at(condition) for condition in when.conditions):
            return
        soft = self._soft(spec.soft)
        for value in self._loop(spec):
            evaluate = Evaluator(self.numbers, {spec.foreach: value}) if spec.foreach else self.evaluate
            for i, row in enumerate(spec.rows):
                form = evaluate.at(row.less) - evaluate.at(row.more)
                if form.terms.get(MAKESPAN, 0) < 0:
                    raise PolicyError(spec.require.fault(SLOWER_ONLY, 0, hint=SLOWER_HINT))
                yield self._row(spec, row_name(spec, i, value), row, form, soft)

    def _loop(self, spec: RuleSpec) -> tuple[str, ...]:
        match spec.foreach:
            case "node":
                return self.layout.nodes
            case "zone":
                return tuple(map(str, self.layout.zones))
            case _:
                return ("",)

    def _row(self, spec: RuleSpec, name: str, row: Inequality, form: RationalForm, soft: Soft | None) -> Rule:
        (expr,) = self._linear([form], spec.require, row.unit, upward=True)
        if soft is not None and spec.soft is not None:
            expr = self._in_units_of_violation(expr, spec.soft, row)
        return Rule(
            name=name,
            expr=expr,
            when=spec.when.mode or self._mode_of_divisors(spec, form),
            soft=soft,
            relaxable=spec.relaxable,
            message=spec.message,
            text=spec.require.text,
            span=spec.span,
        )

    def _mode_of_divisors(self, spec: RuleSpec, form: RationalForm) -> Mode | None:
        """The mode that a rule is confined to because the tables that it divides by exist in that mode only."""
        shared = set(Mode)
        for atom in form.terms:
            if isinstance(atom, TableAtom) and atom.inverse:
                shared &= {_MODE_OF[axis] for axis in self.columns.axes(atom.table)}
        if not shared:
            hint = "write one rule for each mode, with `when`"
            raise PolicyError(spec.require.fault("no mode has values of every table divided by", 0, hint=hint))
        return next(iter(shared)) if len(shared) == 1 else None

    def _soft(self, spec: SoftSpec | None) -> Soft | None:
        if spec is None:
            return None
        penalty = self.evaluate.constant_at(spec.penalty)
        limit = None if spec.max_violation is None else self.evaluate.constant_at(spec.max_violation)
        for value, formula in ((penalty, spec.penalty), (limit, spec.max_violation)):
            if value is not None and formula is not None and value < 0:
                raise PolicyError(formula.fault("may not be negative", 0))
        return Soft(
            penalty_ms=math.ceil(penalty * MS_PER_S), max_violation=None if limit is None else math.floor(limit)
        )

    def _in_units_of_violation(self, expr: Linear, soft: SoftSpec, row: Inequality) -> Linear:
        """The same row, its scale chosen so that one unit of violation is 1 (see `SoftSection.per`)."""
        if soft.per is not None:
            per = self.evaluate.constant_at(soft.per)
            if per <= 0:
                raise PolicyError(soft.per.fault("one unit of violation must be positive", 0))
            return replace(expr, scale=expr.scale * per, unit=row.unit.symbol if per == 1 else f"× {soft.per.text}")
        if row.unit.plain or not expr.counts:
            return expr
        return replace(expr, scale=Fraction(max(abs(value) for _, _, value in expr.counts)), unit="workers")

    # -- tiers and thresholds ------------------------------------------------------------------------------------

    def _tier(self, spec: TierSpec) -> Tier:
        forms = [self.evaluate.at(part) for part in spec.parts]
        if spec.maximize:
            forms = [-form for form in forms]
        if any(form.terms.get(MAKESPAN, 0) < 0 for form in forms):
            raise PolicyError(spec.parts[0].fault(SLOWER_ONLY, 0, hint=SLOWER_HINT))
        seed = MS_PER_S if spec.unit == SECOND else 1
        terms = self._linear(forms, spec.parts[0], spec.unit, upward=False, seed=seed)
        return Tier(name=spec.name, terms=terms, tolerance=spec.tolerance, text=spec.text, span=spec.span)

    def _seconds(self, formula: Formula) -> float:
        value = self.evaluate.constant_at(formula)
        if value < 0:
            raise PolicyError(formula.fault(f"is negative: {float(value):g} s", 0, expected="at least 0s"))
        return float(value)

    def _hysteresis(self) -> BoundHysteresis:
        spec = self.policy.hysteresis
        return BoundHysteresis(
            semantics=spec.semantics,
            mode_s=self._seconds(spec.mode),
            ratio_s=self._seconds(spec.ratio),
            resize_s=None if spec.resize is None else self._seconds(spec.resize),
            cooldown_mode=spec.cooldowns["mode"],
            cooldown_ratio=spec.cooldowns["ratio"],
            cooldown_resize=spec.cooldowns["resize"],
            when_stay_infeasible=spec.when_stay_infeasible,
        )

    def _borrow(self, stale: str) -> BoundBorrow:
        spec = self.policy.borrow
        enabled = self.evaluate.truth_at(spec.enabled)
        if not enabled or stale:
            return BoundBorrow(enabled=False, stale=stale if enabled else "")
        limit = None if spec.max_workers is None else math.floor(self.evaluate.constant_at(spec.max_workers))
        return BoundBorrow(
            enabled=True,
            window_s=None if spec.window is None else self._seconds(spec.window),
            min_saving_s=self._seconds(spec.min_saving),
            max_workers=None if limit is None else max(limit, 0),
            gated=self.evaluate.truth_at(spec.gated),
        )
