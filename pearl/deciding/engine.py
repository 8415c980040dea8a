"""The PD Decision Engine: pose, solve, gate; one pure function from a situation to a decision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from pearl.core.cluster import Role, Status, Zone
from pearl.core.decision import Outcome, Reason, ReasonCode
from pearl.core.facts import HysteresisSemantics, OnLimit
from pearl.core.problem import (
    UNREACHABLE_MS,
    Assignment,
    BorrowTerms,
    DecisionProblem,
)
from pearl.core.situation import Situation
from pearl.core.workload import Workload
from pearl.deciding import refusals
from pearl.deciding.conditions import in_words
from pearl.deciding.facts import NO_WINDOW_S
from pearl.deciding.gates import borrow_gate_ms, hurdle, in_cooldown, threshold_ms
from pearl.deciding.posing import Posed, pose
from pearl.deciding.refusals import Refusal
from pearl.deciding.standing import loss, optima
from pearl.makespan.protocol import Predictor
from pearl.policy.model import Policy
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import Evaluation, evaluate
from pearl.solving.protocol import Limits, Solution, Solver, SolveStatus

NO_BORROW = BorrowTerms(max_workers=0)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A decision in full: what was posed and answered, what is to be carried out, and why.

    `assignment` is what the plan carries out; for every outcome but a switch it is to stay. `rejected` is the best
    configuration that a gate turned down, where one did.
    """

    posed: Posed
    problem: DecisionProblem
    solution: Solution
    outcome: Outcome
    assignment: Assignment
    reasons: tuple[Reason, ...]
    forced_by: tuple[str, ...] = ()
    rejected: Evaluation | None = None
    refusal: Refusal | None = None
    """Why `rejected` was turned down."""

    @cached_property
    def chosen(self) -> Evaluation:
        """The assignment, judged by the problem without its gates."""
        return evaluate(replace(self.problem, hurdle=None, fixed=None, excluded=()), self.assignment)


def decide(
    situation: Situation,
    workload: Workload,
    policy: Policy,
    *,
    predictor: Predictor,
    solver: Solver,
    time_limit_s: float | None = None,
    seed: int | None = None,
    explain: bool = True,
) -> Verdict:
    """Decide; the limits given override the policy's. Raises PolicyError for a policy that does not fit.

    Without `explain`, a keep does not name the configuration that a gate turned down: that takes another solve.
    """
    posed = pose(situation, workload, policy, predictor)
    choice = posed.bound.solver
    limits = Limits(time_s=time_limit_s or choice.time_limit_s, seed=choice.seed if seed is None else seed)
    borrow, notes = _borrow_terms(posed, solver, limits)
    forced_by = stay_faults(posed, borrow)
    problem = gated_problem(posed, borrow, forced=bool(forced_by))
    solution = solve_problem(problem, solver, limits=limits)
    verdict = _verdict(posed, problem, solution, forced_by=forced_by)
    verdict = _after_gates(verdict, solver if explain else None, limits)
    return replace(verdict, reasons=(*_mandatory(posed), *verdict.reasons, *_borrow_reasons(verdict, notes)))


def gated_problem(posed: Posed, borrow: BorrowTerms, *, forced: bool) -> DecisionProblem:
    """The problem with the policy's hysteresis on it."""
    gate = hurdle(posed.bound.hysteresis, stay_ms=posed.stay_ms, changes=posed.situation.changes, forced=forced)
    return posed.problem(borrow=borrow, hurdle=gate)


def stay_faults(posed: Posed, borrow: BorrowTerms) -> tuple[str, ...]:
    """Names of what staying breaks; empty where the survivors may stay as they are."""
    stay = evaluate(posed.problem(borrow=borrow), posed.stay)
    return tuple(sorted({str(name) for name, _ in stay.broken}))


def _borrow_terms(posed: Posed, solver: Solver, limits: Limits) -> tuple[BorrowTerms, tuple[Reason, ...]]:
    """Terms of borrowing, from the optimum without it; and what there is to say about them."""
    rules = posed.bound.borrow
    if not posed.lendable:
        return NO_BORROW, ()
    if posed.borrow_limit == 0:
        code = ReasonCode.BORROW_STALE if rules.stale else ReasonCode.BORROW_DISABLED
        return NO_BORROW, (Reason(code=code, text=rules.stale or "the policy does not borrow now"),)
    open_terms = BorrowTerms(max_workers=posed.borrow_limit)
    if not rules.gated:
        return open_terms, ()
    base = _base_solution(posed, solver, limits)
    if base.makespan_ms is None:
        return open_terms, ()
    cost_s = rules.min_saving_s
    if _borrowing(posed.stay, posed):
        cost_s = max(0.0, cost_s - posed.situation.costs.borrow_s)
    window_ms = UNREACHABLE_MS if rules.window_s is None else round(rules.window_s * 1000)
    gate_ms = borrow_gate_ms(base_ms=base.makespan_ms, window_ms=window_ms, cost_ms=round(cost_s * 1000))
    note = _borrow_note(base_ms=base.makespan_ms, gate_ms=gate_ms, cost_s=cost_s, window_s=rules.window_s)
    if gate_ms <= 0:
        return NO_BORROW, (note,)
    return BorrowTerms(max_workers=posed.borrow_limit, gate_ms=gate_ms), (note,)


def _borrow_note(*, base_ms: int, gate_ms: int, cost_s: float, window_s: float | None) -> Reason:
    """The bar for borrowing and what it was made from; a window without a known end is left out."""
    base_s, gate_s = base_ms / 1000, gate_ms / 1000
    data = {"base_s": base_s, "gate_s": gate_s, "min_saving_s": cost_s}
    within = ""
    if window_s is not None and window_s != NO_WINDOW_S:
        data["window_s"] = window_s
        within = f", with the GPUs free for {window_s:.1f} s"
    text = f"borrowing must bring the makespan to {gate_s:.1f} s{within}; {base_s:.1f} s without it"
    if gate_ms <= 0:
        text = f"borrowing cannot pay: it costs {cost_s:.1f} s{within}; {base_s:.1f} s without it"
    return Reason(code=ReasonCode.BORROW_GATE, text=text, data=data)


def _base_solution(posed: Posed, solver: Solver, limits: Limits) -> Solution:
    """The optimum without overlap workers; hysteresis applies to it as long as staying does not borrow."""
    if _borrowing(posed.stay, posed):
        return solve_problem(posed.problem(borrow=NO_BORROW), solver, limits=limits)
    forced = bool(stay_faults(posed, NO_BORROW))
    return solve_problem(gated_problem(posed, NO_BORROW, forced=forced), solver, limits=limits)


def _borrowing(assignment: Assignment, posed: Posed) -> int:
    zones = {g.group.id: g.group.zone for g in posed.groups}
    return sum(
        n for (group, role), n in assignment.items() if role is not Role.INACTIVE and zones[group] is Zone.OVERLAP
    )


def _verdict(posed: Posed, problem: DecisionProblem, solution: Solution, *, forced_by: tuple[str, ...]) -> Verdict:
    """Read a solution: keep, switch, infeasible or limit."""

    def made(outcome: Outcome, *reasons: Reason, assignment: Assignment = posed.stay) -> Verdict:
        return Verdict(
            posed=posed,
            problem=problem,
            solution=solution,
            outcome=outcome,
            assignment=assignment,
            reasons=reasons,
            forced_by=forced_by,
        )

    moving = sum(w.status is Status.TRANSITIONING for w in posed.situation.state.workers)
    if solution.status is SolveStatus.INFEASIBLE and moving:
        text = f"nothing else is possible while {moving} worker(s) are in transition; to be decided again then"
        return made(Outcome.KEEP, Reason(code=ReasonCode.IN_TRANSITION, text=text, data={"workers": moving}))
    if solution.status is SolveStatus.INFEASIBLE:
        text = "no configuration of these workers meets the policy's hard rules"
        return made(Outcome.INFEASIBLE, Reason(code=ReasonCode.INFEASIBLE, text=text))
    proved = solution.status is SolveStatus.OPTIMAL
    if solution.assignment is None or (not proved and posed.bound.solver.on_limit is not OnLimit.BEST_SO_FAR):
        text = f"the solver's time limit passed ({solution.detail or solution.status.value}); nothing is changed"
        return made(Outcome.LIMIT, Reason(code=ReasonCode.LIMIT_KEEP, text=text))
    reasons = [] if proved else [_best_so_far(solution)]
    if solution.assignment == posed.stay:
        return made(Outcome.KEEP, *reasons)
    return made(Outcome.SWITCH, *reasons, assignment=solution.assignment)


def _best_so_far(solution: Solution) -> Reason:
    text = "the time limit passed; this is the best configuration found, not proved best"
    return Reason(
        code=ReasonCode.LIMIT_BEST_SO_FAR, text=text, data={} if solution.bound is None else {"bound": solution.bound}
    )


def _after_gates(verdict: Verdict, solver: Solver | None, limits: Limits) -> Verdict:
    """Apply what no row can say (veto, calibration), and name what a gate turned down, given a solver to find it."""
    if verdict.outcome is Outcome.SWITCH:
        return _veto(_calibrated(_switch_reasons(verdict, solver, limits)))
    if verdict.outcome is Outcome.KEEP and verdict.solution.status is SolveStatus.OPTIMAL:
        return _keep_reasons(verdict, solver, limits)
    return verdict


def _switch_reasons(verdict: Verdict, solver: Solver | None, limits: Limits) -> Verdict:
    chosen, stay_ms = verdict.chosen, verdict.posed.stay_ms
    if verdict.forced_by:
        broken = ", ".join(in_words(verdict.forced_by, verdict.problem.rules))
        left = verdict.posed.stay_counts
        text = f"staying breaks {broken}; {left.label() if left.serving else 'nothing'} would be left to serve"
        return _add(verdict, Reason(code=ReasonCode.FORCED, text=text))
    gain_s = (stay_ms - chosen.makespan_ms) / 1000
    text = f"{chosen.counts.label()} is best: {gain_s:.1f} s off the {stay_ms / 1000:.1f} s of staying"
    if gain_s <= 0:
        text = (
            f"{chosen.counts.label()} is best by the policy's tiers: {-gain_s:.1f} s on top of the "
            f"{stay_ms / 1000:.1f} s of staying{_what_staying_lacks(verdict, solver, limits)}"
        )
    return _add(verdict, Reason(code=ReasonCode.BEST, text=text, data={"gain_s": gain_s}))


def _what_staying_lacks(verdict: Verdict, solver: Solver | None, limits: Limits) -> str:
    """The tier in which staying lost, where that is proved and a solver is there to measure a tolerance."""
    if solver is None or verdict.solution.status is not SolveStatus.OPTIMAL:
        return ""
    problem = verdict.problem
    stay, answer = evaluate(problem, verdict.posed.stay), evaluate(problem, verdict.assignment)
    lost = loss(problem, stay, answer, optima(problem, solver, limits)) if stay.feasible else None
    return f", which is {lost.text()}" if lost else ""


def _veto(verdict: Verdict) -> Verdict:
    rules = verdict.posed.bound.hysteresis
    if verdict.outcome is not Outcome.SWITCH or verdict.forced_by or rules.semantics is not HysteresisSemantics.VETO:
        return verdict
    chosen = verdict.chosen
    cooling = [
        kind for kind in chosen.changes if in_cooldown(rules.cooldown(kind), verdict.posed.situation.changes.get(kind))
    ]
    if cooling:
        return _turned_down(verdict, refusals.in_cooldown(cooling))
    asked_ms, gain_ms = threshold_ms(rules, chosen.changes), verdict.posed.stay_ms - chosen.makespan_ms
    if chosen.changes and gain_ms < asked_ms:
        return _turned_down(verdict, refusals.too_little(gain_ms=gain_ms, asked_ms=asked_ms))
    return verdict


def _calibrated(verdict: Verdict) -> Verdict:
    """No optional change while predictions miss by more than the change would gain."""
    error = verdict.posed.situation.calibration_error
    if verdict.outcome is not Outcome.SWITCH or verdict.forced_by or error is None:
        return verdict
    stay_ms = verdict.posed.stay_ms
    margin = (stay_ms - verdict.chosen.makespan_ms) / stay_ms
    return verdict if margin >= error else _turned_down(verdict, refusals.mispredicted(error=error, margin=margin))


def _turned_down(verdict: Verdict, refusal: Refusal) -> Verdict:
    """The same verdict as a keep, with what was turned down."""
    rejected = verdict.chosen
    label = rejected.counts.label()
    reason = Reason(
        code=refusal.code,
        text=f"{label} turned down: {refusal.why}",
        data={"rejected": label, "rejected_s": rejected.makespan_ms / 1000, **refusal.data},
    )
    return replace(
        verdict,
        outcome=Outcome.KEEP,
        assignment=verdict.posed.stay,
        reasons=(reason,),
        rejected=rejected,
        refusal=refusal,
    )


def _keep_reasons(verdict: Verdict, solver: Solver | None, limits: Limits) -> Verdict:
    """Why nothing changes: nothing is better, or a better one is kept out by the hurdle, which takes a solve to say."""
    if verdict.problem.hurdle is not None:
        if solver is None:
            return _add(verdict, Reason(code=ReasonCode.NO_BETTER, text="nothing better passes the policy's gates"))
        free = solve_problem(replace(verdict.problem, hurdle=None), solver, limits=limits)
        if free.assignment is not None and free.assignment != verdict.assignment:
            return _hurdle_kept(verdict, free.assignment, solver, limits)
    return _nothing_better(verdict)


def _nothing_better(verdict: Verdict) -> Verdict:
    text = f"nothing is better than {verdict.posed.stay_counts.label()} by the policy's tiers"
    return _add(verdict, Reason(code=ReasonCode.NO_BETTER, text=text))


def _hurdle_kept(verdict: Verdict, better: Assignment, solver: Solver, limits: Limits) -> Verdict:
    """Turn down what would be best without thresholds and cooldowns, by what decides with them."""
    problem = verdict.problem
    assert problem.hurdle is not None, "only a hurdle keeps a better one out"
    point, stay = evaluate(problem, better), evaluate(problem, verdict.assignment)
    other = replace(verdict, assignment=better)
    cooling = point.changes & problem.hurdle.forbidden
    if cooling:
        return _turned_down(other, refusals.in_cooldown(cooling))
    if not point.feasible:
        asked_ms = threshold_ms(verdict.posed.bound.hysteresis, point.changes)
        gain_ms = verdict.posed.stay_ms - point.makespan_ms
        return _turned_down(other, refusals.too_little(gain_ms=gain_ms, asked_ms=asked_ms))
    lost = loss(problem, point, stay, optima(problem, solver, limits))
    if lost is None and not point.charge_ms:
        return _nothing_better(verdict)
    return _turned_down(other, refusals.outdone(problem, point, stay, lost))


def _mandatory(posed: Posed) -> tuple[Reason, ...]:
    """Workers that leave whatever is decided."""
    leaving = [w for w in posed.situation.state.workers if w.must_leave and w.role is not Role.INACTIVE]
    returns = sum(w.zone is Zone.OVERLAP for w in leaving)
    reclaimed = len(leaving) - returns
    reasons = []
    if returns:
        text = f"{returns} borrowed worker(s) go back to training"
        reasons.append(Reason(code=ReasonCode.MANDATORY_RETURN, text=text, data={"workers": returns}))
    if reclaimed:
        text = f"{reclaimed} worker(s) are being reclaimed"
        reasons.append(Reason(code=ReasonCode.RECLAIMED, text=text, data={"workers": reclaimed}))
    return tuple(reasons)


def _borrow_reasons(verdict: Verdict, notes: tuple[Reason, ...]) -> tuple[Reason, ...]:
    borrowed = _borrowing(verdict.assignment, verdict.posed)
    if not borrowed:
        return notes
    data = dict(notes[0].data) if notes else {}
    data["workers"] = borrowed
    detail = f"; {notes[0].text}" if notes else ""
    text = f"{borrowed} overlap worker(s) serve{detail}"
    return (Reason(code=ReasonCode.BORROW_GAIN, text=text, data=data),)


def _add(verdict: Verdict, reason: Reason) -> Verdict:
    return replace(verdict, reasons=(*verdict.reasons, reason))
