"""A calibration never leaves what a scenario file may say, nor fits what no target depends on."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from pearl.cli.main import run
from pearl.errors import ScenarioError
from pearl.reproduce import fit as fitting
from pearl.reproduce.admitted import refusal
from pearl.reproduce.calibration import Calibration, load_calibration
from pearl.reproduce.fit import calibrate, loss_of
from pearl.reproduce.models import FOLDER, model_names
from pearl.reproduce.search import GENERATION
from pearl.scenario.load import load_scenario, shipped_scenarios

SCENARIO = """
apiVersion: pearl.dev/v1alpha1
kind: Scenario
metadata: {name: tiny}
spec:
  engine: qwen3-8b-h100
  cluster:
    pools: [{zone: reserved, nodes: 1, gpus_per_node: 2, role: colocated}]
  workload:
    trajectories: 4
    turns: {dist: uniform, low: 1, high: 3}
    first_prompt_tokens: {dist: lognormal, mean: 800, cv: 0.2}
    new_prompt_tokens: 0
    output_tokens: {dist: lognormal, mean: 150, cv: 0.3, low: 10}
    environment: {dist: exponential, mean: 1s}
    max_context_tokens: 8192
"""
MAKESPAN = {"kind": "makespan", "pool": "2C", "batch": 4}
SPLIT = {"kind": "makespan", "pool": "1P1D", "batch": 4}


def in_line(data: dict[str, Any]) -> str:
    return str(yaml.safe_dump(data, default_flow_style=True, sort_keys=False, width=10_000)).strip()


def write(folder: Path, *parameters: dict[str, Any], measure: dict[str, Any] = MAKESPAN, **target: object) -> Path:
    """A calibration of parameters `p0`, `p1`, …, one a line from line 8, to one target."""
    (folder / "tiny.yaml").write_text(SCENARIO)
    lines = [
        "apiVersion: pearl.dev/v1alpha1",
        "kind: Calibration",
        "metadata: {name: ranges}",
        "spec:",
        "  scenario: tiny.yaml",
        "  seeds: 1",
        "  parameters:",
        *(f"    p{index}: {in_line(parameter)}" for index, parameter in enumerate(parameters)),
        "  targets:",
        f"    - {in_line({'name': 't', 'measure': measure, 'value': 6, 'tolerance': 1, **target})}",
    ]
    path = folder / "ranges.yaml"
    path.write_text("\n".join(lines))
    return path


def one(path: str | list[str], low: float, high: float, **more: object) -> dict[str, Any]:
    return {"path": path, "low": low, "high": high, **more}


SPEED = one("engine.decode.c0", 0.5, 2, factor=True)


def faults_of(path: Path) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_calibration(path)
    assert all(fault.span and fault.span.line >= 8 for fault in caught.value.faults)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("parameter", "bounds", "words"),
    [
        (one("engine.max_sequences", -3, 2), ["low"], "engine.max_sequences: input should be greater than or equal to"),
        (one("engine.max_sequences", 1, 10_000_000), ["high"], "less than or equal to 1000000"),
        (one("engine.chunk_tokens", 0, 8), ["low"], "engine.chunk_tokens"),
        (one("workload.output_tokens.cv", -3, -1), ["low", "high"], "workload.output_tokens.cv"),
        (one("workload.output_tokens.cv", 0.1, 11), ["high"], "less than or equal to 10"),
        (one("workload.output_tokens.mean", -1.7e308, 1.7e308), ["low", "high"], "workload.output_tokens.mean"),
        (one("workload.output_tokens.high", 1, 50), ["low"], "low must not exceed high"),
        (one("workload.output_tokens.low", 0, 1e16), ["high"], "workload.output_tokens.low"),
        (one("workload.turns.low", 0.2, 2), ["low"], "at least one turn"),
        (one("workload.turns.high", 2, 20_000), ["high"], "too many turns"),
        (one("workload.max_context_tokens", 1, 9000), ["low"], "fills the context"),
        (one("workload.environment.mean", -1, 1), ["low"], "workload.environment.mean: expected a time of at least 0"),
        (one("engine.decode.c0", -1, -0.5), ["low", "high"], "engine.decode.c0: expected a time of at least 0"),
        (one("engine.decode.c0", -1, 1, factor=True), ["low"], "engine.decode.c0"),
        (one(["engine.decode.c0", "engine.decode.c1"], 0, 1), ["low"], "decoding must take time"),
        (one("engine.mixed_step_factor", 0, 1), ["low"], "engine.mixed_step_factor"),
        (one("engine.kv_colocated_tokens", 1e300, 1e308, factor=True), ["low", "high"], "engine.kv_colocated_tokens"),
    ],
)
def test_a_bound_that_no_scenario_admits_is_refused_at_its_place(
    tmp_path: Path, parameter: dict[str, Any], bounds: list[str], words: str
) -> None:
    faults = faults_of(write(tmp_path, parameter))
    assert [fault.split("; ")[0].split(": ", 1)[1].split(" is ")[0] for fault in faults] == bounds
    assert all("no scenario admits it: " in fault and words in fault and ":8:" in fault for fault in faults)


def test_a_bound_may_need_that_of_another_parameter(tmp_path: Path) -> None:
    prompt = one("workload.first_prompt_tokens.mean", 6000, 12_000)
    assert any("high is 12000" in fault for fault in faults_of(write(tmp_path, prompt)))
    calibration = load_calibration(write(tmp_path, prompt, one("workload.max_context_tokens", 8192, 16_384)))
    assert math.isinf(loss_of(calibration, {"p0": 12_000.0, "p1": 8192}))
    assert math.isfinite(loss_of(calibration, {"p0": 12_000.0, "p1": 16_384}))
    with pytest.raises(ScenarioError, match="fills the context"):
        calibration.world({"p0": 12_000.0, "p1": 8192})


@pytest.mark.parametrize(("low", "high", "key"), [(0.4, 3, "low"), (1, 3.5, "high")])
def test_a_range_of_a_whole_number_has_whole_bounds(tmp_path: Path, low: float, high: float, key: str) -> None:
    (fault,) = faults_of(write(tmp_path, one("engine.max_sequences", low, high)))
    assert f": {key} is {low if key == 'low' else high}; expected a whole number" in fault


def test_whole_numbers_are_searched_and_reported_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, one("workload.max_context_tokens", 1_000_000, 9_999_999, start=5_432_101))
    found = calibrate(load_calibration(path), budget=5, seed=1)
    assert isinstance(found.parameters["p0"], int)
    assert found.parameters["p0"] % 10 == 1
    assert run(["calibrate", str(path), "--budget", "5", "--seed", "1", "--jobs", "1"]) == 0
    assert f"p0 = {found.parameters['p0']}\n" in capsys.readouterr().out
    calibration = load_calibration(write(tmp_path, one("engine.kv_colocated_tokens", 0.5, 2, factor=True)))
    assert calibration.values((0.1,))["p0"] == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("path", "measure", "words"),
    [
        ("workload.trajectories", MAKESPAN, "each names its own batch"),
        ("workload.max_staleness", MAKESPAN, "none trains"),
        ("engine.tensor_parallel", MAKESPAN, "they count workers, not GPUs"),
        ("engine.fit.points", MAKESPAN, "how the profile came about"),
        ("engine.kv_decode_tokens", MAKESPAN, "none is of a disaggregated pool"),
        ("engine.kv_transfer.latency", MAKESPAN, "none is of a disaggregated pool"),
        ("engine.mixed_step_factor", SPLIT, "none is of a colocated pool"),
    ],
)
def test_what_no_target_depends_on_is_refused(tmp_path: Path, path: str, measure: dict[str, Any], words: str) -> None:
    (fault,) = faults_of(write(tmp_path, one(path, 2, 8), measure=measure))
    assert f":8:16: no target depends on {path!r}: " in fault
    assert words in fault
    other = {"kind": "disaggregation_gain", "workers": 2, "batch": 4}
    if words.startswith("none is of"):
        assert load_calibration(write(tmp_path, one(path, 2, 8), measure=other)).places["p0"]


def test_a_range_in_which_nothing_changes_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, one("workload.new_prompt_tokens", 0.5, 2, factor=True)))
    assert fault.endswith("every number of the range gives the same scenario")


@pytest.mark.parametrize("target", [{"tolerance": 1e-300}, {"value": 1e300}, {"value": -1e300}, {"tolerance": 1e300}])
def test_a_figure_whose_error_cannot_be_squared_is_refused(tmp_path: Path, target: dict[str, object]) -> None:
    (fault,) = faults_of(write(tmp_path, SPEED, **target))
    assert f"spec.targets.0.{next(iter(target))}: " in fault


def test_a_calibration_to_nothing_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, SPEED)
    path.write_text(path.read_text().partition("  targets:")[0] + "  targets: []\n")
    with pytest.raises(ScenarioError, match=r"spec\.targets: expected a target at least"):
        load_calibration(path)


@pytest.mark.parametrize("name", shipped_scenarios())
def test_every_shipped_scenario_is_admitted_as_it_is(name: str) -> None:
    scenario = load_scenario(name)
    assert refusal(scenario.workload, scenario.engine) is None


@pytest.mark.parametrize("name", model_names())
def test_every_candidate_of_a_shipped_calibration_is_admitted(name: str) -> None:
    calibration: Calibration = load_calibration(FOLDER / f"{name}.calibration.yaml")
    ends = [{key: getattr(one, end) for key, one in calibration.spec.parameters.items()} for end in ("low", "high")]
    for values in (calibration.values(calibration.start), *ends):
        assert calibration.world(values) == calibration.unchecked(values)


def test_no_more_processes_than_candidates_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(ProcessPoolExecutor):
        def __init__(self, max_workers: int) -> None:
            asked.append(max_workers)
            super().__init__(max_workers=1)

    monkeypatch.setattr(fitting, "ProcessPoolExecutor", Counted)
    calibration = load_calibration(write(tmp_path, SPEED))
    calibrate(calibration, budget=2, seed=0, jobs=60)
    calibrate(calibration, budget=8, seed=0, jobs=60)
    assert asked == [2, GENERATION]


def test_a_budget_beyond_all_reason_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", str(write(tmp_path, SPEED)), "--budget", "1000000000000"]) == 2
    assert "--budget" in capsys.readouterr().err
