"""Rules and tiers of a policy document."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from pearl.core.cluster import Mode
from pearl.documents import nearest
from pearl.errors import Fault
from pearl.policy.compiler import Compiler
from pearl.policy.formula import Formula
from pearl.policy.infer import Scope, infer
from pearl.policy.located import Node
from pearl.policy.model import Inequality, RuleSpec, SoftSpec, TierSpec, When
from pearl.policy.parser import SyntaxFault
from pearl.policy.rows import conjuncts, parts, split
from pearl.policy.syntax import Call, Expr, Name, walk
from pearl.policy.units import PLAIN, SECOND, UNITS, Unit
from pearl.policy.vocabulary import MODE_WORDS


def read_rules(compiler: Compiler, section: Node | None) -> tuple[RuleSpec, ...]:
    """The rules that are not disabled."""
    result: list[RuleSpec] = []
    for node in section.value if section and isinstance(section.value, list) else ():
        disabled = node.get("disabled")
        if disabled is not None and disabled.value is True:
            continue
        rule = _rule(compiler, node)
        if rule:
            result.append(rule)
    return tuple(result)


def _rule(compiler: Compiler, node: Node) -> RuleSpec | None:
    name = str(node.value["name"].value)
    require_node = node.get("require")
    when = _when(compiler, node.get("when"))
    if require_node is None:
        hint = "a rule that changes an inherited one must have its name"
        fault = Fault(message=f"rule {name!r} requires nothing", span=node.span, expected="key 'require'", hint=hint)
        compiler.faults.append(fault)
        return None
    require = compiler.formula(require_node)
    foreach = _text(node.get("foreach")) or None
    rows = _rows(compiler, require, foreach) if require else None
    if require is None or rows is None:
        return None
    _loop_is_used(compiler, require, foreach, node)
    relaxable_node = node.get("relaxable")
    relaxable = relaxable_node is None or bool(relaxable_node.value)
    return RuleSpec(
        name=name,
        require=require,
        rows=rows,
        when=when or When(),
        foreach=foreach,
        soft=_soft(compiler, node.get("soft"), rows[0].unit, relaxable=relaxable),
        relaxable=relaxable,
        message=_text(node.get("message")),
        span=require.span,
    )


def _text(node: Node | None) -> str:
    return "" if node is None or node.value is None else str(node.value)


def _rows(compiler: Compiler, require: Formula, foreach: str | None) -> tuple[Inequality, ...] | None:
    compiler.scope.loop = foreach
    try:
        return split(require, compiler.scope, compiler.let_parts)
    except SyntaxFault as e:
        compiler.report(require, e)
        return None
    finally:
        compiler.scope.loop = None


def _loop_is_used(compiler: Compiler, require: Formula, foreach: str | None, node: Node) -> None:
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
        compiler.faults.append(Fault(message=f"`require` never reads {foreach!r}", span=span, hint=hint))


def _soft(compiler: Compiler, node: Node | None, unit: Unit, *, relaxable: bool) -> SoftSpec | None:
    if node is None or node.value is None:
        return None
    if not relaxable:
        hint = "remove soft, or say relaxable: true"
        compiler.faults.append(Fault(message="a soft rule is relaxable", span=node.key_span, hint=hint))
    penalty = compiler.constant(node.get("penalty"), SECOND, "penalty")
    limit = compiler.constant(node.get("max_violation"), PLAIN, "max_violation")
    per = compiler.constant(node.get("per"), unit, "per")
    return SoftSpec(penalty=penalty, max_violation=limit, per=per) if penalty else None


def _when(compiler: Compiler, node: Node | None) -> When | None:
    formula = compiler.formula(node) if node and node.value is not None else None
    if formula is None:
        return When()
    modes: set[str] = set()
    conditions: list[Formula] = []
    for expr in conjuncts(formula.expr):
        if isinstance(expr, Name) and expr.id in MODE_WORDS:
            modes.add(expr.id)
            continue
        try:
            _known_mode(expr, compiler.scope)
            type_ = infer(expr, compiler.scope)
            if not type_.broken and (not type_.boolean or type_.degree):
                raise SyntaxFault("not a condition", expr.at, expected="a mode or a constant condition")
        except SyntaxFault as e:
            compiler.report(formula, _mode_fault(e))
            return None
        conditions.append(formula.with_expr(expr))
    mode = Mode(next(iter(modes))) if len(modes) == 1 else None
    return When(mode=mode, never=len(modes) > 1, conditions=tuple(conditions))


def read_tiers(compiler: Compiler, section: Node | None) -> tuple[TierSpec, ...]:
    """The objective's tiers."""
    nodes = section.value if section and isinstance(section.value, list) else []
    result = [tier for node in nodes if (tier := _tier(compiler, node))]
    for name, node in _twice(nodes):
        compiler.faults.append(Fault(message=f"two tiers are called {name!r}", span=node.span))
    return tuple(result)


def _tier(compiler: Compiler, node: Node) -> TierSpec | None:
    name = str(node.value["name"].value)
    given = [key for key in ("minimize", "maximize") if node.get(key)]
    tolerance = compiler.literal(node.get("tolerance"), PLAIN, "tolerance") or Fraction(0)
    if not 0 <= tolerance <= 1:
        span = node.value["tolerance"].span
        compiler.faults.append(Fault(message="tolerance is out of range", span=span, expected="0% to 100%"))
    if len(given) != 1:
        what = "says both minimize and maximize" if given else "says nothing to optimise"
        fault = Fault(message=f"tier {name!r} {what}", span=node.span, expected="one of 'minimize' and 'maximize'")
        compiler.faults.append(fault)
        return None
    pair = compiler.typed(node.get(given[0]))
    if pair is None:
        return None
    formula, type_ = pair
    if type_.broken:
        return None
    if type_.boolean:
        compiler._expected(formula, f"tier {name!r} is a condition", "a number")
        return None
    kind = "max" if given[0] == "minimize" else "min"
    try:
        pieces = parts(formula, type_, kind, compiler.let_parts, compiler.scope)
    except SyntaxFault as e:
        compiler.report(formula, e)
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


def _twice(nodes: list[Node]) -> Iterator[tuple[str, Node]]:
    seen: set[str] = set()
    for node in nodes:
        name = str(node.value["name"].value)
        if name in seen:
            yield name, node
        seen.add(name)


def _known_mode(expr: Expr, scope: Scope) -> None:
    if isinstance(expr, Name) and expr.id not in scope.known() and expr.id not in UNITS:
        hint = nearest(expr.id, {*MODE_WORDS, *scope.known()})
        raise SyntaxFault(f"unknown mode {expr.id!r}", expr.at, expected=" or ".join(MODE_WORDS), hint=hint)


def _mode_fault(fault: SyntaxFault) -> SyntaxFault:
    if fault.message.startswith("mode "):
        hint = "a mode may be joined to conditions by `and` only; for the other mode name it"
        return SyntaxFault(fault.message.replace("stand in `when`", "stand alone"), fault.at, hint=hint)
    return fault
