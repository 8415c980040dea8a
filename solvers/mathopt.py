"""OR-Tools MathOpt: one modelling layer over HiGHS, SCIP (GSCIP) and CP-SAT, all inside the ortools wheel."""

from __future__ import annotations

import math
from datetime import timedelta
from importlib import metadata
from typing import Any

from pearl.errors import SolverError
from pearl.solving.backend import LARGEST_EXACT_DOUBLE, answered, importing, reduced, require_doubles, settled
from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, SolveStatus

INSTALL = "pip install pearl"

BACKENDS = ("highs", "gscip", "cpsat")

TAKES_HINT = frozenset({"gscip", "cpsat"})
"""MathOpt refuses a hint for HiGHS."""

FEASIBILITY_TOLERANCE = 1e-9
"""Tighter than the defaults (1e-6), so that a rounded point still satisfies rows with large coefficients."""


class MathOpt:
    """MathOpt over one of its MIP solvers."""

    def __init__(self, *, backend: str = "highs") -> None:
        if backend not in BACKENDS:
            raise SolverError(f"MathOpt back end {backend!r} is not supported; known: {', '.join(BACKENDS)}")
        self.backend = backend
        self.id = "mathopt" if backend == "highs" else f"mathopt:{backend}"
        hint = "takes a hint" if backend in TAKES_HINT else "ignores the hint"
        self.capabilities = Capabilities(note=f"{backend} inside OR-Tools; numbers up to 2^53; {hint}")

    def library_version(self) -> str:
        """Version of ortools."""
        return metadata.version("ortools")

    def minimize(self, model: Model, objective: Objective, *, limits: Limits, hint: Point | None = None) -> Answer:
        """Minimise `objective`; SolverError for any status that is neither an answer nor a limit."""
        model = reduced(model)
        if (answer := settled(model, objective)) is not None:
            return answer
        require_doubles(self.id, model, objective)
        with importing(self.id, INSTALL):
            from ortools.math_opt.python import mathopt
        engine, variables = _build(mathopt, model, objective)
        start = mathopt.ModelSolveParameters()
        if hint is not None and self.backend in TAKES_HINT:
            values = dict(zip(variables, map(float, hint), strict=True))
            start.solution_hints.append(mathopt.SolutionHint(variable_values=values))
        solver = mathopt.SolverType[{"highs": "HIGHS", "gscip": "GSCIP", "cpsat": "CP_SAT"}[self.backend]]
        try:
            result = mathopt.solve(
                engine, solver, params=_parameters(mathopt, self.backend, limits), model_params=start
            )
        except (AttributeError, RuntimeError, ValueError) as error:
            # MathOpt's own error path fails with AttributeError for some statuses (or-tools#4606).
            raise SolverError(f"solver {self.id!r} failed: {_root(error)}") from error
        return self._answer(mathopt, result, variables, model, objective)

    def _answer(self, mathopt: Any, result: Any, variables: list[Any], model: Model, objective: Objective) -> Answer:
        reason, detail = result.termination.reason, _detail(result.termination)
        status = _status(mathopt.TerminationReason, reason)
        if status is None:
            raise SolverError(f"solver {self.id!r} failed: {detail}")
        if status not in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
            return Answer(status=status, detail=detail)
        found = result.variable_values()
        values = [found[variable] for variable in variables]
        bound = result.termination.objective_bounds.dual_bound
        return answered(self.id, model, objective, status=status, values=values, bound=bound, detail=detail)


def _build(mathopt: Any, model: Model, objective: Objective) -> tuple[Any, list[Any]]:
    engine = mathopt.Model()
    variables = [engine.add_integer_variable(lb=float(v.low), ub=float(v.high)) for v in model.variables]
    for row in model.rows:
        low = -math.inf if row.low is None else float(row.low)
        high = math.inf if row.high is None else float(row.high)
        constraint = engine.add_linear_constraint(lb=low, ub=high)
        for index, coefficient in row.terms:
            constraint.set_coefficient(variables[index], float(coefficient))
    engine.objective.is_maximize = False
    engine.objective.offset = float(objective.constant)
    for index, coefficient in objective.terms:
        engine.objective.set_linear_coefficient(variables[index], float(coefficient))
    return engine, variables


def _parameters(mathopt: Any, backend: str, limits: Limits) -> Any:
    parameters = mathopt.SolveParameters(
        time_limit=timedelta(seconds=limits.time_s),
        threads=None if backend == "highs" else 1,  # MathOpt refuses it for HiGHS, whose own option is set below.
        random_seed=limits.seed % 2**31,
        relative_gap_tolerance=0.0,
        absolute_gap_tolerance=0.0,
    )
    for name in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
        parameters.highs.double_options[name] = FEASIBILITY_TOLERANCE
    parameters.highs.string_options["parallel"] = "off"
    parameters.cp_sat.mip_max_bound = LARGEST_EXACT_DOUBLE  # It cuts variables off at 10^7 otherwise.
    parameters.cp_sat.mip_presolve_level = 0  # It returns fractions for integer variables in rows near 2^40.
    parameters.gscip.real_params["numerics/feastol"] = FEASIBILITY_TOLERANCE
    return parameters


def _status(reasons: Any, reason: Any) -> SolveStatus | None:
    """MathOpt's reason in PEARL's words; None for an error."""
    return {
        reasons.OPTIMAL: SolveStatus.OPTIMAL,
        reasons.FEASIBLE: SolveStatus.FEASIBLE,
        reasons.INFEASIBLE: SolveStatus.INFEASIBLE,
        # Every variable is bounded, so the model is not unbounded.
        reasons.INFEASIBLE_OR_UNBOUNDED: SolveStatus.INFEASIBLE,
        reasons.NO_SOLUTION_FOUND: SolveStatus.LIMIT,
    }.get(reason)


def _detail(termination: Any) -> str:
    limit = f" ({termination.limit.name.lower()} limit)" if termination.limit else ""
    text = f": {termination.detail}" if termination.detail else ""
    return f"{termination.reason.name.lower()}{limit}{text}"


def _root(error: BaseException) -> str:
    """The first error of the chain: the solver's own text, where MathOpt failed while it reported it."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}"
