"""The parts of a checked policy, put together; faults that concern the policy as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from pearl.core.facts import LONGEST_TIME_LIMIT_S, HysteresisSemantics, SolverChoice
from pearl.core.problem import Change
from pearl.errors import Fault
from pearl.policy.compiler import Compiler
from pearl.policy.constraints import read_rules, read_tiers
from pearl.policy.definitions import read_forecasts, read_lets, read_params
from pearl.policy.infer import BROKEN, Scope
from pearl.policy.located import Node
from pearl.policy.model import BorrowSpec, ForecastSpec, HysteresisSpec, Let, Param, Policy, RuleSpec, TierSpec
from pearl.policy.schema import PolicyFile
from pearl.policy.symbolic import makespan_faults
from pearl.policy.units import PLAIN, SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The compiled sections."""

    params: tuple[Param, ...]
    forecasts: tuple[ForecastSpec, ...]
    lets: tuple[Let, ...]
    rules: tuple[RuleSpec, ...]
    tiers: tuple[TierSpec, ...]
    hysteresis: HysteresisSpec
    borrow: BorrowSpec
    solver: SolverChoice


def assemble(
    root: Node, *, own: str, lines: Mapping[str, list[str]], sha256: str, lost: set[tuple[str, str]], complete: bool
) -> tuple[Policy | None, list[Fault]]:
    """Compile the merged tree; a policy, or the faults.

    `own` is the policy's own file; `lost` names definitions that count as defined though their own faults were
    reported; `complete` is false where something was cut out, and then nothing counts as unused or absent.
    """
    compiler = Compiler(lines=lines)
    spec = root.value["spec"]
    parts = _compiled(compiler, root, lost)
    faults = compiler.faults
    if complete:
        faults.extend(_absent(spec))
        faults.extend(_unused(compiler, spec, own))
    faults.extend(_first_tier(parts, _declared_first(spec, lost)))
    faults.extend(makespan_faults(parts.params, parts.lets, parts.rules, parts.tiers))
    if faults or not complete:
        return None, faults
    file = PolicyFile.model_validate(root.plain())
    policy = Policy(
        name=file.metadata.name,
        file=own,
        sha256=sha256,
        dimensions=_dimensions(compiler.scope),
        modes=tuple(dict.fromkeys(file.spec.decision.modes)),
        **{part.name: getattr(parts, part.name) for part in fields(parts)},
        predictor=file.spec.predictor,
        files=tuple(lines),
        names=frozenset(name for section, name in compiler.scope.used if section == "vocabulary"),
        document=_resolved(root),
    )
    return policy, []


def _compiled(compiler: Compiler, root: Node, lost: set[tuple[str, str]]) -> _Parts:
    """Compile in the order in which sections read each other."""
    spec = root.value["spec"]
    params = read_params(compiler, spec.get("params"))
    _restore(compiler, lost)
    forecasts = read_forecasts(compiler, spec.get("forecast"))
    _restore(compiler, lost)
    lets = read_lets(compiler, spec.get("let"))
    _restore(compiler, lost)
    tiers = read_tiers(compiler, spec.get("objective", "tiers"))
    return _Parts(
        params=params,
        forecasts=forecasts,
        lets=lets,
        rules=read_rules(compiler, spec.get("constraints")),
        tiers=tiers,
        hysteresis=_hysteresis(compiler, spec, tiers),
        borrow=_borrow(compiler, spec),
        solver=_solver(compiler, root),
    )


def _absent(spec: Node) -> list[Fault]:
    if spec.get("objective") is not None:
        return []
    hint = "for example `tiers: [{name: makespan, minimize: T}]`"
    fault = Fault(message="the policy has no objective", span=spec.key_span, expected="key 'objective'", hint=hint)
    return [fault]


def _restore(compiler: Compiler, lost: set[tuple[str, str]]) -> None:
    """Give names whose definitions were cut out a type that fits everywhere: one fault is reported once."""
    scope = compiler.scope
    scope.params = {**{name: BROKEN for section, name in lost if section == "params"}, **scope.params}
    scope.forecasts = {**{name: None for section, name in lost if section == "forecast"}, **scope.forecasts}
    for section, name in lost:
        if section == "let":
            scope.lets.setdefault(name, BROKEN)


def _hysteresis(compiler: Compiler, spec: Node, tiers: tuple[TierSpec, ...]) -> HysteresisSpec:
    node = spec.get("decision", "hysteresis")

    def field(*path: str) -> Node | None:
        return node.get(*path) if node else None

    resize = field("resize")
    semantics, forced = field("semantics"), field("when_stay_infeasible")
    in_time = not tiers or tiers[0].unit == SECOND
    if forced is None or forced.value is None:
        when_stay = HysteresisSemantics.CHARGE if in_time else None
    else:
        when_stay = HysteresisSemantics.CHARGE if forced.value == "charge" else None
    return HysteresisSpec(
        semantics=HysteresisSemantics(semantics.value) if semantics else HysteresisSemantics.GATE,
        mode=compiler.constant_or(field("mode"), SECOND, "threshold", 0),
        ratio=compiler.constant_or(field("ratio"), SECOND, "threshold", 0),
        resize=compiler.constant(resize, SECOND, "threshold") if resize and resize.value is not None else None,
        cooldowns={kind.value: compiler.cooldown(field("cooldown", kind.value)) for kind in Change},
        when_stay_infeasible=when_stay,
    )


def _borrow(compiler: Compiler, spec: Node) -> BorrowSpec:
    node = spec.get("decision", "borrow")

    def field(key: str) -> Node | None:
        found = node.get(key) if node else None
        return found if found is not None and found.value is not None else None

    return BorrowSpec(
        enabled=compiler.condition_or(field("enabled"), default=False),
        gated=compiler.condition_or(field("gated"), default=True),
        min_saving=compiler.constant_or(field("min_saving"), SECOND, "min_saving", 0),
        window=compiler.constant(field("window"), SECOND, "window"),
        max_workers=compiler.constant(field("max_workers"), PLAIN, "max_workers"),
    )


def _solver(compiler: Compiler, root: Node) -> SolverChoice:
    node = root.value["spec"].get("solver")
    default = SolverChoice()
    if node is None:
        return default
    limit = compiler.literal(node.get("time_limit"), SECOND, "time_limit")
    if limit is not None and not 0 < limit <= LONGEST_TIME_LIMIT_S:
        span = node.value["time_limit"].span
        message = f"time_limit must be positive and at most {LONGEST_TIME_LIMIT_S:g} s"
        compiler.faults.append(Fault(message=message, span=span, expected="such as 300ms"))
    section = PolicyFile.model_validate(root.plain()).spec.solver
    return SolverChoice(
        prefer=section.prefer,
        time_limit_s=default.time_limit_s if limit is None else float(limit),
        on_limit=section.on_limit,
        seed=section.seed,
    )


def _unused(compiler: Compiler, spec: Node, own: str) -> list[Fault]:
    """Params and forecasts of the policy's own file that nothing reads; what a parent declares may go unread."""
    faults = []
    for section, word in (("params", "param"), ("forecast", "forecast")):
        node = spec.get(section)
        for name, entry in node.items() if node else ():
            if entry.key_span.file == own and (section, name) not in compiler.scope.used:
                message = f"{word} {name!r} is never read"
                faults.append(Fault(message=message, span=entry.key_span, hint="remove it, or use it in a rule"))
    return faults


def _declared_first(spec: Node, lost: set[tuple[str, str]]) -> str | None:
    """Name of the objective's first tier; None where a tier was cut out, which may have been the first."""
    tiers = spec.get("objective", "tiers")
    if tiers is None or not tiers.value or ("objective", "tiers") in lost:
        return None
    return str(tiers.value[0].value["name"].value)


def _first_tier(parts: _Parts, declared: str | None) -> list[Fault]:
    """Penalties are seconds added to the first tier, so that tier must be a time.

    Where the tier `declared` first did not compile, its own fault says what is wrong with it.
    """
    tiers = parts.tiers
    if not tiers or tiers[0].name != declared or tiers[0].unit == SECOND:
        return []
    reasons = [f"the penalty of soft rule {rule.name!r}" for rule in parts.rules if rule.soft]
    if parts.hysteresis.semantics is HysteresisSemantics.CHARGE:
        reasons.append("hysteresis with semantics: charge")
    message = f"tier {tiers[0].name!r} is in {tiers[0].unit}, and seconds are added to it by"
    hint = "make the first tier a time such as T"
    return [Fault(message=f"{message} {reason}", span=tiers[0].span, hint=hint) for reason in reasons]


def _dimensions(scope: Scope) -> frozenset[str]:
    """By what the policy's expressions tell workers apart."""
    found = {"risk"} if ("vocabulary", "exposure") in scope.used else set()
    return frozenset(found | ({"node"} if ("dimension", "node") in scope.used else set()))


def _resolved(root: Node) -> dict[str, object]:
    """The policy as plain data after merging: nothing left to extend, disabled rules gone."""
    plain: dict[str, object] = {key: value for key, value in root.plain().items() if key != "extends"}
    spec = plain["spec"]
    if isinstance(spec, dict) and "constraints" in spec:
        spec["constraints"] = [rule for rule in spec["constraints"] if not rule.get("disabled")]
    return plain
