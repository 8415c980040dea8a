"""Other configurations: the best ones beside the chosen, and why a named one was not taken."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pearl.core.cluster import Counts
from pearl.core.problem import BorrowTerms, DecisionProblem, Rule
from pearl.core.source import Span
from pearl.deciding.engine import Verdict
from pearl.deciding.gates import in_cooldown, threshold_ms
from pearl.errors import UsageError
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import Evaluation, evaluate
from pearl.solving.protocol import Limits, Solver

_LABEL = re.compile(r"(?:([0-9]{1,6})C|([0-9]{1,6})P([0-9]{1,6})D)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What keeps a configuration from being taken: a rule of the policy or a gate, and by how much."""

    name: str
    text: str
    amount: float
    unit: str
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A configuration beside the chosen one; `blocks` is empty where only the objective speaks against it."""

    counts: Counts
    makespan_s: float
    delta_s: float
    """Makespan on top of the chosen configuration's."""
    role_changes: int
    delta_changes: int
    """Role changes on top of the chosen configuration's."""
    blocks: tuple[Block, ...] = ()


def parse_counts(text: str) -> Counts:
    """Read `12C` or `5P3D`; raises UsageError."""
    match = _LABEL.match(text.strip())
    if match is None:
        raise UsageError(f"{text!r} names no configuration; expected e.g. 12C (colocated) or 5P3D (disaggregated)")
    colocated, prefill, decode = (int(g) if g else 0 for g in match.groups())
    if not colocated and not (prefill and decode):
        raise UsageError(f"{text!r} serves nothing; expected at least 1C, or 1P1D")
    return Counts(colocated=colocated, prefill=prefill, decode=decode)


def alternatives(verdict: Verdict, solver: Solver, limits: Limits, *, number: int) -> tuple[Alternative, ...]:
    """The best `number` other configurations by the policy's tiers, its gates set aside and named per alternative."""
    found: list[Alternative] = []
    excluded = [_serving(verdict.chosen.counts)]
    while len(found) < number:
        problem = replace(_ungated(verdict), excluded=tuple(excluded))
        solution = solve_problem(problem, solver, limits=limits)
        if solution.assignment is None:
            break
        other = evaluate(problem, solution.assignment)
        excluded.append(_serving(other.counts))
        found.append(_alternative(verdict, other, gate_blocks(verdict, other)))
    return tuple(found)


def why_not(verdict: Verdict, counts: Counts, solver: Solver, limits: Limits) -> Alternative:
    """The verdict on one configuration: blocked by which rules and by how much, or what it would cost."""
    tables = verdict.posed.tables
    if max(counts.colocated, counts.prefill + counts.decode) > tables.workers:
        able = Block(name="workers", text=f"only {tables.workers} workers can serve", unit="workers",
                     amount=max(counts.colocated, counts.prefill + counts.decode) - tables.workers)  # fmt: skip
        return Alternative(
            counts=counts,
            makespan_s=float("inf"),
            delta_s=float("inf"),
            role_changes=0,
            delta_changes=0,
            blocks=(able,),
        )
    problem = replace(_ungated(verdict), fixed=counts)
    solution = solve_problem(problem, solver, limits=limits)
    if solution.assignment is not None:
        other = evaluate(problem, solution.assignment)
        return _alternative(verdict, other, gate_blocks(verdict, other))
    return _blocked(verdict, problem, counts, solver, limits)


def _blocked(verdict: Verdict, problem: DecisionProblem, counts: Counts, solver: Solver, limits: Limits) -> Alternative:
    """Break as little as possible of the hard rules, and say which and by how much."""
    from pearl.deciding.diagnosis import least_violation

    broken = least_violation(problem, solver, limits)
    makespan_s = verdict.posed.tables.makespan_ms(counts) / 1000
    chosen = verdict.chosen
    blocks = tuple(_rule_block(rule, amount) for rule, amount in broken.rules) or (
        Block(name=broken.structural, text=broken.structural, amount=0.0, unit=""),
    )
    return Alternative(
        counts=counts,
        makespan_s=makespan_s,
        delta_s=makespan_s - chosen.makespan_ms / 1000,
        role_changes=broken.role_changes,
        delta_changes=broken.role_changes - chosen.role_changes,
        blocks=blocks,
    )


def _rule_block(rule: Rule, amount: float) -> Block:
    return Block(name=rule.name, text=rule.message or rule.text, amount=amount, unit=rule.expr.unit, span=rule.span)


def _alternative(verdict: Verdict, other: Evaluation, blocks: tuple[Block, ...]) -> Alternative:
    chosen = verdict.chosen
    return Alternative(
        counts=other.counts,
        makespan_s=other.makespan_ms / 1000,
        delta_s=(other.makespan_ms - chosen.makespan_ms) / 1000,
        role_changes=other.role_changes,
        delta_changes=other.role_changes - chosen.role_changes,
        blocks=blocks,
    )


def gate_blocks(verdict: Verdict, other: Evaluation) -> tuple[Block, ...]:
    """Gates that turn a configuration down although every rule allows it."""
    rules = verdict.posed.bound.hysteresis
    blocks = []
    if not verdict.forced_by and other.changes:
        ages = verdict.posed.situation.changes
        blocks += [
            Block(name=f"cooldown.{kind.value}", text=f"a {kind.value} change is in its cooldown", amount=0.0, unit="")
            for kind in sorted(other.changes)
            if in_cooldown(rules.cooldown(kind), ages.get(kind))
        ]
        short_s = (threshold_ms(rules, other.changes) - (verdict.posed.stay_ms - other.makespan_ms)) / 1000
        if threshold_ms(rules, other.changes) and short_s > 0:
            text = "gains too little over staying"
            blocks.append(Block(name="hysteresis", text=text, amount=short_s, unit="s"))
    gate_ms = verdict.problem.borrow.gate_ms
    if other.counts.borrowed and gate_ms is not None and other.makespan_ms > gate_ms:
        amount = (other.makespan_ms - gate_ms) / 1000
        blocks.append(Block(name="borrow_gate", text="borrowing does not pay", amount=amount, unit="s"))
    return tuple(blocks)


def _ungated(verdict: Verdict) -> DecisionProblem:
    """The problem without hysteresis and borrow gate: rules and objective alone."""
    borrow = BorrowTerms(max_workers=verdict.posed.borrow_limit)
    return replace(verdict.problem, hurdle=None, borrow=borrow, fixed=None, excluded=())


def _serving(counts: Counts) -> Counts:
    return Counts(colocated=counts.colocated, prefill=counts.prefill, decode=counts.decode)


def same_configuration(a: Counts, b: Counts) -> bool:
    """Whether two counts name the same mode and numbers."""
    return _serving(a) == _serving(b)
