"""What every back end in `solvers/` needs: honest imports, the cases that need no search, and points in integers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pearl.errors import SolverContractError, SolverError, SolverUnavailableError
from pearl.solving.ir import Model, Objective, Point, Row
from pearl.solving.protocol import Answer, SolveStatus

INTEGRALITY_TOLERANCE = 1e-5
"""How far from an integer a value may be before it is refused; solvers promise 1e-6 or better."""

LARGEST_EXACT_DOUBLE = 2**53
"""Beyond this, doubles skip integers: a floating-point solver would silently solve another model."""


def reduced(model: Model) -> Model:
    """`model` with every row divided by the greatest common divisor of its coefficients, its bounds rounded inwards.

    The same integer points satisfy it; its numbers are smaller, and rows that no integer meets show as low > high.
    """
    return replace(model, rows=tuple(_divided(row) for row in model.rows))


@contextmanager
def importing(solver_id: str, install: str) -> Iterator[None]:
    """Turn an ImportError of the block into SolverUnavailableError that says what to install."""
    try:
        yield
    except ImportError as error:
        raise SolverUnavailableError(
            f"solver {solver_id!r} needs a library that cannot be imported: {error}; install it with: {install}"
        ) from error


def settled(model: Model, objective: Objective) -> Answer | None:
    """The answer where none has to be searched for: an empty domain or row, or no row that holds a variable."""
    for variable in model.variables:
        if variable.low > variable.high:
            detail = f"variable {variable.name} has no value: {variable.low} > {variable.high}"
            return Answer(status=SolveStatus.INFEASIBLE, detail=detail)
    for row in model.rows:
        if not row.terms and _excess(row, 0):
            return Answer(status=SolveStatus.INFEASIBLE, detail=f"row {row.name} holds no variable and excludes 0")
        if row.low is not None and row.high is not None and row.low > row.high:
            return Answer(status=SolveStatus.INFEASIBLE, detail=f"row {row.name} holds no integer")
    if any(row.terms for row in model.rows):
        return None
    costs = dict(objective.terms)
    point = tuple(v.high if costs.get(index, 0) < 0 else v.low for index, v in enumerate(model.variables))
    bound = float(objective_value(objective, point))
    return Answer(status=SolveStatus.OPTIMAL, point=point, bound=bound, detail="no row holds a variable")


def require_doubles(solver_id: str, model: Model, objective: Objective) -> None:
    """SolverError where a number of the model cannot be held exactly in a double."""
    numbers: list[tuple[str, tuple[int, ...]]] = [(f"variable {v.name}", (v.low, v.high)) for v in model.variables]
    numbers += [(f"row {r.name}", (*(c for _, c in r.terms), r.low or 0, r.high or 0)) for r in model.rows]
    numbers += [(f"objective {objective.name}", (*(c for _, c in objective.terms), objective.constant))]
    for where, values in numbers:
        for value in values:
            if abs(value) > LARGEST_EXACT_DOUBLE:
                raise SolverError(
                    f"solver {solver_id!r} computes in doubles, and {value} of {where} is beyond 2^53; use cpsat"
                )


def integer_point(solver_id: str, model: Model, values: Sequence[float]) -> Point:
    """`values` as integers that satisfy every bound and row exactly; SolverContractError where they do not."""
    if len(values) != len(model.variables):
        raise SolverContractError(f"solver {solver_id!r} returned {len(values)} values, not {len(model.variables)}")
    point = tuple(
        _integer(solver_id, variable.name, value) for variable, value in zip(model.variables, values, strict=True)
    )
    if broken := violation(model, point):
        raise SolverContractError(f"solver {solver_id!r} returned a point that does not hold in integers: {broken}")
    return point


def answered(
    solver_id: str,
    model: Model,
    objective: Objective,
    *,
    status: SolveStatus,
    values: Sequence[float],
    bound: float | None,
    detail: str,
) -> Answer:
    """An answer with a point, checked in integers; `bound` holds for the whole objective, its constant included.

    SolverContractError where the point does not hold, or where OPTIMAL is claimed and the solver's own bound leaves
    room for a better integer value: tolerances of doubles at large numbers.
    """
    point = integer_point(solver_id, model, values)
    if bound is not None and not math.isfinite(bound):
        bound = None
    if status is SolveStatus.OPTIMAL and bound is not None:
        value = objective_value(objective, point)
        step = math.gcd(*(coefficient for _, coefficient in objective.terms))
        if value - bound > step / 2:
            raise SolverContractError(
                f"solver {solver_id!r} calls {value} optimal, and its own bound is {bound}: "
                "the numbers are too large for its tolerances; use cpsat"
            )
    return Answer(status=status, point=point, bound=bound, detail=detail)


def violation(model: Model, point: Point) -> str:
    """The first bound or row that `point` breaks, with the amount; empty where it holds."""
    for variable, value in zip(model.variables, point, strict=True):
        if not variable.low <= value <= variable.high:
            return f"variable {variable.name} = {value} is outside {variable.low} … {variable.high}"
    for row in model.rows:
        if excess := _excess(row, sum(coefficient * point[index] for index, coefficient in row.terms)):
            return f"row {row.name} is broken by {excess}"
    return ""


def objective_value(objective: Objective, point: Point) -> int:
    """Exact value of `objective` at `point`."""
    return objective.constant + sum(coefficient * point[index] for index, coefficient in objective.terms)


def _divided(row: Row) -> Row:
    divisor = math.gcd(*(coefficient for _, coefficient in row.terms))
    if divisor <= 1:
        return row
    return replace(
        row,
        terms=tuple((index, coefficient // divisor) for index, coefficient in row.terms),
        low=None if row.low is None else -(-row.low // divisor),
        high=None if row.high is None else row.high // divisor,
    )


def _excess(row: Row, activity: int) -> int:
    below = 0 if row.low is None else max(0, row.low - activity)
    above = 0 if row.high is None else max(0, activity - row.high)
    return max(below, above)


def _integer(solver_id: str, name: str, value: float) -> int:
    try:
        nearest = round(value)
    except (ValueError, OverflowError) as error:
        raise SolverContractError(f"solver {solver_id!r} returned {name} = {value}") from error
    if abs(value - nearest) > INTEGRALITY_TOLERANCE:
        raise SolverContractError(f"solver {solver_id!r} returned {name} = {value!r}, which is not an integer")
    return nearest
