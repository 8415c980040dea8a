"""A solver that remembers its answers, for loops that meet the same problem again and again."""

from __future__ import annotations

from pearl.core.problem import DecisionProblem
from pearl.solving.driver import solve_problem
from pearl.solving.protocol import Capabilities, Limits, Solution, Solver, SolveStatus

KEPT = 4096
"""Answers kept, the oldest dropped first: more than the distinct states of a day's trace."""


class RememberingSolver:
    """Answers as the solver inside does; a proved answer to an equal problem is given again without solving."""

    def __init__(self, solver: Solver) -> None:
        self.id = solver.id
        self.capabilities = Capabilities(
            exact=solver.capabilities.exact,
            proves_infeasible=solver.capabilities.proves_infeasible,
            reads="problem",
            note=solver.capabilities.note,
        )
        self._solver = solver
        self._version: str | None = None
        self._answers: dict[tuple[object, ...], Solution] = {}

    def library_version(self) -> str:
        """Version of the library behind the solver."""
        if self._version is None:
            self._version = self._solver.library_version()
        return self._version

    def solve(self, problem: DecisionProblem, *, limits: Limits) -> Solution:
        """Solve every tier, or give the answer of before."""
        key = _key(problem)
        found = self._answers.get(key)
        if found is not None:
            return found
        solution = solve_problem(problem, self._solver, limits=limits)
        if solution.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE):
            if len(self._answers) >= KEPT:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = solution
        return solution


def _key(problem: DecisionProblem) -> tuple[object, ...]:
    return (
        problem.groups,
        problem.tables,
        problem.tiers,
        problem.rules,
        problem.modes,
        problem.current_mode,
        problem.hurdle,
        problem.borrow,
        problem.fixed,
        problem.excluded,
    )
