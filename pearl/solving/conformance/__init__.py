"""The conformance suite: what every solver must do, and whether a given one does.

`check` runs on any solver, a user's own included, and names each property that does not hold. Nothing here trusts the
solver: points are tested in integers, and optima against brute force.
"""

from __future__ import annotations

from collections.abc import Sequence

from pearl.core.problem import DecisionProblem
from pearl.solving.conformance.models import MODEL_PROPERTIES
from pearl.solving.conformance.problems import PROBLEM_PROPERTIES, sample_problems
from pearl.solving.conformance.report import Finding, Report, finding
from pearl.solving.protocol import Limits, ModelSolver, Solver

__all__ = ["Finding", "Report", "check", "sample_problems"]


def check(
    solver: Solver, problems: Sequence[DecisionProblem] | None = None, *, seed: int = 0, time_s: float = 10.0
) -> Report:
    """Check `solver` on hand-made and random models, and on decision problems against enumeration.

    `problems` are a sample drawn with `seed` unless given; none are checked if empty. `time_s` limits each call. Raises
    SolverUnavailableError where the solver's library is missing; whatever else the solver raises is a finding.
    """
    limits = Limits(time_s=time_s, seed=seed)
    problems = sample_problems(seed) if problems is None else problems
    findings: list[Finding] = []
    if isinstance(solver, ModelSolver):
        findings += [finding(name, run, solver, limits) for name, run in MODEL_PROPERTIES.items()]
    if problems:
        findings += [finding(name, run, (solver, problems), limits) for name, run in PROBLEM_PROPERTIES.items()]
    return Report(solver=solver.id, version=solver.library_version(), findings=tuple(findings))
