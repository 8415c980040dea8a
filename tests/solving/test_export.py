"""Exported models mean what the model means: read back by HiGHS and SCIP, or without loss from JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.source import Span
from pearl.errors import InputError, SolverContractError, UsageError
from pearl.solving.backend import objective_value
from pearl.solving.export import FORMATS, rendered, write_model
from pearl.solving.ir import Model, Objective, Row, Variable
from pearl.solving.model_json import model_from_json
from pearl.solving.naming import exported_names, point_of
from pearl.solving.random_models import feasible_points, random_model

SAMPLE = Model(
    variables=(
        Variable(name="y[pre-1,prefill]", low=0, high=8),
        Variable(name="y[pre 1,prefill]", low=-3, high=8),
        Variable(name="e9", low=2, high=2),
        Variable(name="free", low=0, high=1),
        Variable(name="unused", low=-5, high=-1),
    ),
    rows=(
        Row(
            name="range", terms=((0, 1), (1, -2)), low=-4, high=6, rule="limit churn", span=Span(file="p.yaml", line=7)
        ),
        Row(name="equal", terms=((0, 1), (1, 1), (3, -1)), low=2, high=2),
        Row(name="at most", terms=((1, 3),), high=9),
        Row(name="at least", terms=((0, 1), (2, 5)), low=11),
        Row(name="no bound", terms=((0, 7),)),
        Row(name="makespan", terms=(), low=-1, high=4),
    ),
    objectives=(
        Objective(name="makespan", terms=((0, 3), (1, 2), (3, -1)), constant=-40),
        Objective(name="churn", terms=((0, -1), (4, 1)), constant=3, tolerance_ppb=20_000_000),
    ),
)


def highs_reads(path: Path) -> tuple[str, float, dict[str, float]]:
    """Status, objective and values by name, as HiGHS finds them in the file."""
    highspy = pytest.importorskip("highspy")
    engine = highspy.Highs()
    engine.setOptionValue("output_flag", False)
    engine.setOptionValue("mip_rel_gap", 0.0)
    engine.setOptionValue("threads", 1)
    assert engine.readModel(str(path)) == highspy.HighsStatus.kOk
    engine.run()
    values = {engine.getColName(i)[1]: v for i, v in enumerate(engine.getSolution().col_value)}
    return engine.modelStatusToString(engine.getModelStatus()), engine.getInfo().objective_function_value, values


def scip_reads(path: Path) -> tuple[str, float | None]:
    scip: Any = pytest.importorskip("pyscipopt")
    engine = scip.Model()
    engine.hideOutput()
    engine.readProblem(str(path))
    engine.optimize()
    return engine.getStatus(), engine.getObjVal() if engine.getNSols() else None


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
@pytest.mark.parametrize("tier", [0, 1])
def test_other_tools_find_the_same_optimum(tmp_path: Path, suffix: str, tier: int) -> None:
    path = tmp_path / f"model{suffix}"
    write_model(SAMPLE, path, tier=tier)
    objective = SAMPLE.objectives[tier]
    best = min(objective_value(objective, point) for point in feasible_points(SAMPLE))
    status, value, values = highs_reads(path)
    assert (status, round(value)) == ("Optimal", best)
    assert objective_value(objective, point_of(SAMPLE, values)) == best
    scip_status, scip_value = scip_reads(path)
    assert scip_status == "optimal"
    assert scip_value == pytest.approx(best)


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
def test_random_models_survive_the_round_trip(tmp_path: Path, suffix: str) -> None:
    random = Random(3)
    path = tmp_path / f"model{suffix}"
    for _ in range(40):
        model = random_model(random)
        write_model(model, path)
        status, value, values = highs_reads(path)
        points = feasible_points(model)
        assert (status == "Optimal") == bool(points)
        if points:
            best = min(objective_value(model.objectives[0], point) for point in points)
            assert round(value) == best
            assert objective_value(model.objectives[0], point_of(model, values)) == best


@pytest.mark.parametrize("suffix", [".mps", ".lp", ".json"])
def test_text_is_as_it_was(suffix: str) -> None:
    golden = Path(__file__).parent / "golden" / f"model{suffix}"
    assert rendered(SAMPLE, suffix) == golden.read_text()


def test_json_loses_nothing() -> None:
    assert model_from_json(rendered(SAMPLE, ".json")) == SAMPLE


@given(st.integers(0, 10**6), st.integers(-(2**70), 2**70))
def test_json_loses_nothing_of_random_models(seed: int, constant: int) -> None:
    model = random_model(Random(seed))
    model = replace(model, objectives=(replace(model.objectives[0], constant=constant, tolerance_ppb=7),))
    assert model_from_json(rendered(model, ".json")) == model


def test_comments_name_rules_tiers_and_renamed_things() -> None:
    text = rendered(SAMPLE, ".lp")
    assert "\\ row range: rule limit churn at p.yaml:7:1" in text
    assert "\\ tier 1 churn, tolerance 20000000 ppb:" in text
    assert "\\ variable y_pre_1_prefill is y[pre-1,prefill]" in text
    assert "\\ variable y_pre_1_prefill_2 is y[pre 1,prefill]" in text
    assert "\\ row no_bound has no bound and is left out" in text


def test_a_line_break_in_a_name_cannot_leave_its_comment() -> None:
    row = replace(SAMPLE.rows[0], name="a\nEnd\nb", rule="x\nBounds")
    text = rendered(replace(SAMPLE, rows=(row,)), ".lp")
    assert "\nEnd\nb" not in text
    assert "\nBounds\n" in text.split("General")[0]
    assert text.count("\nBounds") == 1


@given(st.lists(st.text(max_size=12), min_size=1, max_size=8))
def test_names_are_unique_and_plain(texts: list[str]) -> None:
    variables = tuple(Variable(name=text, low=0, high=1) for text in texts)
    names = exported_names(Model(variables=variables, rows=(), objectives=())).variables
    assert len({name.lower() for name in names}) == len(texts)
    for name in names:
        assert name.isascii()
        assert name.replace("_", "a").isalnum()
        assert name[0].isalpha()
        assert name[0] not in "eE"


def test_lines_stay_short() -> None:
    variables = tuple(Variable(name=f"worker_{i}", low=0, high=1) for i in range(500))
    row = Row(name="all", terms=tuple((i, i + 1) for i in range(500)), high=9)
    text = rendered(Model(variables=variables, rows=(row,), objectives=()), ".lp")
    assert max(map(len, text.splitlines())) <= 100


def test_point_of_refuses_what_does_not_hold() -> None:
    with pytest.raises(SolverContractError, match="names a variable 'nobody'"):
        point_of(SAMPLE, {"nobody": 1.0})
    with pytest.raises(SolverContractError, match="does not hold in integers"):
        point_of(SAMPLE, {})


@pytest.mark.parametrize(
    ("suffix", "tier", "said"),
    [(".sav", 0, "no model format '.sav'"), (".lp", 2, "no tier 2"), (".mps", -1, "no tier -1")],
)
def test_what_cannot_be_exported(suffix: str, tier: int, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")):
        rendered(SAMPLE, suffix, tier=tier)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_model(SAMPLE, tmp_path / "missing" / "model.lp")


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_interrupted_export_leaves_the_model_that_was_there(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"model{suffix}"
    write_model(SAMPLE, path)
    kept = path.read_bytes()
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_model(replace(SAMPLE, rows=SAMPLE.rows[:2]), path)
    assert path.read_bytes() == kept
    assert list(tmp_path.iterdir()) == [path]


def interrupted(_self: Path, _target: Path) -> None:
    raise KeyboardInterrupt


def test_a_model_without_variables_goes_to_json_only() -> None:
    empty = Model(variables=(), rows=(), objectives=())
    assert model_from_json(rendered(empty, ".json")) == empty
    with pytest.raises(UsageError, match=r"export \.json"):
        rendered(empty, ".lp")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "m.json:1:2: not JSON"),
        ("{}", "not a model"),
        ("[]", "not a model"),
        (json.dumps({"apiVersion": "x", "kind": "Model"}), "apiVersion pearl.dev/v1alpha1"),
        (rendered(SAMPLE, ".json").replace('"low": 0', '"lower": 0', 1), "unexpected keyword argument 'lower'"),
        (rendered(SAMPLE, ".json").replace('"low": 0', '"low": "0"', 1), "holds '0' where an integer must be"),
        (rendered(SAMPLE, ".json").replace("[[0, 7]]", "[[5, 7]]"), "'no bound' names variable 5 of 5"),
        (rendered(SAMPLE, ".json").replace("[[0, 7]]", "[[0, 7], [0, 1]]"), "not canonical"),
        (rendered(SAMPLE, ".json").replace("[[0, 7]]", "[[0, 7.5]]"), "holds 7.5 where"),
    ],
)
def test_json_that_is_no_model(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        model_from_json(text, file="m.json")
    assert said in str(caught.value)
