from __future__ import annotations

import pytest

from pearl.errors import SolverError
from pearl.solvers.cpsat import CpSat
from pearl.solving.formulation import formulate
from pearl.solving.ir import Model, Objective, Row, Variable
from pearl.solving.protocol import Limits, SolveStatus

from .problems import pool

KNAPSACK = Model(
    variables=tuple(Variable(name=f"x{k}", low=0, high=3) for k in range(3)),
    rows=(Row(name="cover", terms=((0, 3), (1, 5), (2, 7)), low=11),),
    objectives=(Objective(name="cost", terms=((0, 4), (1, 6), (2, 9)), constant=100),),
)


def test_optimum_bound_and_constant() -> None:
    answer = CpSat().minimize(KNAPSACK, KNAPSACK.objectives[0], limits=Limits())
    assert answer.status is SolveStatus.OPTIMAL
    assert answer.point == (2, 1, 0)
    assert answer.bound == 114


def test_infeasible_is_said() -> None:
    model = Model(variables=KNAPSACK.variables, rows=(Row(name="no", terms=((0, 2),), low=1, high=1),), objectives=())
    answer = CpSat().minimize(model, Objective(name="cost", terms=()), limits=Limits())
    assert (answer.status, answer.point) == (SolveStatus.INFEASIBLE, None)


def test_no_time_is_a_limit_and_not_infeasible() -> None:
    model = formulate(pool(256))
    answer = CpSat().minimize(model, model.objectives[0], limits=Limits(time_s=0.0))
    assert (answer.status, answer.point) == (SolveStatus.LIMIT, None)


def test_same_model_same_point_and_a_hint_never_hurts() -> None:
    model = formulate(pool(24))
    answers = [CpSat().minimize(model, model.objectives[0], limits=Limits(seed=3)) for _ in range(2)]
    assert answers[0] == answers[1]
    hinted = CpSat().minimize(model, model.objectives[0], limits=Limits(), hint=answers[0].point)
    assert hinted.bound == answers[0].bound
    wrong = CpSat().minimize(model, model.objectives[0], limits=Limits(), hint=(0,) * len(model.variables))
    assert wrong.bound == answers[0].bound


@pytest.mark.parametrize("where", ["row", "objective"])
def test_numbers_beyond_64_bits_are_refused_by_name(where: str) -> None:
    huge = ((0, 2**61), (1, 2**61))
    row = Row(name="huge", terms=huge if where == "row" else ((0, 1),), low=0)
    objective = Objective(name="huge", terms=huge if where == "objective" else ())
    model = Model(variables=KNAPSACK.variables, rows=(row,), objectives=())
    with pytest.raises(SolverError, match=f"{where} huge may exceed"):
        CpSat().minimize(model, objective, limits=Limits())
