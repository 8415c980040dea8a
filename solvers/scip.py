"""SCIP through PySCIPOpt: constraint integer programming in doubles, gap 0."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from pearl.errors import SolverError
from pearl.solving.backend import answered, importing, reduced, require_doubles, settled
from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, SolveStatus

INSTALL = 'pip install "pearl[research]"'

LIMIT_STATUSES = frozenset(
    {
        "timelimit",
        "nodelimit",
        "totalnodelimit",
        "stallnodelimit",
        "memlimit",
        "sollimit",
        "bestsollimit",
        "restartlimit",
        "terminate",
    }
)
"""SCIP stopped early; `gaplimit` cannot occur at gap 0 and is an error."""


class Scip:
    """SCIP (https://scipopt.org) on one thread."""

    id = "scip"
    capabilities = Capabilities(note="doubles: numbers up to 2^53; takes a hint")

    def library_version(self) -> str:
        """Version of PySCIPOpt."""
        return metadata.version("pyscipopt")

    def minimize(self, model: Model, objective: Objective, *, limits: Limits, hint: Point | None = None) -> Answer:
        """Minimise `objective`; SolverError for any status that is neither an answer nor a limit."""
        model = reduced(model)
        if (answer := settled(model, objective)) is not None:
            return answer
        require_doubles(self.id, model, objective)
        with importing(self.id, INSTALL):
            import pyscipopt
        engine = pyscipopt.Model()
        _configure(engine, limits)
        variables = _build(pyscipopt, engine, model, objective)
        if hint is not None:
            start = engine.createSol()
            for variable, value in zip(variables, hint, strict=True):
                engine.setSolVal(start, variable, float(value))
            engine.addSol(start)
        engine.optimize()
        return self._answer(engine, variables, model, objective)

    def _answer(self, engine: Any, variables: list[Any], model: Model, objective: Objective) -> Answer:
        detail = engine.getStatus()
        if detail == "userinterrupt":
            raise KeyboardInterrupt
        status = _status(detail, found=engine.getNSols() > 0)
        if status is None:
            raise SolverError(f"solver {self.id!r} failed: {detail}")
        if status not in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
            return Answer(status=status, detail=detail)
        best = engine.getBestSol()
        values = [engine.getSolVal(best, variable) for variable in variables]
        proved = engine.getDualbound()
        bound = None if engine.isInfinity(abs(proved)) else proved + objective.constant
        return answered(self.id, model, objective, status=status, values=values, bound=bound, detail=detail)


def _configure(engine: Any, limits: Limits) -> None:
    engine.hideOutput()
    engine.setParams(
        {
            "limits/time": float(limits.time_s),
            "limits/gap": 0.0,
            "limits/absgap": 0.0,
            "numerics/feastol": 1e-9,  # The default, 1e-6, lets a rounded point break rows with large coefficients.
            "lp/threads": 1,
            "parallel/maxnthreads": 1,
            "randomization/randomseedshift": limits.seed % 2**31,
        }
    )


def _build(pyscipopt: Any, engine: Any, model: Model, objective: Objective) -> list[Any]:
    costs = dict(objective.terms)
    variables = [
        engine.addVar(vtype="I", lb=float(v.low), ub=float(v.high), obj=float(costs.get(index, 0)))
        for index, v in enumerate(model.variables)
    ]
    for row in model.rows:
        if not row.terms or (row.low is None and row.high is None):
            continue
        activity = pyscipopt.quicksum(float(coefficient) * variables[index] for index, coefficient in row.terms)
        low = -engine.infinity() if row.low is None else float(row.low)
        high = engine.infinity() if row.high is None else float(row.high)
        engine.addCons((activity <= high) >= low)
    return variables


def _status(status: str, *, found: bool) -> SolveStatus | None:
    """SCIP's status in PEARL's words; None for an error."""
    if status == "optimal":
        return SolveStatus.OPTIMAL
    if status in ("infeasible", "inforunbd"):  # Every variable is bounded, so it is infeasible.
        return SolveStatus.INFEASIBLE
    if status in LIMIT_STATUSES:
        return SolveStatus.FEASIBLE if found else SolveStatus.LIMIT
    return None
