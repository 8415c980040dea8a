"""What each back end makes of its library's statuses, errors and absence."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.errors import SolverContractError, SolverError, SolverUnavailableError, UnknownSolverError
from pearl.solvers.template import BranchAndBound
from pearl.solving.backend import (
    answered,
    integer_point,
    objective_value,
    reduced,
    require_doubles,
    settled,
    violation,
)
from pearl.solving.ir import Model, Objective, Row, Variable
from pearl.solving.protocol import Limits, SolveStatus
from pearl.solving.random_models import feasible_points, random_model
from pearl.solving.registry import resolve

DOUBLES = ("highs", "mathopt", "mathopt:gscip", "mathopt:cpsat", "pyomo", "scip")

MODEL = Model(
    variables=(Variable(name="a", low=0, high=5), Variable(name="b", low=0, high=5)),
    rows=(Row(name="sum", terms=((0, 1), (1, 2)), low=3, high=7),),
    objectives=(Objective(name="cost", terms=((0, 2), (1, 3)), constant=5),),
)
COST = MODEL.objectives[0]


def solver(spec: str) -> Any:
    try:
        return resolve(spec)
    except SolverUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("spec", DOUBLES)
def test_numbers_beyond_doubles_are_refused(spec: str) -> None:
    wide = Model(
        variables=MODEL.variables, rows=(Row(name="w", terms=((0, 1), (1, 2**53 + 1)), high=9),), objectives=()
    )
    with pytest.raises(SolverError, match=r"beyond 2\^53; use cpsat"):
        solver(spec).minimize(wide, COST, limits=Limits())


@pytest.mark.parametrize(
    ("spec", "blocked"),
    [("highs", "highspy"), ("scip", "pyscipopt"), ("pyomo", "pyomo.environ"), ("mathopt", "ortools.math_opt.python")],
)
def test_a_library_that_cannot_be_imported(spec: str, blocked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = solver(spec)
    monkeypatch.setitem(sys.modules, blocked, None)
    with pytest.raises(SolverUnavailableError, match="install it with: pip install"):
        chosen.minimize(MODEL, COST, limits=Limits())


def test_mathopt_error_path_is_one_error_with_the_text_of_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """or-tools#4606: MathOpt fails with AttributeError while it reports an error."""
    chosen = solver("mathopt")
    from pearl.solvers import mathopt as back_end

    genuine = back_end._parameters

    def with_threads(*arguments: Any) -> Any:
        parameters = genuine(*arguments)
        parameters.threads = 1  # Which MathOpt refuses for HiGHS.
        return parameters

    monkeypatch.setattr(back_end, "_parameters", with_threads)
    with pytest.raises(SolverError, match="threads not supported for HiGHS"):
        chosen.minimize(MODEL, COST, limits=Limits())


def test_mathopt_presolve_of_cpsat_stays_off() -> None:
    """With it on, 2.999999 comes back for an integer variable of this row."""
    variables = (
        Variable(name="a", low=0, high=5),
        Variable(name="b", low=-3, high=4),
        Variable(name="c", low=0, high=2**20),
    )
    rows = (
        Row(name="big", terms=((0, 2**40), (2, 1 - 2**20)), low=0, high=2**41),
        Row(name="sum", terms=((0, 1), (1, 1)), low=1, high=6),
    )
    model = Model(variables=variables, rows=rows, objectives=())
    answer = solver("mathopt:cpsat").minimize(model, Objective(name="none", terms=()), limits=Limits())
    assert answer.status is SolveStatus.OPTIMAL
    assert not violation(model, answer.point)


def test_unknown_variants_are_refused() -> None:
    from pearl.solvers.mathopt import MathOpt
    from pearl.solvers.pyomo import Pyomo

    with pytest.raises(SolverError, match="highs, gscip, cpsat"):
        MathOpt(backend="glop")
    with pytest.raises(UnknownSolverError, match="'ipopt' is not supported; known: highs"):
        Pyomo(solver="ipopt")


def test_pyomo_over_a_solver_that_is_not_installed() -> None:
    with pytest.raises(SolverUnavailableError, match="gurobi"):
        resolve("pyomo:gurobi_direct")


class Codes:
    """Stands for a library's status enumeration: any name is a code of its own."""

    def __getattr__(self, name: str) -> str:
        return name


@pytest.mark.parametrize(
    ("code", "found", "expected"),
    [
        ("kOptimal", True, SolveStatus.OPTIMAL),
        ("kInfeasible", False, SolveStatus.INFEASIBLE),
        ("kUnboundedOrInfeasible", False, SolveStatus.INFEASIBLE),
        ("kTimeLimit", True, SolveStatus.FEASIBLE),
        ("kTimeLimit", False, SolveStatus.LIMIT),
        ("kMemoryLimit", False, SolveStatus.LIMIT),
        ("kSolveError", False, None),
        ("kUnbounded", False, None),
        ("kUnknown", True, None),
        ("kSomethingNew", True, None),
    ],
)
def test_highs_statuses(code: str, found: bool, expected: SolveStatus | None) -> None:
    from pearl.solvers.highs import _status

    assert _status(Codes(), code, found=found) is expected


def test_status_names_are_those_of_highs() -> None:
    """The names are those of the library, and every other status is an error."""
    highspy = pytest.importorskip("highspy")
    from pearl.solvers.highs import _status

    codes = highspy.HighsModelStatus
    answers = {name for name in codes.__members__ if _status(codes, getattr(codes, name), found=True)}
    limits = {"kTimeLimit", "kIterationLimit", "kSolutionLimit", "kMemoryLimit", "kInterrupt"}
    assert answers == {"kOptimal", "kInfeasible", "kUnboundedOrInfeasible"} | limits


@pytest.mark.parametrize(
    ("status", "found", "expected"),
    [
        ("optimal", True, SolveStatus.OPTIMAL),
        ("infeasible", False, SolveStatus.INFEASIBLE),
        ("inforunbd", False, SolveStatus.INFEASIBLE),
        ("timelimit", True, SolveStatus.FEASIBLE),
        ("memlimit", False, SolveStatus.LIMIT),
        ("gaplimit", True, None),
        ("unbounded", False, None),
        ("unknown", False, None),
    ],
)
def test_scip_statuses(status: str, found: bool, expected: SolveStatus | None) -> None:
    from pearl.solvers.scip import _status

    assert _status(status, found=found) is expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("OPTIMAL", SolveStatus.OPTIMAL),
        ("FEASIBLE", SolveStatus.FEASIBLE),
        ("INFEASIBLE", SolveStatus.INFEASIBLE),
        ("INFEASIBLE_OR_UNBOUNDED", SolveStatus.INFEASIBLE),
        ("NO_SOLUTION_FOUND", SolveStatus.LIMIT),
        ("IMPRECISE", None),
        ("NUMERICAL_ERROR", None),
        ("UNBOUNDED", None),
    ],
)
def test_mathopt_reasons(reason: str, expected: SolveStatus | None) -> None:
    from pearl.solvers.mathopt import _status

    assert _status(Codes(), reason) is expected


@pytest.mark.parametrize(
    ("condition", "found", "expected"),
    [
        ("convergenceCriteriaSatisfied", True, SolveStatus.OPTIMAL),
        ("provenInfeasible", False, SolveStatus.INFEASIBLE),
        ("infeasibleOrUnbounded", False, SolveStatus.INFEASIBLE),
        ("maxTimeLimit", True, SolveStatus.FEASIBLE),
        ("maxTimeLimit", False, SolveStatus.LIMIT),
        ("locallyInfeasible", False, None),
        ("licensingProblems", False, None),
        ("unknown", True, None),
    ],
)
def test_pyomo_conditions(condition: str, found: bool, expected: SolveStatus | None) -> None:
    from pearl.solvers.pyomo import _status

    assert _status(Codes(), condition, found=found) is expected


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.5, 2.0), "a = 0.5, which is not an integer"),
        ((float("nan"), 2.0), "a = nan"),
        ((float("inf"), 2.0), "a = inf"),
        ((1.0,), "returned 1 values, not 2"),
        ((6.0, 0.0), "a = 6 is outside 0 … 5"),
        ((0.0, 0.0), "row sum is broken by 3"),
        ((5.0, 5.0), "row sum is broken by 8"),
    ],
)
def test_points_that_are_refused(values: tuple[float, ...], said: str) -> None:
    with pytest.raises(SolverContractError, match=said):
        integer_point("some", MODEL, values)


def test_points_that_are_nearly_integral_are_rounded() -> None:
    assert integer_point("some", MODEL, (0.9999999, 1.0000001)) == (1, 1)


def test_a_claimed_optimum_must_meet_its_bound() -> None:
    arguments: dict[str, Any] = {"values": (1.0, 1.0), "detail": ""}
    status = SolveStatus.OPTIMAL
    assert answered("some", MODEL, COST, status=status, bound=10.0, **arguments).point == (1, 1)
    assert answered("some", MODEL, COST, status=status, bound=float("-inf"), **arguments).bound is None
    assert answered("some", MODEL, COST, status=SolveStatus.FEASIBLE, bound=3.0, **arguments).bound == 3.0
    with pytest.raises(SolverContractError, match=r"calls 10 optimal, and its own bound is 9\.0"):
        answered("some", MODEL, COST, status=status, bound=9.0, **arguments)


@given(st.integers(0, 10**6))
def test_reduction_keeps_every_point(seed: int) -> None:
    model = random_model(Random(seed))
    small = reduced(model)
    answer = settled(small, model.objectives[0])
    points = feasible_points(model)
    if all(row.low is None or row.high is None or row.low <= row.high for row in small.rows):
        assert feasible_points(small) == points
    else:
        assert points == []
        assert answer is not None
    if answer is not None and answer.point is not None:
        best = min(objective_value(model.objectives[0], point) for point in points)
        assert objective_value(model.objectives[0], answer.point) == best
    elif answer is not None:
        assert points == []


@given(st.integers(0, 10**6))
@settings(deadline=None)
def test_the_template_agrees_with_brute_force(seed: int) -> None:
    model = random_model(Random(seed))
    objective, points = model.objectives[0], feasible_points(model)
    answer = BranchAndBound().minimize(model, objective, limits=Limits())
    if points:
        assert answer.point in points
        assert objective_value(objective, answer.point) == min(objective_value(objective, p) for p in points)
    else:
        assert answer.status is SolveStatus.INFEASIBLE


def test_doubles_hold_everything_else() -> None:
    require_doubles("some", MODEL, Objective(name="edge", terms=((0, 2**53),), constant=-(2**53)))


def test_back_ends_stay_in_their_layer() -> None:
    """solvers/ imports only pearl.core, pearl.errors and pearl.solving, and no solver library at module level."""
    for path in sorted((Path(__file__).parents[2] / "solvers").glob("*.py")):
        top = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
        for line in top:
            module = line.split()[1]
            if module.startswith("pearl"):
                assert module.startswith(("pearl.core", "pearl.errors", "pearl.solving")), f"{path.name}: {line}"
            assert module.split(".")[0] not in {"ortools", "highspy", "pyscipopt", "pyomo"}, f"{path.name}: {line}"
