"""Params, forecasts and metrics of a policy document."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from pearl.errors import Fault
from pearl.policy.compiler import Compiler
from pearl.policy.formula import Formula
from pearl.policy.infer import BROKEN, Type, infer
from pearl.policy.located import Node
from pearl.policy.model import ForecastSpec, Let, Param
from pearl.policy.ordering import in_order
from pearl.policy.parser import SyntaxFault
from pearl.policy.rows import parts
from pearl.policy.syntax import Name, walk
from pearl.policy.units import PLAIN, SECOND, UNITS, Unit
from pearl.policy.vocabulary import FUNCTIONS, MODE_WORDS, SOURCES, VOCABULARY


def _own_name(compiler: Compiler, name: str, node: Node, taken: Mapping[str, str]) -> bool:
    """Whether a param or let may go by a name that nothing else has."""
    if name in VOCABULARY or name in FUNCTIONS or name in UNITS or name in MODE_WORDS or name in ("node", "zone"):
        kind = "a unit" if name in UNITS else "a word of the language"
        compiler.faults.append(Fault(message=f"{name!r} is {kind}", span=node.key_span, hint="choose another name"))
        return False
    if name in taken:
        message = f"{name!r} is also a {taken[name]}"
        compiler.faults.append(Fault(message=message, span=node.key_span, hint="choose another name"))
        return False
    return True


def read_params(compiler: Compiler, section: Node | None) -> tuple[Param, ...]:
    """The params; their types enter the scope."""
    result: list[Param] = []
    types: dict[str, Type] = {}
    for name, node in section.items() if section else ():
        types[name] = BROKEN
        if not _own_name(compiler, name, node, {}):
            continue
        pair = compiler.literal_and_unit(node.get("value"))
        if pair is None:
            continue
        value, unit = pair
        types[name] = Type(unit=unit)
        _bounds(compiler, name, node, value, unit)
        result.append(Param(name=name, value=value, unit=unit, span=node.key_span))
    compiler.scope.params = types
    return tuple(result)


def _bounds(compiler: Compiler, name: str, node: Node, value: Fraction, unit: Unit) -> None:
    for key, word in (("min", "at least"), ("max", "at most")):
        bound_node = node.get(key)
        if bound_node is None:
            continue
        bound = compiler.literal(bound_node, unit, f"{key} of {name}")
        if bound is None or (value >= bound if key == "min" else value <= bound):
            continue
        given, limit = (node.get("value"), bound_node)
        shown = given.value if given else ""
        fault = Fault(
            message=f"{name} = {shown} is out of range",
            span=given.span if given else node.span,
            expected=f"{word} {limit.value}",
        )
        compiler.faults.append(fault)


def read_forecasts(compiler: Compiler, section: Node | None) -> tuple[ForecastSpec, ...]:
    """The forecasts; their units enter the scope. Defaults are checked later, since they may read names."""
    units: dict[str, Unit | None] = {}
    result: list[ForecastSpec] = []
    for name, node in section.items() if section else ():
        units[name] = _source_unit(compiler, node)
        unit = units[name]
        quantile = compiler.literal(node.get("quantile"), PLAIN, "quantile")
        if quantile is not None and not 0 <= quantile <= 1:
            span = node.value["quantile"].span
            compiler.faults.append(Fault(message="quantile is out of range", span=span, expected="0 to 1"))
        horizon = compiler.literal(node.get("horizon"), SECOND, "horizon")
        max_age = compiler.literal(node.get("max_age"), SECOND, "max_age")
        stale = node.get("on_stale")
        default_node = node.get("default")
        default = compiler.constant(default_node, unit, "default") if default_node and unit else None
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
    compiler.scope.forecasts = units
    _one_horizon(compiler, result)
    return tuple(result)


def _source_unit(compiler: Compiler, node: Node) -> Unit | None:
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
            compiler.faults.append(Fault(message=message, span=source.span, expected=expected, hint=hint))
            return None
        return known.unit
    pair = compiler.literal_and_unit(declared)
    unit = pair[1] if pair else None
    if unit is not None and known is not None and unit != known.unit:
        message = f"source {known.name} is in {known.unit}, not {unit}"
        compiler.faults.append(Fault(message=message, span=declared.span, hint="leave `unit:` out"))
        return None
    return unit


def _one_horizon(compiler: Compiler, forecasts: list[ForecastSpec]) -> None:
    first: dict[str, ForecastSpec] = {}
    for forecast in forecasts:
        other = first.setdefault(forecast.source, forecast)
        if other.horizon_s != forecast.horizon_s:
            message = f"forecasts {other.name!r} and {forecast.name!r} read {forecast.source} over two horizons"
            compiler.faults.append(Fault(message=message, span=forecast.span, hint="give both the same horizon"))


def read_lets(compiler: Compiler, section: Node | None) -> tuple[Let, ...]:
    """The metrics in an order in which each reads only earlier ones; their types enter the scope."""
    formulas: dict[str, Formula] = {}
    nodes = dict(section.items()) if section else {}
    for name, node in nodes.items():
        compiler.scope.lets[name] = BROKEN
        taken = dict.fromkeys(compiler.scope.params, "param")
        formula = compiler.formula(node) if _own_name(compiler, name, node, taken) else None
        if formula:
            formulas[name] = formula
    reads = {name: _names(formula) & formulas.keys() for name, formula in formulas.items()}
    order, cycle = in_order(reads)
    if cycle:
        path = " -> ".join([*cycle, cycle[0]])
        span = nodes[cycle[0]].key_span
        compiler.faults.append(Fault(message=f"let: {path} reads itself", span=span, hint="break the cycle"))
    return tuple(let for name in order if (let := _let(compiler, name, formulas[name])))


def _let(compiler: Compiler, name: str, formula: Formula) -> Let | None:
    try:
        type_ = infer(formula.expr, compiler.scope)
        pieces = parts(formula, type_, type_.extreme, compiler.let_parts, compiler.scope) if type_.extreme else []
        if type_.boolean and type_.degree:
            raise SyntaxFault("a let cannot be a row", formula.expr.at, hint="write it under constraints")
    except SyntaxFault as e:
        compiler.report(formula, e)
        return None
    compiler.scope.lets[name] = type_
    compiler.let_parts[name] = tuple(pieces)
    return Let(
        name=name,
        formula=formula,
        unit=type_.unit,
        constant=type_.constant,
        boolean=type_.boolean,
        parts=tuple(pieces),
    )


def _names(formula: Formula) -> set[str]:
    return {part.id for part in walk(formula.expr) if isinstance(part, Name)}
