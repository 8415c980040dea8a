"""Why nothing is feasible, and what would mend it; every statement is verified by solving again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pearl.core.cluster import ClusterState, Counts, Role, Status, Worker, Zone
from pearl.core.problem import UNREACHABLE_MS, BorrowTerms, DecisionProblem, Rule, Soft
from pearl.core.situation import Situation
from pearl.core.source import Span
from pearl.deciding.engine import Verdict
from pearl.deciding.facts import best_makespan_ms
from pearl.deciding.posing import Posed, pose
from pearl.errors import NoAnswerError
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import Evaluation, evaluate
from pearl.solving.protocol import Limits, Solution, Solver, SolveStatus

MOST_ADDED_WORKERS = 4096
"""Where the search for 'add workers' ends: more than any pool this schedules."""
GROWTH_TRIED = 8
"""Times the pool of today, beyond which nobody is helped by 'add workers' (at least LEAST_GROWTH workers)."""
LEAST_GROWTH = 64

Feasible = Callable[[Sequence[Rule]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """One rule loosened by an amount in its own unit."""

    rule: str
    amount: float
    unit: str
    text: str
    span: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Rules to loosen together, and the configuration that is then chosen."""

    relaxations: tuple[Relaxation, ...]
    counts: Counts
    makespan_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFix:
    """A change of the world in place of a rule: `add_workers` of a zone, or `trajectories` lowered to an amount."""

    kind: str
    zone: Zone | None
    amount: int
    counts: Counts
    makespan_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A minimal set of rules that cannot hold together, and verified ways out."""

    conflict: tuple[Rule, ...]
    structural: str
    """What blocks beside or without rules (modes, pinned workers); empty if rules alone do."""
    corrections: tuple[Correction, ...]
    resources: tuple[ResourceFix, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastViolation:
    """Fewest rules to break for a feasible point, and by how much; `structural` where no set of rules suffices."""

    rules: tuple[tuple[Rule, float], ...]
    role_changes: int = 0
    structural: str = ""


def diagnose(verdict: Verdict, solver: Solver, limits: Limits) -> Diagnosis:
    """Explain an infeasible verdict."""
    problem = _bare(verdict.problem)
    conflict = minimal_conflict(problem, solver, limits)
    structural = "" if conflict else _structural(verdict.posed)
    return Diagnosis(
        conflict=conflict,
        structural=structural,
        corrections=tuple(_corrections(problem, conflict, solver, limits)),
        resources=tuple(_resource_fixes(verdict.posed, solver, limits)),
    )


def _structural(posed: Posed) -> str:
    """What stands in the way when no rule does."""
    if best_makespan_ms(posed.tables) >= UNREACHABLE_MS:
        engine, workload = posed.situation.engine, posed.workload
        return (
            f"a trajectory of up to {workload.max_context_tokens} tokens does not fit into the KV memory of one worker "
            f"({engine.kv_decode_tokens} tokens, {engine.kv_colocated_tokens} where it is colocated): lower "
            "max_context_tokens, or raise tensor_parallel"
        )
    return "no worker may serve in the modes that the policy allows, as the pool stands"


def _bare(problem: DecisionProblem) -> DecisionProblem:
    """Hard rules alone: no gate, no price, no objective."""
    hard = tuple(rule for rule in problem.rules if rule.soft is None)
    borrow = replace(problem.borrow, gate_ms=None)
    return replace(problem, rules=hard, tiers=(), hurdle=None, borrow=borrow)


def _answer(problem: DecisionProblem, solver: Solver, limits: Limits) -> Solution:
    solution = solve_problem(problem, solver, limits=limits)
    if solution.status is SolveStatus.LIMIT:
        raise NoAnswerError(f"{solver.id} found no answer within {limits.time_s:g} s; raise the time limit")
    return solution


def minimal_conflict(problem: DecisionProblem, solver: Solver, limits: Limits) -> tuple[Rule, ...]:
    """Hard rules that cannot hold together and of which each is needed; empty if feasible, or infeasible without any.

    QuickXplain (Junker, AAAI 2004): about k·log(n/k) solves for a conflict of k out of n rules.
    """

    def feasible(rules: Sequence[Rule]) -> bool:
        return _answer(replace(problem, rules=tuple(rules)), solver, limits).status is not SolveStatus.INFEASIBLE

    rules = [rule for rule in problem.rules if rule.soft is None]
    if not feasible([]) or feasible(rules):
        return ()
    needed = {rule.name for rule in _quick_explain(feasible, [], False, rules)}
    return tuple(rule for rule in rules if rule.name in needed)


def _quick_explain(feasible: Feasible, background: list[Rule], added: bool, rules: list[Rule]) -> list[Rule]:
    if added and not feasible(background):
        return []
    if len(rules) == 1:
        return rules
    half = len(rules) // 2
    first, second = rules[:half], rules[half:]
    from_second = _quick_explain(feasible, background + first, bool(first), second)
    from_first = _quick_explain(feasible, background + from_second, bool(from_second), first)
    return from_first + from_second


def _corrections(
    problem: DecisionProblem, conflict: tuple[Rule, ...], solver: Solver, limits: Limits
) -> Iterator[Correction]:
    """Single rules of the conflict that mend it when loosened; failing that, one minimal set of relaxable rules."""

    def feasible_without(names: set[str]) -> bool:
        kept = tuple(rule for rule in problem.rules if rule.name not in names)
        return _answer(replace(problem, rules=kept), solver, limits).status is not SolveStatus.INFEASIBLE

    singles = [rule for rule in conflict if rule.relaxable and feasible_without({rule.name})]
    for rule in singles:
        yield from _loosened(problem, (rule,), solver, limits)
    relaxable = {rule.name for rule in problem.rules if rule.relaxable}
    if singles or not conflict or not feasible_without(relaxable):
        return
    dropped = set(relaxable)
    for name in sorted(relaxable):
        if feasible_without(dropped - {name}):
            dropped.discard(name)
    chosen = tuple(rule for rule in problem.rules if rule.name in dropped)
    yield from _loosened(problem, chosen, solver, limits)


def _loosened(
    problem: DecisionProblem, rules: tuple[Rule, ...], solver: Solver, limits: Limits
) -> Iterator[Correction]:
    """The least loosening of these rules, solved again with the rules as hard as before."""
    amounts = _least_amounts(problem, rules, solver, limits)
    if amounts is None:
        return
    shifted = {rule.name: _shift(rule, amounts[rule.name]) for rule in rules}
    mended = replace(problem, rules=tuple(shifted.get(rule.name, rule) for rule in problem.rules))
    solution = _answer(mended, solver, limits)
    if solution.assignment is None:
        return
    point = evaluate(mended, solution.assignment)
    relaxations = tuple(_relaxation(rule, amounts[rule.name]) for rule in rules if amounts[rule.name])
    yield Correction(relaxations=relaxations, counts=point.counts, makespan_s=point.makespan_ms / 1000)


def _least_amounts(
    problem: DecisionProblem, rules: tuple[Rule, ...], solver: Solver, limits: Limits
) -> dict[str, int] | None:
    """Smallest excess of each rule, in integers of its row, when all may be broken; None if even so infeasible."""
    names = {rule.name for rule in rules}
    soft = tuple(replace(r, soft=Soft(penalty_ms=1)) if r.name in names else r for r in problem.rules)
    softened = replace(problem, rules=soft)
    solution = _answer(softened, solver, limits)
    if solution.assignment is None:
        return None
    values = evaluate(softened, solution.assignment).rule_values
    return {rule.name: max(0, value or 0) for rule, value in zip(soft, values, strict=True) if rule.name in names}


def _shift(rule: Rule, amount: int) -> Rule:
    return replace(rule, expr=replace(rule.expr, constant=rule.expr.constant - amount))


def _relaxation(rule: Rule, amount: int) -> Relaxation:
    value = float(amount / rule.expr.scale)
    return Relaxation(rule=rule.name, amount=value, unit=rule.expr.unit, text=rule.message or rule.text, span=rule.span)


def least_violation(problem: DecisionProblem, solver: Solver, limits: Limits) -> LeastViolation:
    """Rules that a problem (say, with fixed counts) cannot keep, and by how much at least."""
    bare = _bare(problem)
    dropped: list[Rule] = []
    while True:
        kept = tuple(rule for rule in bare.rules if rule not in dropped)
        conflict = minimal_conflict(replace(bare, rules=kept), solver, limits)
        if not conflict:
            break
        dropped.append(conflict[0])
    amounts = _least_amounts(bare, tuple(dropped), solver, limits)
    if amounts is None:
        return LeastViolation(rules=(), structural="these workers cannot take those roles in a mode that is allowed")
    soft = tuple(replace(r, soft=Soft(penalty_ms=1)) if r in dropped else r for r in bare.rules)
    point = _point(replace(bare, rules=soft), solver, limits)
    broken = tuple((rule, float(amounts[rule.name] / rule.expr.scale)) for rule in dropped if amounts[rule.name])
    return LeastViolation(rules=broken, role_changes=point.role_changes if point else 0)


def _point(problem: DecisionProblem, solver: Solver, limits: Limits) -> Evaluation | None:
    assignment = _answer(problem, solver, limits).assignment
    return None if assignment is None else evaluate(problem, assignment)


def _resource_fixes(posed: Posed, solver: Solver, limits: Limits) -> Iterator[ResourceFix]:
    """Workers to add, and the batch that today's workers could serve."""
    zones = {worker.zone for worker in posed.situation.state.workers}
    zone = Zone.PREEMPTIBLE if Zone.PREEMPTIBLE in zones else Zone.RESERVED

    def with_workers(number: int) -> Evaluation | None:
        state = _enlarged(posed.situation.state, zone, number)
        return _reposed(posed, replace(posed.situation, state=state), posed.workload.trajectories, solver, limits)

    def with_trajectories(number: int) -> Evaluation | None:
        return _reposed(posed, posed.situation, number, solver, limits)

    most = min(MOST_ADDED_WORKERS, max(LEAST_GROWTH, GROWTH_TRIED * len(posed.situation.state.workers)))
    added = _first_feasible(with_workers, low=0, high=most)
    if added:
        yield _fix("add_workers", zone, *added)
    fewer = _last_feasible(with_trajectories, high=posed.workload.trajectories)
    if fewer:
        yield _fix("trajectories", None, *fewer)


def _fix(kind: str, zone: Zone | None, amount: int, point: Evaluation) -> ResourceFix:
    makespan_s = point.makespan_ms / 1000
    return ResourceFix(kind=kind, zone=zone, amount=amount, counts=point.counts, makespan_s=makespan_s)


def _enlarged(state: ClusterState, zone: Zone, number: int) -> ClusterState:
    model = state.workers[0] if state.workers else None
    extra = tuple(
        Worker(
            id=f"added/{i}",
            node=f"added-{i}",
            zone=zone,
            role=Role.INACTIVE,
            status=Status.INACTIVE,
            gpus=model.gpus if model else 1,
            started=False,
        )
        for i in range(number)
    )
    return state.with_workers((*state.workers, *extra))


def _reposed(
    posed: Posed, situation: Situation, trajectories: int, solver: Solver, limits: Limits
) -> Evaluation | None:
    workload = replace(posed.workload, trajectories=trajectories)
    again = pose(situation, workload, posed.policy, posed.predictor)
    borrow = BorrowTerms(max_workers=again.borrow_limit)
    return _point(replace(_bare(again.problem(borrow=borrow)), tiers=again.bound.tiers), solver, limits)


def _first_feasible(
    attempt: Callable[[int], Evaluation | None], *, low: int, high: int
) -> tuple[int, Evaluation] | None:
    """Smallest number in (low, high] that is feasible, by doubling and bisection; None if none was found."""
    step, found = 1, None
    while found is None and low + step <= high:
        point = attempt(low + step)
        if point is not None:
            found = (low + step, point)
        else:
            low, step = low + step, step * 2
    while found and found[0] - low > 1:
        middle = (low + found[0]) // 2
        point = attempt(middle)
        if point is None:
            low = middle
        else:
            found = (middle, point)
    return found


def _last_feasible(attempt: Callable[[int], Evaluation | None], *, high: int) -> tuple[int, Evaluation] | None:
    """Largest number in [1, high) that is feasible, by bisection; None if not even 1 is."""
    low, found = 0, None
    while high - low > 1:
        middle = (low + high) // 2
        point = attempt(middle)
        if point is None:
            high = middle
        else:
            low, found = middle, (middle, point)
    return found
