"""From a verdict to a decision that people and programs can read: candidates, margins, rules with their slack."""

from __future__ import annotations

from dataclasses import replace

from pearl.core.decision import Candidate, Decision, PathTimes, RuleReport, SolverReport
from pearl.core.problem import UNREACHABLE_MS, DecisionProblem, Rule
from pearl.deciding.engine import Verdict
from pearl.solving.evaluate import Evaluation
from pearl.solving.protocol import Limits, Solver, SolveStatus
from pearl.solving.tiers import priced_tiers


def explain(verdict: Verdict, solver: Solver, limits: Limits) -> Decision:
    """The decision in full, with the runner-up."""
    from pearl.deciding.alternatives import alternatives

    others = alternatives(verdict, solver, limits, number=1) if verdict.chosen.feasible else ()
    decision = summarise(verdict, solver)
    if not others:
        return decision
    other = others[0]
    runner_up = Candidate(counts=other.counts, makespan_s=other.makespan_s, role_changes=other.role_changes)
    return replace(decision, runner_up=runner_up)


def summarise(verdict: Verdict, solver: Solver) -> Decision:
    """The decision without anything that takes another solve."""
    chosen, posed = verdict.chosen, verdict.posed
    stay = None
    if posed.stay_ms < UNREACHABLE_MS:
        stay = Candidate(counts=posed.stay_counts, makespan_s=posed.stay_ms / 1000, role_changes=0)
    return Decision(
        outcome=verdict.outcome,
        mode=chosen.mode,
        counts=chosen.counts,
        reasons=verdict.reasons,
        forced_by=verdict.forced_by,
        chosen=_candidate(chosen) if chosen.makespan_ms < UNREACHABLE_MS else None,
        stay=stay,
        rules=rule_reports(verdict.problem, chosen),
        solver=_solver_report(verdict, solver),
        targets=tuple(sorted((group, role, n) for (group, role), n in verdict.assignment.items())),
    )


def path_times(verdict: Verdict) -> PathTimes | None:
    """Predicted parts of the chosen configuration's makespan; None where nothing serves."""
    chosen = verdict.chosen
    if chosen.mode is None or chosen.makespan_ms >= UNREACHABLE_MS:
        return None
    return verdict.posed.predictor.paths(verdict.posed.workload, verdict.posed.situation.engine, chosen.counts)


def _candidate(point: Evaluation) -> Candidate:
    return Candidate(
        counts=point.counts,
        makespan_s=point.makespan_ms / 1000,
        role_changes=point.role_changes,
        adds=point.adds,
        removes=point.removes,
    )


def rule_reports(problem: DecisionProblem, point: Evaluation) -> tuple[RuleReport, ...]:
    """Each rule's slack at a point, in the rule's own unit."""
    rows = zip(problem.rules, point.rule_values, point.violations, strict=True)
    return tuple(_report(rule, value, violation) for rule, value, violation in rows)


def _report(rule: Rule, value: int | None, violation: int) -> RuleReport:
    slack = 0.0 if value is None else float(-value / rule.expr.scale)
    return RuleReport(
        name=rule.name,
        span=rule.span,
        text=rule.text,
        slack=slack,
        unit=rule.expr.unit,
        active=value is not None,
        binding=value is not None and _binding(rule, value),
        violation=float(violation),
    )


def _binding(rule: Rule, value: int) -> bool:
    """Whether one more worker, moved the wrong way, would break the rule."""
    step = max((abs(coefficient) for _, _, coefficient in rule.expr.counts), default=0)
    return value + step > 0


def _solver_report(verdict: Verdict, solver: Solver) -> SolverReport:
    solution = verdict.solution
    tiers = priced_tiers(verdict.problem)
    values: tuple[float, ...] = ()
    if solution.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
        scales = [priced.tier.terms[0].scale if priced.tier.terms else 1 for priced in tiers]
        values = tuple(float(value / scale) for value, scale in zip(solution.tier_values, scales, strict=False))
    return SolverReport(
        id=solver.id,
        library_version=solver.library_version(),
        status=solution.status.value,
        build_s=solution.build_s,
        solve_s=solution.solve_s,
        tier_values=values,
        bound=solution.bound,
    )
