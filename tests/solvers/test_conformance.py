"""Every back end, and the template, against the conformance suite; and the suite against solvers that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pearl.errors import SolverUnavailableError
from pearl.solvers.template import BranchAndBound
from pearl.solving.conformance import check, sample_problems
from pearl.solving.ir import Model, Objective, Point
from pearl.solving.protocol import Answer, Capabilities, Limits, ModelSolver, SolveStatus
from pearl.solving.random_models import feasible_points
from pearl.solving.registry import resolve

TEMPLATE = str(Path(__file__).parents[2] / "solvers" / "template.py") + ":BranchAndBound"

MODEL_SOLVERS = (
    "cpsat",
    "highs",
    "mathopt",
    "mathopt:gscip",
    "mathopt:cpsat",
    pytest.param("pyomo", marks=pytest.mark.slow),
    pytest.param("pyomo:scip_direct", marks=pytest.mark.slow),
    "scip",
    TEMPLATE,
)

Change = Callable[[Answer, Model, Objective], Answer]


def available(spec: str) -> Any:
    try:
        return resolve(spec)
    except SolverUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("spec", ["enumerate", *MODEL_SOLVERS])
def test_conforms_on_models_and_decision_problems(spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = check(available(spec), sample_problems(seed=2, count=3), seed=1)
    assert [found for found in report.findings if not found.passed] == []
    on_problems = [found for found in report.findings if found.name.startswith("decision problems")]
    assert len(on_problems) == 4
    assert len(report.findings) - len(on_problems) == (0 if spec == "enumerate" else 11)
    out, err = capfd.readouterr()
    assert out == "", "a back end must not write to stdout, which holds only the result"
    assert err == ""


@pytest.mark.agreement
@pytest.mark.slow
@pytest.mark.parametrize("spec", ["highs", "mathopt", "mathopt:gscip", "mathopt:cpsat", "pyomo", "scip"])
def test_agrees_with_enumeration_on_many_problems(spec: str) -> None:
    report = check(available(spec), sample_problems(seed=11, count=40), seed=3)
    assert [found for found in report.findings if not found.passed] == []


class Wrong:
    """The template with one fault: every answer goes through `change`."""

    id = "wrong"
    capabilities = Capabilities()

    def __init__(self, change: Change) -> None:
        self.change = change

    def library_version(self) -> str:
        return "1"

    def minimize(self, model: Model, objective: Objective, *, limits: Limits, hint: Point | None = None) -> Answer:
        return self.change(BranchAndBound().minimize(model, objective, limits=limits, hint=hint), model, objective)


def zeros_for_limit(answer: Answer, model: Model, _objective: Objective) -> Answer:
    zeros = (0,) * len(model.variables)
    return replace(answer, status=SolveStatus.FEASIBLE, point=zeros) if answer.status is SolveStatus.LIMIT else answer


def infeasible_for_limit(answer: Answer, *_: object) -> Answer:
    return replace(answer, status=SolveStatus.INFEASIBLE) if answer.status is SolveStatus.LIMIT else answer


def limit_for_infeasible(answer: Answer, *_: object) -> Answer:
    return replace(answer, status=SolveStatus.LIMIT) if answer.status is SolveStatus.INFEASIBLE else answer


def off_by_one(answer: Answer, *_: object) -> Answer:
    return replace(answer, point=(answer.point[0] + 1, *answer.point[1:])) if answer.point else answer


def floats(answer: Answer, *_: object) -> Answer:
    return replace(answer, point=tuple(map(float, answer.point))) if answer.point else answer  # type: ignore[arg-type]


def bound_too_high(answer: Answer, *_: object) -> Answer:
    return answer if answer.bound is None else replace(answer, bound=answer.bound + 1)


def maximum(_answer: Answer, model: Model, objective: Objective) -> Answer:
    reverse = replace(objective, terms=tuple((index, -c) for index, c in objective.terms))
    return replace(BranchAndBound().minimize(model, reverse, limits=Limits(time_s=0.2)), bound=None)


def never(_answer: Answer, *_: object) -> Answer:
    raise RuntimeError("segmentation fault, nearly")


@pytest.mark.parametrize(
    ("change", "fails", "said"),
    [
        (zeros_for_limit, "limit without a point is its own status", "does not hold"),
        (infeasible_for_limit, "limit without a point is its own status", "called infeasible when time runs out"),
        (limit_for_infeasible, "says infeasible", "rows in conflict: limit"),
        (off_by_one, "agrees with enumeration, tier by tier", "does not hold"),
        (floats, "agrees with enumeration, tier by tier", "not int"),
        (bound_too_high, "agrees with enumeration, tier by tier", "is above the value"),
        (maximum, "bounds, signs and free rows", "optimal, and"),
        (never, "empty and constant objectives", "raised RuntimeError: segmentation fault, nearly"),
    ],
)
def test_a_fault_is_found(change: Change, fails: str, said: str) -> None:
    report = check(Wrong(change), ())
    details = {found.name: found.detail for found in report.findings if not found.passed}
    assert not report.passed
    assert said in details[fails]


def test_different_points_are_found() -> None:
    seen: list[Model] = []

    def fickle(answer: Answer, model: Model, objective: Objective) -> Answer:
        if answer.point is None or objective.name != "flat":
            return answer
        seen.append(model)
        points = feasible_points(model)
        return replace(answer, point=points[seen.count(model) % len(points)], bound=None)

    details = {found.name: found.detail for found in check(Wrong(fickle), ()).findings if not found.passed}
    assert details["same model, same point"] == "the same model gave two different points"


def test_an_inexact_solver_is_held_to_what_it_claims() -> None:
    honest = Wrong(limit_for_infeasible)
    honest.capabilities = Capabilities(exact=False, proves_infeasible=False)
    assert check(honest, ()).passed
    boastful = Wrong(infeasible_for_limit)
    boastful.capabilities = Capabilities(exact=False, proves_infeasible=False)
    assert not check(boastful, ()).passed


def test_a_missing_library_is_not_a_fault_of_the_solver() -> None:
    def missing(*_: object) -> Answer:
        raise SolverUnavailableError("not here")

    with pytest.raises(SolverUnavailableError, match="not here"):
        check(Wrong(missing), ())


def test_the_same_seed_gives_the_same_report() -> None:
    solver: ModelSolver = BranchAndBound()
    assert check(solver, (), seed=5) == check(solver, (), seed=5)


def test_a_status_that_is_no_answer_is_a_fault() -> None:
    report = check(Wrong(lambda *_: SimpleNamespace(status="ok")), ())  # type: ignore[arg-type,return-value]
    assert "returned SimpleNamespace, not an Answer" in report.findings[1].detail
