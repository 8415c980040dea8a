"""HiGHS through highspy: branch and bound in doubles, gap 0."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from pearl.errors import SolverContractError, SolverError
from pearl.solving.backend import answered, importing, reduced, require_doubles, settled
from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, SolveStatus

INSTALL = 'pip install "pearl[research]"'

FEASIBILITY_TOLERANCE = 1e-9
"""Tighter than the defaults (1e-6 and 1e-7), so that a rounded point still satisfies rows with large coefficients."""


class Highs:
    """HiGHS (https://highs.dev), its MIP solver on one thread."""

    id = "highs"
    capabilities = Capabilities(note="doubles: numbers up to 2^53; takes a hint")

    def library_version(self) -> str:
        """Version of highspy."""
        return metadata.version("highspy")

    def minimize(self, model: Model, objective: Objective, *, limits: Limits, hint: Point | None = None) -> Answer:
        """Minimise `objective`; SolverError for any status that is neither an answer nor a limit."""
        model = reduced(model)
        if (answer := settled(model, objective)) is not None:
            return answer
        require_doubles(self.id, model, objective)
        with importing(self.id, INSTALL):
            import highspy
        try:
            return self._run(highspy, model, objective, limits, hint=hint, presolve=True)
        except SolverContractError:
            # HiGHS now and then calls a point optimal against its own bound, or one that does not hold, after presolve
            # has scaled the numbers: without it, and from nowhere, it finds its way.
            return self._run(highspy, model, objective, limits, hint=None, presolve=False)

    def _run(
        self, highspy: Any, model: Model, objective: Objective, limits: Limits, *, hint: Point | None, presolve: bool
    ) -> Answer:
        engine = highspy.Highs.__base__()  # Highs() itself prints a banner before it can be silenced.
        _configure(engine, limits)
        engine.setOptionValue("presolve", "choose" if presolve else "off")
        if engine.passModel(_as_lp(highspy, model, objective)) == highspy.HighsStatus.kError:
            raise SolverError(f"solver {self.id!r} refuses the model")
        if hint is not None:
            start = highspy.HighsSolution()
            start.col_value = [float(value) for value in hint]
            engine.setSolution(start)
        engine.run()
        return self._answer(highspy, engine, model, objective)

    def _answer(self, highspy: Any, engine: Any, model: Model, objective: Objective) -> Answer:
        info = engine.getInfo()
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        status = _status(highspy.HighsModelStatus, engine.getModelStatus(), found=found)
        detail = engine.modelStatusToString(engine.getModelStatus())
        if status is None:
            raise SolverError(f"solver {self.id!r} failed: {detail}")
        if status not in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
            return Answer(status=status, detail=detail)
        values = list(engine.getSolution().col_value)
        bound = info.mip_dual_bound + objective.constant
        return answered(self.id, model, objective, status=status, values=values, bound=bound, detail=detail)


def _configure(engine: Any, limits: Limits) -> None:
    options = {
        "output_flag": False,
        "threads": 1,
        "random_seed": limits.seed % 2**31,
        "time_limit": float(limits.time_s),
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.0,
        "mip_feasibility_tolerance": FEASIBILITY_TOLERANCE,
        "primal_feasibility_tolerance": FEASIBILITY_TOLERANCE,
    }
    for name, value in options.items():
        engine.setOptionValue(name, value)


def _as_lp(highspy: Any, model: Model, objective: Objective) -> Any:
    """The model in HiGHS' own form, rows stored one after another."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.variables), len(model.rows)
    costs = [0.0] * len(model.variables)
    for index, coefficient in objective.terms:
        costs[index] = float(coefficient)
    lp.col_cost_ = costs
    lp.col_lower_ = [float(variable.low) for variable in model.variables]
    lp.col_upper_ = [float(variable.high) for variable in model.variables]
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(model.variables)
    lp.row_lower_ = [-highspy.kHighsInf if row.low is None else float(row.low) for row in model.rows]
    lp.row_upper_ = [highspy.kHighsInf if row.high is None else float(row.high) for row in model.rows]
    starts = [0]
    for row in model.rows:
        starts.append(starts[-1] + len(row.terms))
    matrix = lp.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_, matrix.num_row_ = lp.num_col_, lp.num_row_
    matrix.start_ = starts
    matrix.index_ = [index for row in model.rows for index, _ in row.terms]
    matrix.value_ = [float(coefficient) for row in model.rows for _, coefficient in row.terms]
    return lp


def _status(codes: Any, code: Any, *, found: bool) -> SolveStatus | None:
    """HiGHS' status in PEARL's words; None for an error."""
    if code == codes.kOptimal:
        return SolveStatus.OPTIMAL
    if code in (codes.kInfeasible, codes.kUnboundedOrInfeasible):  # Every variable is bounded, so it is infeasible.
        return SolveStatus.INFEASIBLE
    if code in (codes.kTimeLimit, codes.kIterationLimit, codes.kSolutionLimit, codes.kMemoryLimit, codes.kInterrupt):
        return SolveStatus.FEASIBLE if found else SolveStatus.LIMIT
    return None
