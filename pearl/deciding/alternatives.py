"""Other configurations: the best ones beside the chosen, and why a named one was not taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pearl.core.cluster import Counts, Role, Zone
from pearl.core.problem import Assignment, BorrowTerms, DecisionProblem, Linear, Rule, Tier, assignment_counts
from pearl.core.source import Span
from pearl.deciding.engine import Verdict
from pearl.deciding.standing import Loss, Optimum, TierPair, loss, optima, tier_pairs
from pearl.errors import UsageError
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import Builtin, Evaluation, evaluate
from pearl.solving.protocol import Limits, Solver, SolveStatus

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
    tiers: tuple[TierPair, ...] = ()
    """Its tiers beside those of the chosen one; empty where a rule forbids it, or where the chosen one cannot run."""
    charged_s: float = 0.0
    """Thresholds charged for its changes, in seconds of makespan; they are part of its tiers."""
    loss: Loss | None = None
    """The tier in which it lost, where nothing blocks it; None for the answer itself, and for one as good."""
    lost_to: Counts | None = None
    """The solver's answer, which it lost to: the chosen configuration, or one that a gate then turned down."""


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
    judge = _Judge.of(verdict, solver, limits)
    found: list[Alternative] = []
    excluded = [_serving(verdict.chosen.counts)]
    while len(found) < number:
        solution = solve_problem(replace(_ungated(verdict), excluded=tuple(excluded)), solver, limits=limits)
        if solution.assignment is None:
            break
        counts = _serving(assignment_counts(verdict.problem, solution.assignment))
        excluded.append(counts)
        found.append(judge.alternative(solution.assignment))
    return tuple(found)


def why_not(verdict: Verdict, counts: Counts, solver: Solver, limits: Limits) -> Alternative:
    """The verdict on one configuration: blocked by which rules and by how much, or the tier in which it lost."""
    tables = verdict.posed.tables
    missing = max(counts.colocated, counts.prefill + counts.decode) - tables.workers
    if missing > 0:
        return _too_many(counts, missing, tables.workers)
    problem = replace(_ungated(verdict), fixed=counts)
    solution = solve_problem(problem, solver, limits=limits)
    if solution.assignment is not None:
        return _Judge.of(verdict, solver, limits).alternative(solution.assignment)
    return _blocked(verdict, problem, counts, solver, limits)


@dataclass(frozen=True, kw_only=True)
class _Judge:
    """Holds configurations against the verdict, by its problem with all its gates."""

    verdict: Verdict
    solver: Solver
    limits: Limits
    optimum: Optimum
    """Optima of the tiers, shared by all that are judged."""

    @classmethod
    def of(cls, verdict: Verdict, solver: Solver, limits: Limits) -> _Judge:
        found = optima(verdict.problem, solver, limits)
        return cls(verdict=verdict, solver=solver, limits=limits, optimum=found)

    def alternative(self, assignment: Assignment) -> Alternative:
        """An assignment that no rule forbids; one with the same counts takes its place where only that passes gates."""
        verdict, problem = self.verdict, self.verdict.problem
        point = evaluate(problem, assignment)
        if not point.feasible:
            point = self._passing(_serving(point.counts)) or point
        blocks = gate_blocks(verdict, point)
        answer = self._answer()
        lost = None
        if answer is not None and not blocks and not same_configuration(answer.counts, point.counts):
            lost = loss(problem, point, answer, self.optimum)
        chosen = verdict.chosen
        return Alternative(
            counts=point.counts,
            makespan_s=point.makespan_ms / 1000,
            delta_s=(point.makespan_ms - chosen.makespan_ms) / 1000,
            role_changes=point.role_changes,
            delta_changes=point.role_changes - chosen.role_changes,
            blocks=blocks,
            tiers=tier_pairs(problem, point, evaluate(problem, verdict.assignment)),
            charged_s=point.charge_ms / 1000,
            loss=lost,
            lost_to=None if lost is None or answer is None else answer.counts,
        )

    def _passing(self, counts: Counts) -> Evaluation | None:
        problem = self.verdict.problem
        solution = solve_problem(replace(problem, fixed=counts), self.solver, limits=self.limits)
        return None if solution.assignment is None else evaluate(problem, solution.assignment)

    def _answer(self) -> Evaluation | None:
        """The proved optimum of the verdict's problem, whether or not it was then taken."""
        solution = self.verdict.solution
        if solution.assignment is None or solution.status is not SolveStatus.OPTIMAL:
            return None
        return evaluate(self.verdict.problem, solution.assignment)


def _too_many(counts: Counts, missing: int, workers: int) -> Alternative:
    able = Block(name="workers", text=f"only {workers} workers can serve", unit="workers", amount=missing)
    return Alternative(
        counts=counts,
        makespan_s=float("inf"),
        delta_s=float("inf"),
        role_changes=0,
        delta_changes=0,
        blocks=(able,),
    )


def _blocked(verdict: Verdict, problem: DecisionProblem, counts: Counts, solver: Solver, limits: Limits) -> Alternative:
    """Break as little as possible of the hard rules, and say which and by how much."""
    from pearl.deciding.diagnosis import least_violation

    broken = least_violation(problem, solver, limits)
    makespan_s = verdict.posed.tables.makespan_ms(counts) / 1000
    chosen = verdict.chosen
    blocks = tuple(_rule_block(rule, amount) for rule, amount in broken.rules)
    if not blocks:
        blocks = (_structural_block(verdict, problem, broken.structural, solver, limits),)
    return Alternative(
        counts=counts,
        makespan_s=makespan_s,
        delta_s=makespan_s - chosen.makespan_ms / 1000,
        role_changes=broken.role_changes,
        delta_changes=broken.role_changes - chosen.role_changes,
        blocks=blocks,
    )


def _structural_block(verdict: Verdict, problem: DecisionProblem, text: str, solver: Solver, limits: Limits) -> Block:
    """What stands in the way without any rule: the mode, too few workers to borrow, or roles that are not open."""
    mode = problem.fixed.mode if problem.fixed else None
    if mode is not None and mode not in problem.modes:
        return Block(name="allowed_mode", text=f"the policy does not allow the mode {mode.value}", amount=0.0, unit="")
    needed = _fewest_borrowed(verdict, problem, solver, limits)
    limit = problem.borrow.max_workers
    if needed is None or needed <= limit:
        return Block(name="roles", text=text, amount=0.0, unit="")
    lent = f"lends at most {limit} now" if limit else "does not borrow now"
    text = f"it takes {needed} overlap workers, and the policy {lent}"
    return Block(name="borrow_limit", text=text, amount=needed - limit, unit="workers")


def _fewest_borrowed(verdict: Verdict, problem: DecisionProblem, solver: Solver, limits: Limits) -> int | None:
    """Overlap workers without which the counts of `problem` cannot be had, rules aside; None where not even so."""
    serving = tuple(
        (group.id, role, 1)
        for group in problem.groups
        if group.zone is Zone.OVERLAP
        for role in group.targets
        if role is not Role.INACTIVE
    )
    tier = Tier(name="borrowed", terms=(Linear(counts=tuple(sorted(serving))),))
    borrow = BorrowTerms(max_workers=verdict.posed.lendable)
    solution = solve_problem(replace(problem, rules=(), tiers=(tier,), borrow=borrow), solver, limits=limits)
    return None if solution.assignment is None else assignment_counts(problem, solution.assignment).borrowed


def _rule_block(rule: Rule, amount: float) -> Block:
    return Block(name=rule.name, text=rule.message or rule.text, amount=amount, unit=rule.expr.unit, span=rule.span)


def gate_blocks(verdict: Verdict, point: Evaluation) -> tuple[Block, ...]:
    """Gates that keep out a configuration which every rule allows, and the one that turned the answer itself down."""
    broken = dict(point.broken)
    hurdle, borrow = verdict.problem.hurdle, verdict.problem.borrow
    cooling = sorted(point.changes & hurdle.forbidden) if hurdle else []
    blocks = [
        Block(name=f"cooldown.{kind.value}", text=f"a {kind.value} change is in its cooldown", amount=0.0, unit="")
        for kind in cooling
    ]
    if excess_ms := broken.get(Builtin.HYSTERESIS):
        blocks.append(Block(name="hysteresis", text="gains too little over staying", amount=excess_ms / 1000, unit="s"))
    if excess_ms := broken.get(Builtin.BORROW_GATE):
        blocks.append(Block(name="borrow_gate", text="borrowing does not pay", amount=excess_ms / 1000, unit="s"))
    if excess := broken.get(Builtin.BORROW_LIMIT):
        text = f"at most {borrow.max_workers} overlap workers may be borrowed now"
        blocks.append(Block(name="borrow_limit", text=text, amount=excess, unit="workers"))
    if not blocks:
        blocks = list(_refused(verdict, point))
    return tuple(blocks)


def _refused(verdict: Verdict, point: Evaluation) -> Iterator[Block]:
    """What turned the solver's own answer down after the solve: veto, or the error of the predictions."""
    answer, refusal = verdict.solution.assignment, verdict.refusal
    if refusal is None or answer is None or verdict.rejected is None or answer == verdict.assignment:
        return
    if same_configuration(verdict.rejected.counts, point.counts):
        yield Block(
            name=refusal.code.value, text=refusal.why, amount=refusal.short_s, unit="s" if refusal.short_s else ""
        )


def _ungated(verdict: Verdict) -> DecisionProblem:
    """The problem without hysteresis and borrow gate: rules and objective alone."""
    borrow = BorrowTerms(max_workers=verdict.posed.borrow_limit)
    return replace(verdict.problem, hurdle=None, borrow=borrow, fixed=None, excluded=())


def _serving(counts: Counts) -> Counts:
    return Counts(colocated=counts.colocated, prefill=counts.prefill, decode=counts.decode)


def same_configuration(a: Counts, b: Counts) -> bool:
    """Whether two counts name the same mode and numbers."""
    return _serving(a) == _serving(b)
