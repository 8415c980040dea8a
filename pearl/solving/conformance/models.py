"""Properties of a ModelSolver, each on models small enough to know the answer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random

from pearl.errors import SolverError
from pearl.solving.backend import objective_value, violation
from pearl.solving.conformance.report import require
from pearl.solving.ir import Model, Objective, Point, Row, Variable, canonical
from pearl.solving.protocol import Answer, Limits, ModelSolver, SolveStatus
from pearl.solving.random_models import feasible_points, random_model, tier_values

RANDOM_MODELS = 16
"""Enough that a wrong sign, a lost bound or a default gap fails with near certainty."""

NO_TIME_S = 1e-9
"""A time limit that has passed before any search can start."""

LARGE = 2**40

WITH_POINT = (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)


def agrees_with_enumeration(solver: ModelSolver, limits: Limits) -> None:
    """Random models: feasible or not, and the value of each tier, as brute force has them."""
    for model, points in _random_models(limits.seed):
        if points:
            _require_tiers(solver, model, tier_values(model.objectives, points), limits)
        else:
            _require_infeasible(solver, model, limits)


def says_infeasible(solver: ModelSolver, limits: Limits) -> None:
    """Empty by rows, by parity, by bounds, and by a row that holds no variable."""
    a, b = _variable("a", 0, 5), _variable("b", 0, 5)
    rows = {
        "rows in conflict": (_row("least", (1, 1), low=7), _row("most", (1, 1), high=6)),
        "no integer between": (_row("parity", (2, 2), low=3, high=3),),
        "no integer in two rows": (_row("sum", (3, 5), low=7, high=7), _row("order", (1, -1), low=1)),
        "a row without variables": (Row(name="empty", terms=(), low=1), _row("any", (1, 1), low=1)),
    }
    for case, some in rows.items():
        _require_infeasible(solver, Model(variables=(a, b), rows=some, objectives=(_objective(1, 1),)), limits, case)
    empty = Model(variables=(a, _variable("none", 1, 0)), rows=(_row("r", (1, 1), low=1),), objectives=())
    _require_infeasible(solver, empty, limits, "a variable without values")


def says_limit(solver: ModelSolver, limits: Limits) -> None:
    """Without time: an answer that holds, or LIMIT without a point; never INFEASIBLE, never zeros for a point."""
    hurried = replace(limits, time_s=NO_TIME_S)
    model = _knapsack()
    answer = _minimize(solver, model, model.objectives[0], hurried)
    require(answer.status is not SolveStatus.INFEASIBLE, "a feasible model is called infeasible when time runs out")
    hopeless = replace(model, rows=(*model.rows, replace(model.rows[0], name="more", low=2 * LARGE, high=None)))
    answer = _minimize(solver, hopeless, model.objectives[0], hurried)
    require(answer.point is None, "an infeasible model got a point when time ran out")


def is_repeatable(solver: ModelSolver, limits: Limits) -> None:
    """The same model gives the same point, whatever was solved between."""
    models = [(model, points) for model, points in _random_models(limits.seed) if points][:8]
    first = [_minimize(solver, model, _flat(model), limits).point for model, _ in models]
    again = [_minimize(solver, model, _flat(model), limits).point for model, _ in reversed(models)]
    require(first == again[::-1], "the same model gave two different points")


def survives_hints(solver: ModelSolver, limits: Limits) -> None:
    """A hint changes no optimum: whether the best point, another, or one that breaks rows and bounds."""
    for model, points in _random_models(limits.seed, count=6):
        if not points:
            continue
        objective = model.objectives[0]
        best = min(points, key=lambda point: objective_value(objective, point))
        outside = tuple(variable.high + 3 for variable in model.variables)
        for hint in (best, points[-1], outside):
            _require_tiers(
                solver, replace(model, objectives=(objective,)), (objective_value(objective, best),), limits, hint
            )


def handles_bounds(solver: ModelSolver, limits: Limits) -> None:
    """Negative bounds, fixed variables, negative coefficients, equalities, ranges, one-sided and free rows."""
    variables = (_variable("a", -7, -2), _variable("b", 3, 3), _variable("c", -4, 9), _variable("d", 0, 1))
    rows = (
        _row("equal", (1, 2, -1, 0), low=-3, high=-3),
        _row("range", (-2, 0, 1, 3), low=5, high=16),
        _row("below", (0, 0, 1, 1), high=8),
        _row("above", (-1, -1, 0, -1), low=-2),
        _row("free", (5, -5, 5, -5)),
    )
    for costs in ((1, 1, 1, 1), (-1, -4, 2, 5), (0, 0, -3, 0), (-9, 0, -9, -9)):
        _require_best(solver, Model(variables=variables, rows=rows, objectives=(_objective(*costs),)), limits)


def handles_plain_objectives(solver: ModelSolver, limits: Limits) -> None:
    """An objective without terms, with and without a constant; a model whose rows are all free; one without rows."""
    variables = (_variable("a", 0, 4), _variable("b", -2, 4))
    rows = (_row("r", (2, -3), low=1, high=5),)
    for objective in (Objective(name="none", terms=()), Objective(name="constant", terms=(), constant=-17)):
        _require_best(solver, Model(variables=variables, rows=rows, objectives=(objective,)), limits)
    shifted = Objective(name="shifted", terms=((0, 1), (1, -2)), constant=1000)
    for some in (rows, (_row("free", (1, 1)),), ()):
        _require_best(solver, Model(variables=variables, rows=some, objectives=(shifted,)), limits)


def handles_large_numbers(solver: ModelSolver, limits: Limits) -> None:
    """Coefficients, bounds and costs of 2^40 and more, where points differ by far more than rounding."""
    variables = (_variable("a", 0, 5), _variable("b", -3, 4), _variable("c", 0, 3))
    rows = (
        _row("gate", (LARGE, LARGE - 2**20, 0), low=2 * LARGE - 2**22, high=4 * LARGE),
        _row("scale", (LARGE, 0, 1 - LARGE), low=0, high=2 * LARGE + 7),
    )
    for costs in ((1, 1, 1), (LARGE, LARGE + 2**20, 2**20), (-LARGE, 3 * 2**20, LARGE - 2**20)):
        _require_best(solver, Model(variables=variables, rows=rows, objectives=(_objective(*costs),)), limits)
    far = Model(variables=(_variable("t", 0, LARGE), _variable("m", 0, 1)), rows=(), objectives=(_objective(1, 1),))
    gated = _row("gate", (1, 5 * 10**9), low=7 * 10**9)
    _require_tiers(solver, replace(far, rows=(gated,)), (2 * 10**9 + 1,), limits)
    wide = (_variable("a", 0, 5), _variable("c", 0, 2**20))
    linked = (_row("link", (LARGE, 1 - 2**20), low=0, high=2 * LARGE),)
    model = Model(variables=wide, rows=linked, objectives=(_objective(-3, 1),))
    _require_tiers(solver, model, (-6,), limits)  # a = 2, c = 0: a = 3 needs c > 2^20.


def is_never_silently_inexact(solver: ModelSolver, limits: Limits) -> None:
    """One unit in 2^40, which doubles within a tolerance of 10⁻⁹ cannot tell apart: the best point, or an error."""
    variables = (_variable("a", 0, 5), _variable("b", -3, 4))
    row = _row("gate", (LARGE, LARGE + 1), low=2 * LARGE + 1, high=4 * LARGE)
    for costs in ((1, 1), (LARGE, LARGE + 1)):
        with contextlib.suppress(SolverError):
            _require_best(solver, Model(variables=variables, rows=(row,), objectives=(_objective(*costs),)), limits)


def leaves_input_untouched(solver: ModelSolver, limits: Limits) -> None:
    """The model is the same after the call."""
    model = random_model(Random(limits.seed))
    before = copy.deepcopy(model)
    _minimize(solver, model, model.objectives[0], limits)
    require(model == before, "the model was changed by the call")


def states_its_version(solver: ModelSolver, _limits: Limits) -> None:
    """`library_version` is a text that is not empty."""
    require(bool(solver.library_version()), "library_version() is empty")


MODEL_PROPERTIES: Mapping[str, Callable[[ModelSolver, Limits], None]] = {
    "library version stated": states_its_version,
    "agrees with enumeration, tier by tier": agrees_with_enumeration,
    "says infeasible": says_infeasible,
    "limit without a point is its own status": says_limit,
    "same model, same point": is_repeatable,
    "a hint changes no optimum": survives_hints,
    "bounds, signs and free rows": handles_bounds,
    "empty and constant objectives": handles_plain_objectives,
    "numbers of 2^40": handles_large_numbers,
    "one unit in 2^40: exact, or refused": is_never_silently_inexact,
    "input left untouched": leaves_input_untouched,
}


def _minimize(
    solver: ModelSolver, model: Model, objective: Objective, limits: Limits, hint: Point | None = None
) -> Answer:
    """One answer whose shape holds: a point exactly where there must be one, true in integers, above its bound."""
    answer = solver.minimize(model, objective, limits=limits, hint=hint)
    require(isinstance(answer, Answer), f"returned {type(answer).__name__}, not an Answer")
    if answer.status not in WITH_POINT:
        require(answer.point is None, f"{answer.status} carries a point")
        return answer
    if answer.point is None:
        require(False, f"{answer.status} carries no point")
        return answer
    require(all(type(value) is int for value in answer.point), "the point holds values that are not int")
    require(len(answer.point) == len(model.variables), f"the point holds {len(answer.point)} values")
    broken = violation(model, answer.point)
    require(not broken, f"the point does not hold: {broken}")
    value = objective_value(objective, answer.point)
    slack = 1e-6 * max(1, abs(value))
    require(answer.bound is None or answer.bound <= value + slack, f"bound {answer.bound} is above the value {value}")
    return answer


def _require_infeasible(solver: ModelSolver, model: Model, limits: Limits, case: str = "a random model") -> None:
    objective = model.objectives[0] if model.objectives else Objective(name="none", terms=())
    answer = _minimize(solver, model, objective, limits)
    expected = {SolveStatus.INFEASIBLE}
    if not solver.capabilities.proves_infeasible:
        expected.add(SolveStatus.LIMIT)
    require(answer.status in expected, f"{case}: {answer.status} ({answer.detail}), and no point exists")


def _require_best(solver: ModelSolver, model: Model, limits: Limits) -> None:
    _require_tiers(solver, model, tier_values(model.objectives, feasible_points(model)), limits)


def _require_tiers(
    solver: ModelSolver, model: Model, values: Iterable[int], limits: Limits, hint: Point | None = None
) -> None:
    """Solve tier after tier, each held at the value of brute force before the next."""
    exact = solver.capabilities.exact
    for tier, (objective, value) in enumerate(zip(model.objectives, values, strict=True)):
        answer = _minimize(solver, model, objective, limits, hint)
        allowed = {SolveStatus.OPTIMAL} if exact else {*WITH_POINT, SolveStatus.LIMIT}
        require(answer.status in allowed, f"tier {tier}: {answer.status} ({answer.detail}), expected {value}")
        if exact and answer.point is not None:
            found = objective_value(objective, answer.point)
            require(found == value, f"tier {tier}: called {found} optimal, and {value} is")
        held = Row(name=f"hold{tier}", terms=objective.terms, high=value - objective.constant)
        model = replace(model, rows=(*model.rows, held))


def _random_models(seed: int, count: int = RANDOM_MODELS) -> list[tuple[Model, list[Point]]]:
    random = Random(seed)
    models = [random_model(random) for _ in range(count)]
    return [(model, feasible_points(model)) for model in models]


def _flat(model: Model) -> Objective:
    """An objective on which many points tie, so that repeatability is not for free."""
    return Objective(name="flat", terms=((0, 1),) if model.variables else ())


def _knapsack() -> Model:
    """Forty binaries, one dense equality: more than presolve settles."""
    random = Random(7)
    weights = [random.randint(1000, 9999) for _ in range(40)]
    variables = tuple(_variable(f"x{index}", 0, 1) for index in range(40))
    row = _row("weight", weights, low=sum(weights[::2]), high=sum(weights[::2]))
    return Model(variables=variables, rows=(row,), objectives=(_objective(*(w % 97 for w in weights)),))


def _variable(name: str, low: int, high: int) -> Variable:
    return Variable(name=name, low=low, high=high)


def _row(name: str, coefficients: Iterable[int], *, low: int | None = None, high: int | None = None) -> Row:
    return Row(name=name, terms=canonical(enumerate(coefficients)), low=low, high=high)


def _objective(*coefficients: int) -> Objective:
    return Objective(name="cost", terms=canonical(enumerate(coefficients)))
