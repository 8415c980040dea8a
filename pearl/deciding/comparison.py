"""Solvers held against each other, and against enumeration, on the same problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

from pearl.core.problem import DecisionProblem
from pearl.errors import SolverError
from pearl.solving.driver import solve_problem
from pearl.solving.protocol import Limits, Solution, Solver, SolveStatus
from pearl.solving.tiers import priced_tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One solver on one problem. Tier values are in the unit of each tier; times are medians over the repeats.

    `bound` is what the solver proved of the first tier, in that tier's unit.

    `agrees`: whether status and tier values equal those of enumeration; None where enumeration cannot run.
    """

    solver: str
    library_version: str
    status: str
    tier_values: tuple[tuple[str, float], ...]
    bound: float | None
    agrees: bool | None
    build_s: float
    solve_s: float
    detail: str = ""


def compare_solvers(
    problem: DecisionProblem, solvers: Sequence[Solver], *, oracle: Solver, limits: Limits, repeats: int
) -> tuple[Measured, ...]:
    """Solve `problem` with each solver `repeats` times; a solver that fails is a row that says so."""
    truth = _attempt(problem, oracle, limits)
    return tuple(_measured(problem, solver, truth, limits, repeats) for solver in solvers)


def _attempt(problem: DecisionProblem, solver: Solver, limits: Limits) -> Solution | str:
    try:
        return solve_problem(problem, solver, limits=limits)
    except SolverError as e:
        return str(e)


def _measured(
    problem: DecisionProblem, solver: Solver, truth: Solution | str, limits: Limits, repeats: int
) -> Measured:
    runs = [_attempt(problem, solver, limits) for _ in range(repeats)]
    solved = [run for run in runs if not isinstance(run, str)]
    failed = [run for run in runs if isinstance(run, str)]
    if failed:
        return Measured(
            solver=solver.id,
            library_version=solver.library_version(),
            status="error",
            tier_values=(),
            bound=None,
            agrees=None,
            build_s=0.0,
            solve_s=0.0,
            detail=failed[0],
        )
    last = solved[-1]
    return Measured(
        solver=solver.id,
        library_version=solver.library_version(),
        status=last.status.value,
        tier_values=_named(problem, last),
        bound=None if last.bound is None else last.bound / float(_scales(problem)[0]),
        agrees=_agrees(last, truth),
        build_s=median(run.build_s for run in solved),
        solve_s=median(run.solve_s for run in solved),
        detail=last.detail,
    )


def _named(problem: DecisionProblem, solution: Solution) -> tuple[tuple[str, float], ...]:
    names = [priced.tier.name for priced in priced_tiers(problem)]
    values = zip(solution.tier_values, _scales(problem), strict=False)
    return tuple(zip(names, (float(value / scale) for value, scale in values), strict=False))


def _scales(problem: DecisionProblem) -> list[Fraction]:
    """What a solver's integers of each tier are in the tier's own unit, as so many to one."""
    tiers = [priced.tier for priced in priced_tiers(problem)]
    return [tier.terms[0].scale if tier.terms else Fraction(1) for tier in tiers]


def _agrees(solution: Solution, truth: Solution | str) -> bool | None:
    if isinstance(truth, str) or SolveStatus.LIMIT in (solution.status, truth.status):
        return None
    return solution.status is truth.status and solution.tier_values == truth.tier_values
