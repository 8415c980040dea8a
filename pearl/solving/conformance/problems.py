"""Properties of any solver on decision problems, with enumeration as the oracle and the driver in between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from pearl.core.problem import DecisionProblem
from pearl.solving.conformance.report import require
from pearl.solving.driver import solve_problem
from pearl.solving.protocol import Limits, Solver, SolveStatus
from pearl.solving.random_problems import random_problem
from pearl.solving.registry import resolve

Subject = tuple[Solver, Sequence[DecisionProblem]]

NO_TIME_S = 1e-9
"""A time limit that has passed before any search can start."""

SAMPLE_SIZE = 8
"""Decision problems of a sample; agreement on hundreds is for the `agreement` tests and benchmarks/."""


def sample_problems(seed: int, count: int = SAMPLE_SIZE) -> tuple[DecisionProblem, ...]:
    """Small random decision problems with rules, tiers and gates of every kind."""
    random = Random(seed)
    return tuple(random_problem(random, max_workers=5) for _ in range(count))


def agrees_with_enumeration(subject: Subject, limits: Limits) -> None:
    """Status and the value of every tier are those of enumeration."""
    solver, problems = subject
    oracle = resolve("enumerate")
    for number, problem in enumerate(problems):
        truth = solve_problem(problem, oracle, limits=limits)
        found = solve_problem(problem, solver, limits=limits)
        if truth.status is SolveStatus.INFEASIBLE:
            possible = {
                SolveStatus.INFEASIBLE,
                *(() if solver.capabilities.proves_infeasible else (SolveStatus.LIMIT,)),
            }
            require(found.status in possible, f"problem {number}: {found.status}, and it is infeasible")
        elif solver.capabilities.exact:
            require(found.status is SolveStatus.OPTIMAL, f"problem {number}: {found.status} ({found.detail})")
            same = found.tier_values == truth.tier_values
            require(same, f"problem {number}: tiers {found.tier_values}, and {truth.tier_values} are best")
        else:
            require(found.status is not SolveStatus.INFEASIBLE, f"problem {number}: infeasible, and it is not")


def is_repeatable(subject: Subject, limits: Limits) -> None:
    """The same problem gives the same assignment."""
    solver, problems = subject
    for number, problem in enumerate(problems[:4]):
        first = solve_problem(problem, solver, limits=limits)
        again = solve_problem(problem, solver, limits=limits)
        require(first.assignment == again.assignment, f"problem {number}: two different assignments")


def says_limit(subject: Subject, limits: Limits) -> None:
    """Without time a feasible problem is never called infeasible."""
    solver, problems = subject
    oracle = resolve("enumerate")
    for number, problem in enumerate(problems[:4]):
        truth = solve_problem(problem, oracle, limits=limits)
        hurried = solve_problem(problem, solver, limits=replace(limits, time_s=NO_TIME_S))
        wrong = hurried.status is SolveStatus.INFEASIBLE and truth.status is not SolveStatus.INFEASIBLE
        require(not wrong, f"problem {number}: called infeasible when time ran out")
        if hurried.status is SolveStatus.LIMIT:
            require(hurried.assignment is None, f"problem {number}: a limit that carries an assignment")


def leaves_input_untouched(subject: Subject, limits: Limits) -> None:
    """The problem is the same after the call."""
    solver, problems = subject
    before = copy.deepcopy(problems[0])
    solve_problem(problems[0], solver, limits=limits)
    require(problems[0] == before, "the problem was changed by the call")


PROBLEM_PROPERTIES: Mapping[str, Callable[[Subject, Limits], None]] = {
    "decision problems: agrees with enumeration, tier by tier": agrees_with_enumeration,
    "decision problems: same problem, same assignment": is_repeatable,
    "decision problems: limit is not infeasible": says_limit,
    "decision problems: input left untouched": leaves_input_untouched,
}
