"""Pyomo: the model as Pyomo objects, solved by HiGHS or by another solver that Pyomo's unified interface drives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from pearl.errors import SolverError, SolverUnavailableError, UnknownSolverError
from pearl.solving.backend import answered, importing, reduced, require_doubles, settled
from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, SolveStatus

INSTALL = 'pip install "pearl[research]"'

TOLERANCE = 1e-9
"""Feasibility and integrality; tighter than the defaults, so that rounded points still satisfy large coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What Pyomo's unified interface leaves to each solver's own options."""

    library: str
    seed: str
    tight: Mapping[str, float]


_GUROBI = Engine(library="gurobipy", seed="Seed", tight={"FeasibilityTol": TOLERANCE, "IntFeasTol": TOLERANCE})
_SCIP = Engine(library="pyscipopt", seed="randomization/randomseedshift", tight={"numerics/feastol": TOLERANCE})

ENGINES: Mapping[str, Engine] = {
    "highs": Engine(
        library="highspy",
        seed="random_seed",
        tight={"mip_feasibility_tolerance": TOLERANCE, "primal_feasibility_tolerance": TOLERANCE},
    ),
    "scip_direct": _SCIP,
    "gurobi_direct": _GUROBI,
    "gurobi_persistent": _GUROBI,
}
"""Solvers for which gap, threads, seed and time limit are all known to be passed on."""


class Pyomo:
    """Pyomo (https://pyomo.org) over one of the solvers in ENGINES."""

    def __init__(self, *, solver: str = "highs") -> None:
        if solver not in ENGINES:
            raise UnknownSolverError(f"Pyomo solver {solver!r} is not supported; known: {', '.join(ENGINES)}")
        self.solver = solver
        self.id = "pyomo" if solver == "highs" else f"pyomo:{solver}"
        self.capabilities = Capabilities(note=f"{solver} through Pyomo; numbers up to 2^53; ignores the hint")

    def library_version(self) -> str:
        """Version of Pyomo; ImportError where it, or the solver's own library, is missing."""
        metadata.version(ENGINES[self.solver].library)
        return metadata.version("pyomo")

    def minimize(
        self,
        model: Model,
        objective: Objective,
        *,
        limits: Limits,
        hint: Point | None = None,  # noqa: ARG002  # Pyomo's unified interface takes no start for a MIP.
    ) -> Answer:
        """Minimise `objective`; SolverError for any status that is neither an answer nor a limit."""
        model = reduced(model)
        if (answer := settled(model, objective)) is not None:
            return answer
        require_doubles(self.id, model, objective)
        with importing(self.id, INSTALL):
            import pyomo.environ as pyo
            from pyomo.contrib.solver.common import factory, results
        engine = factory.SolverFactory(self.solver)
        if not engine.available():
            raise SolverUnavailableError(f"solver {self.id!r}: Pyomo finds no {self.solver} (library or licence)")
        _configure(engine, ENGINES[self.solver], limits)
        concrete = _build(pyo, model, objective)
        try:
            outcome = engine.solve(concrete)
        except Exception as error:
            raise SolverError(f"solver {self.id!r} failed: {type(error).__name__}: {error}") from error
        return self._answer(results, outcome, concrete, model, objective)

    def _answer(self, results: Any, outcome: Any, concrete: Any, model: Model, objective: Objective) -> Answer:
        detail = outcome.termination_condition.name
        found = outcome.solution_status in (results.SolutionStatus.optimal, results.SolutionStatus.feasible)
        status = _status(results.TerminationCondition, outcome.termination_condition, found=found)
        if status is None:
            raise SolverError(f"solver {self.id!r} failed: {detail}")
        if status not in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
            return Answer(status=status, detail=detail)
        outcome.solution_loader.load_vars()
        # Pyomo leaves a variable that no row or objective holds without a value: any will do.
        values = [v.low if (known := concrete.x[i].value) is None else known for i, v in enumerate(model.variables)]
        bound = outcome.objective_bound
        return answered(self.id, model, objective, status=status, values=values, bound=bound, detail=detail)


def _configure(engine: Any, options: Engine, limits: Limits) -> None:
    config = engine.config
    config.load_solutions = False
    config.raise_exception_on_nonoptimal_result = False
    config.time_limit = float(limits.time_s)
    config.threads = 1
    config.rel_gap = 0.0
    config.abs_gap = 0.0
    config.solver_options[options.seed] = limits.seed % 2**31
    for name, value in options.tight.items():
        config.solver_options[name] = value


def _build(pyo: Any, model: Model, objective: Objective) -> Any:
    concrete = pyo.ConcreteModel()
    concrete.x = pyo.Var(range(len(model.variables)), domain=pyo.Integers)
    for index, variable in enumerate(model.variables):
        concrete.x[index].setlb(variable.low)
        concrete.x[index].setub(variable.high)
    concrete.rows = pyo.ConstraintList()
    for row in model.rows:
        if row.terms and not (row.low is None and row.high is None):
            concrete.rows.add((row.low, _linear(pyo, concrete.x, row.terms, 0), row.high))
    concrete.cost = pyo.Objective(expr=_linear(pyo, concrete.x, objective.terms, objective.constant))
    return concrete


def _linear(pyo: Any, x: Any, terms: tuple[tuple[int, int], ...], constant: int) -> Any:
    return constant + pyo.quicksum((coefficient * x[index] for index, coefficient in terms))


def _status(conditions: Any, condition: Any, *, found: bool) -> SolveStatus | None:
    """Pyomo's termination condition in PEARL's words; None for an error."""
    if condition == conditions.convergenceCriteriaSatisfied:
        return SolveStatus.OPTIMAL
    if condition in (conditions.provenInfeasible, conditions.infeasibleOrUnbounded):  # Every variable is bounded.
        return SolveStatus.INFEASIBLE
    if condition in (conditions.maxTimeLimit, conditions.iterationLimit, conditions.interrupted):
        return SolveStatus.FEASIBLE if found else SolveStatus.LIMIT
    return None
