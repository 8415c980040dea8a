"""OR-Tools CP-SAT: integers throughout, one thread, gap 0. The default."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from pearl.errors import SolverError
from pearl.solving.backend import importing, settled
from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, SolveStatus

LARGEST = 2**62
"""CP-SAT refuses a row whose largest possible sum may overflow 64 bits."""


class CpSat:
    """CP-SAT on one thread with a fixed seed: the same model gives the same point."""

    id = "cpsat"
    capabilities = Capabilities(note="64-bit integers; takes a hint")

    def library_version(self) -> str:
        """Version of ortools."""
        return metadata.version("ortools")

    def minimize(self, model: Model, objective: Objective, *, limits: Limits, hint: Point | None = None) -> Answer:
        """Minimise one objective; SolverError for numbers beyond 64 bits or a status that is no answer."""
        if (answer := settled(model, objective)) is not None:
            return answer
        _refuse_overflow(model, objective)
        with importing(self.id, "pip install pearl"):
            from ortools.sat.python import cp_model
        built = _build(cp_model, model, objective, hint)
        solver = cp_model.CpSolver()
        _configure(solver.parameters, limits)
        status = solver.solve(built)
        return _answer(cp_model, solver, status, built, objective)


def _build(cp_model: Any, model: Model, objective: Objective, hint: Point | None) -> Any:
    built = cp_model.CpModel()
    variables = [built.new_int_var(v.low, v.high, "") for v in model.variables]
    total = cp_model.LinearExpr.weighted_sum
    for row in model.rows:
        expr = total([variables[k] for k, _ in row.terms], [c for _, c in row.terms])
        low = cp_model.INT_MIN if row.low is None else row.low
        high = cp_model.INT_MAX if row.high is None else row.high
        built.add_linear_constraint(expr, low, high)
    built.minimize(total([variables[k] for k, _ in objective.terms], [c for _, c in objective.terms]))
    for variable, value in zip(variables, hint or (), strict=False):
        built.add_hint(variable, value)
    return built


def _configure(parameters: Any, limits: Limits) -> None:
    parameters.num_workers = 1
    parameters.random_seed = limits.seed % 2**31
    parameters.max_time_in_seconds = limits.time_s
    parameters.relative_gap_limit = 0.0
    parameters.absolute_gap_limit = 0.0
    # Chosen by benchmarks/solving.py: these models are small and tight as they are. Presolve, probing and symmetry cost
    # more than they save (a quarter to a half of the time at 4,096 workers); the full linear relaxation saves as much.
    parameters.cp_model_presolve = False
    parameters.cp_model_probing_level = 0
    parameters.symmetry_level = 0
    parameters.linearization_level = 2


def _answer(cp_model: Any, solver: Any, status: Any, built: Any, objective: Objective) -> Answer:
    detail = solver.status_name(status)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = SolveStatus.OPTIMAL if status == cp_model.OPTIMAL else SolveStatus.FEASIBLE
        point = tuple(solver.response_proto.solution)
        return Answer(status=found, point=point, bound=solver.best_objective_bound + objective.constant, detail=detail)
    if status == cp_model.INFEASIBLE:
        return Answer(status=SolveStatus.INFEASIBLE, detail=detail)
    if status == cp_model.UNKNOWN:
        return Answer(status=SolveStatus.LIMIT, detail=detail)
    raise SolverError(f"solver 'cpsat' refuses the model ({detail}): {built.validate() or 'no reason given'}")


def _refuse_overflow(model: Model, objective: Objective) -> None:
    """SolverError, naming the row, before CP-SAT would call the model invalid."""
    reach = [max(abs(v.low), abs(v.high)) for v in model.variables]
    named = [(f"row {row.name}", row.terms) for row in model.rows]
    for name, terms in [*named, (f"objective {objective.name}", objective.terms)]:
        if sum(abs(c) * reach[k] for k, c in terms) >= LARGEST:
            raise SolverError(f"solver 'cpsat' computes in 64 bits, and {name} may exceed them; use smaller units")
