"""The lexicographic driver: one tier after another, each held before the next, every point re-checked exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pearl.core.problem import Assignment, DecisionProblem
from pearl.errors import SolverContractError
from pearl.solving.backend import objective_value, violation
from pearl.solving.check import check_problem
from pearl.solving.evaluate import Evaluation, evaluate
from pearl.solving.formulation import assignment_of, formulate
from pearl.solving.guard import guarded, refuse_if_today_holds
from pearl.solving.ir import Model, Objective, Point, Row
from pearl.solving.protocol import Answer, Limits, ModelSolver, ProblemSolver, Solution, Solver, SolveStatus
from pearl.solving.scope import Window
from pearl.solving.tiers import PricedTier, held_bound, priced_tiers
from pearl.solving.window import WindowSearch

Timer = Callable[[], float]
"""Seconds from an arbitrary start."""


def solve_problem(
    problem: DecisionProblem, solver: Solver, *, limits: Limits | None = None, timer: Timer = time.perf_counter
) -> Solution:
    """Solve every tier in order, within one time limit, and re-check the answer exactly.

    A tier is minimised, then held within its tolerance. Last, the tiers with a tolerance are minimised once more
    within everything held, so that no tolerance is used up without need and the tier values are unique.

    Raises ValueError for a problem without meaning, SolverContractError for an answer that does not hold.
    """
    limits = limits or Limits()
    check_problem(problem)
    if isinstance(solver, ModelSolver):
        return _TierRun(problem=problem, solver=solver, limits=limits, timer=timer, started=timer()).solve()
    return _solve_structured(problem, solver, limits, timer)


def recheck(problem: DecisionProblem, solution: Solution, *, solver_id: str) -> Solution:
    """The solution itself, if its assignment is feasible and worth what it says; else SolverContractError."""
    answered = solution.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)
    if answered is not (solution.assignment is not None):
        raise SolverContractError(
            f"solver {solver_id!r} answers {solution.status} {'without' if answered else 'with'} an assignment"
        )
    if solution.assignment is None:
        return solution
    judged = _feasible(evaluate(problem, solution.assignment), solver_id)
    found = (solution.makespan_ms, solution.tier_values)
    if found != (judged.makespan_ms, judged.tier_values):
        raise SolverContractError(
            f"solver {solver_id!r} claims makespan and tier values {found}, its assignment has "
            f"{(judged.makespan_ms, judged.tier_values)}"
        )
    return solution


def _solve_structured(problem: DecisionProblem, solver: ProblemSolver, limits: Limits, timer: Timer) -> Solution:
    started = timer()
    solution = guarded(lambda: solver.solve(problem, limits=limits), Solution, solver_id=solver.id)
    solve_s = timer() - started
    if solution.status is SolveStatus.INFEASIBLE:
        refuse_if_today_holds(problem, solution.detail, solver_id=solver.id)
    return replace(recheck(problem, solution, solver_id=solver.id), build_s=0.0, solve_s=solve_s)


def _feasible(judged: Evaluation, solver_id: str) -> Evaluation:
    if judged.feasible:
        return judged
    why = list(judged.faults) + [f"{name} by {amount}" for name, amount in judged.broken]
    raise SolverContractError(f"solver {solver_id!r} returned an assignment that breaks {'; '.join(why)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Incumbent:
    """The best assignment so far, and what it is worth."""

    assignment: Assignment
    judged: Evaluation
    point: Point | None
    """Its point in the current model, to start from; None where that is not known."""


@dataclass(kw_only=True)
class _TierRun:
    """One run of a model solver over the tiers of a problem."""

    problem: DecisionProblem
    solver: ModelSolver
    limits: Limits
    timer: Timer
    started: float
    build_s: float = 0.0
    solve_s: float = 0.0
    proved: bool = True
    """Every tier so far is minimised with proof."""
    bound: float | None = None
    detail: str = ""
    tiers: tuple[PricedTier, ...] = field(init=False)
    model: Model = field(init=False)
    best: _Incumbent = field(init=False)

    def solve(self) -> Solution:
        self.tiers = priced_tiers(self.problem)
        failure = self._first_tier()
        if failure is not None:
            return Solution(status=failure, detail=self.detail, build_s=self.build_s, solve_s=self.solve_s)
        last = len(self.tiers) - 1
        optima = [self.best.judged.tier_values[0]]
        self._hold(0, exactly=last == 0)
        for k in range(1, last + 1):
            self._minimize_again(k, more=k < last)
            optima.append(self.best.judged.tier_values[k])
            self._hold(k, exactly=k == last)
        for k, tier in enumerate(self.tiers[:-1]):
            if not tier.tolerance_ppb:
                continue
            if self.best.judged.tier_values[k] > optima[k]:
                self._minimize_again(k, more=True)
            self._hold(k, exactly=True)
        return self._solution()

    def _first_tier(self) -> SolveStatus | None:
        """Find the first tier's optimum in a window wide enough; the status if there is no point."""
        before = self.timer()
        search = WindowSearch.of(self.problem)
        self.build_s += self.timer() - before
        ends = list(search.highs_ms)
        while True:
            window = search.window(ends.pop(0))
            before = self.timer()
            self.model = formulate(self.problem, window)
            self.build_s += self.timer() - before
            objective = self.model.objectives[0]
            answer = self._ask(objective, hint=None, more=len(self.tiers) > 1 or bool(ends))
            self.bound, self.detail = answer.bound, answer.detail
            match answer.status:
                case SolveStatus.INFEASIBLE | SolveStatus.LIMIT if ends:
                    ends = ends if answer.status is SolveStatus.INFEASIBLE else ends[-1:]
                case SolveStatus.INFEASIBLE | SolveStatus.LIMIT:
                    if answer.status is SolveStatus.INFEASIBLE:
                        refuse_if_today_holds(self.problem, answer.detail, solver_id=self.solver.id)
                    return answer.status
                case _:
                    self.best = self._checked(answer, objective, 0)
                    self.proved = answer.status is SolveStatus.OPTIMAL
                    value = self.best.judged.tier_values[0]
                    if not self.proved or search.proves(value, window):
                        self._widen(search, window)
                        return None
                    ends = [search.needed_ms(value)]

    def _widen(self, search: WindowSearch, window: Window) -> None:
        """Let in every assignment that the first tier's tolerance admits; its optimum stands (see `window`)."""
        needed_ms = search.needed_ms(self.best.judged.tier_values[0])
        if needed_ms <= window.high_ms:
            return
        narrow = self.model
        before = self.timer()
        self.model = formulate(self.problem, search.window(needed_ms))
        self.best = replace(self.best, point=_carried(narrow, self.model, self.best.point))
        self.build_s += self.timer() - before

    def _minimize_again(self, k: int, *, more: bool) -> None:
        """Minimise tier k within what is held, from the best point so far; keep that point if time runs out."""
        objective = self.model.objectives[k]
        if self.best.judged.tier_values[k] == _least(self.model, objective):
            return
        answer = self._ask(objective, hint=self.best.point, more=more)
        if answer.status is SolveStatus.INFEASIBLE:
            raise SolverContractError(
                f"solver {self.solver.id!r} says {answer.detail!r} of tier {objective.name!r}, and a point is known"
            )
        if answer.status is not SolveStatus.OPTIMAL:
            self.proved = False
        if answer.status is SolveStatus.LIMIT:
            return
        found = self._checked(answer, objective, k)
        if found.judged.tier_values[k] <= self.best.judged.tier_values[k]:
            self.best = found
        elif answer.status is SolveStatus.OPTIMAL:
            raise SolverContractError(
                f"solver {self.solver.id!r} calls {found.judged.tier_values[k]} optimal for tier {objective.name!r}; "
                f"{self.best.judged.tier_values[k]} is known"
            )

    def _hold(self, k: int, *, exactly: bool) -> None:
        objective = self.model.objectives[k]
        bound = held_bound(self.best.judged.tier_values[k], 0 if exactly else self.tiers[k].tolerance_ppb)
        if objective.terms:
            row = Row(name=f"hold[{objective.name}]", terms=objective.terms, high=bound - objective.constant)
            self.model = replace(self.model, rows=(*self.model.rows, row))

    def _ask(self, objective: Objective, *, hint: Point | None, more: bool) -> Answer:
        """One minimisation: half of the time left, all of it for the last."""
        before = self.timer()
        left = max(0.0, self.limits.time_s - (before - self.started))
        limits = replace(self.limits, time_s=left / 2 if more else left)
        answer = guarded(
            lambda: self.solver.minimize(self.model, objective, limits=limits, hint=hint),
            Answer,
            solver_id=self.solver.id,
        )
        self.solve_s += self.timer() - before
        return answer

    def _asked_again(self, objective: Objective, k: int, judged: Evaluation) -> _Incumbent:
        """The optimum under the value that was found beside a claim: tolerances of doubles hid it from the solver."""
        high = judged.tier_values[k] - objective.constant
        known = Row(name=f"known[{objective.name}]", terms=objective.terms, high=high)
        held, self.model = self.model, replace(self.model, rows=(*self.model.rows, known))
        try:
            answer = self._ask(objective, hint=None, more=True)
            if answer.status in (SolveStatus.INFEASIBLE, SolveStatus.LIMIT):
                raise SolverContractError(
                    f"solver {self.solver.id!r} finds nothing as good as the {judged.tier_values[k]} that is known for "
                    f"tier {objective.name!r}: the numbers are too large for its tolerances; use cpsat"
                )
            return self._checked(answer, objective, k, retry_below=judged.tier_values[k])
        finally:
            self.model = held

    def _checked(self, answer: Answer, objective: Objective, k: int, *, retry_below: float = math.inf) -> _Incumbent:
        """The answer's point, re-checked against rows and problem, its tier read from the tables."""
        point = answer.point
        if point is None:
            raise SolverContractError(f"solver {self.solver.id!r} answers {answer.status} without a point")
        broken = violation(self.model, point)
        if broken:
            raise SolverContractError(f"solver {self.solver.id!r} returned a point that does not hold: {broken}")
        assignment = assignment_of(self.problem, point)
        judged = _feasible(evaluate(self.problem, assignment), self.solver.id)
        value = objective_value(objective, point)
        if answer.status is SolveStatus.OPTIMAL and judged.tier_values[k] < value <= retry_below:
            return self._asked_again(objective, k, judged)
        if judged.tier_values[k] > value or (answer.status is SolveStatus.OPTIMAL and judged.tier_values[k] < value):
            raise SolverContractError(
                f"solver {self.solver.id!r} calls {value} {answer.status} for tier {objective.name!r}; "
                f"its assignment is worth {judged.tier_values[k]}"
            )
        return _Incumbent(assignment=assignment, judged=judged, point=point)

    def _solution(self) -> Solution:
        return Solution(
            status=SolveStatus.OPTIMAL if self.proved else SolveStatus.FEASIBLE,
            assignment=self.best.assignment,
            makespan_ms=self.best.judged.makespan_ms,
            tier_values=self.best.judged.tier_values,
            bound=self.bound,
            detail=self.detail,
            build_s=self.build_s,
            solve_s=self.solve_s,
        )


def _carried(old: Model, new: Model, point: Point | None) -> Point | None:
    """The point under another window, variables matched by name; None where it does not hold there."""
    if point is None:
        return None
    values = {variable.name: value for variable, value in zip(old.variables, point, strict=True)}
    carried = tuple(values.get(variable.name, 0) for variable in new.variables)
    return None if violation(new, carried) else carried


def _least(model: Model, objective: Objective) -> int:
    """Lower bound of an objective from the variables' bounds alone."""
    ends = ((c, model.variables[k]) for k, c in objective.terms)
    return objective.constant + sum(c * (v.low if c > 0 else v.high) for c, v in ends)
