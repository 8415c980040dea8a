"""Parts that several kinds of document share become facts: the engine profile and the workload."""

from __future__ import annotations

from pathlib import Path

from pearl.core.distribution import Distribution, Family
from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.documents import Document, PathKey
from pearl.errors import Fault, ScenarioError
from pearl.scenario.engine_schema import EngineSpec
from pearl.scenario.engines import load_profile
from pearl.scenario.schema import WorkloadSpec

MAX_TURNS = 10_000
"""Bound on a trajectory's turns: no agent takes more, and predictors may walk through them."""


def build_engine(
    spec: EngineSpec, document: Document, path: PathKey, *, name: str
) -> tuple[EngineProfile | None, list[Fault]]:
    """The profile at `path`, or the faults of its base; `name` is that of a profile without a base."""
    if spec.profile is None:
        return spec.build(name=name), []
    try:
        base = load_profile(spec.profile, relative_to=Path(document.file).parent)
    except ScenarioError as e:
        place = (*path, "profile") if (*path, "profile") in document.spans else path
        return None, [_at(document, place, fault) for fault in e.faults]
    return spec.build(name=name, base=base), []


def _at(document: Document, path: PathKey, fault: Fault) -> Fault:
    inner = "" if fault.span is None else f"{fault.span}: "
    span = document.span(path)
    return Fault(message=f"{inner}{fault.message}", span=span, expected=fault.expected, hint=fault.hint)


def build_workload(spec: WorkloadSpec, document: Document, path: PathKey) -> tuple[Workload, list[Fault]]:
    """The workload at `path`, and what is wrong with it as a whole."""
    workload = Workload(
        trajectories=spec.trajectories,
        turns=spec.turns.build(at_least=1.0),
        first_prompt_tokens=spec.first_prompt_tokens.build(),
        new_prompt_tokens=spec.new_prompt_tokens.build(),
        output_tokens=spec.output_tokens.build(),
        environment_s=spec.environment.build(),
        max_context_tokens=spec.max_context_tokens,
        routing=spec.routing,
        training=spec.training,
        max_staleness=spec.max_staleness,
    )
    checks = (
        ("turns", _largest(workload.turns) > MAX_TURNS, "too many turns", f"at most {MAX_TURNS}"),
        ("turns", min(spec.turns.given()) < 1, "a trajectory takes at least one turn", "no value below 1"),
        (
            "first_prompt_tokens",
            workload.first_prompt_tokens.expected <= 0,
            "a first prompt has tokens",
            "a mean above 0",
        ),
        ("output_tokens", workload.output_tokens.expected <= 0, "a turn generates tokens", "a mean above 0"),
        (
            "first_prompt_tokens",
            workload.first_prompt_tokens.expected >= workload.max_context_tokens,
            f"a first prompt of {workload.first_prompt_tokens.expected:.0f} tokens fills the context",
            f"less than max_context_tokens {workload.max_context_tokens}",
        ),
    )
    return workload, [
        Fault(message=message, span=document.span((*path, key)), expected=expected)
        for key, wrong, message, expected in checks
        if wrong
    ]


def _largest(distribution: Distribution) -> float:
    """The largest value but for a share of 1e-6."""
    if distribution.family is Family.EMPIRICAL:
        return max(min(max(v, distribution.low), distribution.high) for v in distribution.values)
    return distribution.quantile(1 - 1e-6)
