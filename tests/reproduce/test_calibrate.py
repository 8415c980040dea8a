"""The calibration: planted parameters come back, faults have their place, and nothing held out is read."""

from __future__ import annotations

import ast
import math
import shlex
from pathlib import Path

import pytest
import yaml

from pearl.cli.main import run
from pearl.errors import ScenarioError
from pearl.reproduce.bench import Bench
from pearl.reproduce.calibration import Calibration, load_calibration
from pearl.reproduce.fit import calibrate, loss_of, met
from pearl.reproduce.fitted import read_values
from pearl.reproduce.measures import PrefillTokenShare, PromptTokenShare, parse_pool
from pearl.reproduce.models import CALIBRATED, FOLDER, calibration_of, load_model, model_names
from pearl.reproduce.search import minimise
from pearl.reproduce.targets import Role, load_targets

PACKAGE = FOLDER.parent
SCENARIO = """
apiVersion: pearl.dev/v1alpha1
kind: Scenario
metadata: {name: tiny}
spec:
  engine: qwen3-8b-h100
  cluster:
    pools: [{zone: reserved, nodes: 1, gpus_per_node: 2, role: colocated}]
  workload:
    trajectories: 6
    turns: {dist: lognormal, mean: 3, cv: 0.3, low: 1, high: 8}
    first_prompt_tokens: 800
    new_prompt_tokens: 200
    output_tokens: {dist: lognormal, mean: 150, cv: 0.3}
    environment: {dist: exponential, mean: 1s}
    max_context_tokens: 8192
"""
CALIBRATION = """
apiVersion: pearl.dev/v1alpha1
kind: Calibration
metadata: {name: planted}
spec:
  scenario: tiny.yaml
  seeds: 1
  parameters:
    output: {path: workload.output_tokens.mean, low: 50, high: 500, scale: log}
    speed: {path: [engine.decode.c0_s, engine.decode.c1_s, engine.decode.c2_s], factor: true, low: 0.5, high: 3}
  targets:
    - {name: two, measure: {kind: makespan, pool: 2C, batch: 6}, value: 10.0, tolerance: 0.1}
    - {name: split, measure: {kind: prefill_time_share, pool: 2C, batch: 6}, value: 0.1, tolerance: 0.002}
    - {name: tokens, measure: {kind: prefill_token_share, pool: 2C, batch: 6}, value: 0.5, tolerance: 0.01}
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A calibration whose targets are those of output 240 and speed 1.7."""
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    path = tmp_path / "planted.yaml"
    path.write_text(CALIBRATION)
    truth = list(met(load_calibration(path), {"output": 240.0, "speed": 1.7}))
    data = yaml.safe_load(CALIBRATION)
    for target, one in zip(data["spec"]["targets"], truth, strict=True):
        target["value"] = one.fitted
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.slow
def test_planted_parameters_come_back(planted: Path) -> None:
    found = calibrate(load_calibration(planted), budget=300, seed=3)
    assert found.parameters["output"] == pytest.approx(240, rel=0.05)
    assert found.parameters["speed"] == pytest.approx(1.7, rel=0.05)
    assert found.loss < 1
    assert loss_of(found.calibration, found.parameters) == pytest.approx(found.loss)


@pytest.mark.slow
def test_the_result_depends_on_the_seed_and_not_on_the_number_of_processes(planted: Path) -> None:
    calibration = load_calibration(planted)
    alone = calibrate(calibration, budget=30, seed=1)
    assert calibrate(calibration, budget=30, seed=1, jobs=2).parameters == alone.parameters
    assert calibrate(calibration, budget=30, seed=2).parameters != alone.parameters


def test_the_command_writes_a_result_that_reads_back(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    given = str(planted.relative_to(tmp_path.parent))
    out = tmp_path / "fit.yaml"
    args = ["calibrate", given, "--budget", "20", "--jobs", "1", "--format", "yaml", "--output", str(out)]
    assert run(args) == 0
    data = yaml.safe_load(out.read_text())
    assert shlex.split(data["command"]) == ["pearl", "calibrate", given, "--budget", "20", "--seed", "0"]
    assert read_values(out, load_calibration(planted)) == data["parameters"]
    assert [target["name"] for target in data["targets"]] == ["two", "split", "tokens"]
    assert data["loss"] == pytest.approx(sum(target["loss"] for target in data["targets"]), abs=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("workload.output_tokens.mean", "workload.outputs.mean", 9, "no 'outputs'"),
        ("workload.output_tokens.mean", "workload.routing", 9, "is no number"),
        ("workload.output_tokens.mean", "engine.decode.c0_s", 10, "free twice"),
        ("low: 50,", "low: 600,", 9, "low must be below high"),
        ("low: 50,", "low: 0,", 9, "log scale needs low above 0"),
        ("pool: 2C", "pool: 2X", 12, "expected a pool such as 16C or 5P3D"),
        ("tolerance: 0.1}", "tolerance: 0}", 12, "greater than 0"),
        ("kind: prefill_time_share", "kind: colour", 13, "colour"),
    ],
)
def test_a_fault_has_its_place(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    path = tmp_path / "faulty.yaml"
    path.write_text(CALIBRATION.replace(old, new, 1))
    with pytest.raises(ScenarioError) as caught:
        load_calibration(path)
    assert any(words in str(fault) and fault.span and fault.span.line == line for fault in caught.value.faults)


def test_more_than_ten_parameters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    data = yaml.safe_load(CALIBRATION)
    one = data["spec"]["parameters"]["output"]
    data["spec"]["parameters"] = {f"p{index}": dict(one) for index in range(11)}
    path = tmp_path / "many.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ScenarioError, match="at most 10"):
        load_calibration(path)


def test_a_range_that_cannot_be_simulated_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    path = tmp_path / "starved.yaml"
    memory = "kv: {path: engine.kv_colocated_tokens, low: 1, high: 5}"
    path.write_text(CALIBRATION.replace("  targets:", f"    {memory}\n  targets:", 1))
    assert run(["calibrate", str(path), "--budget", "4", "--jobs", "1"]) == 2
    assert "no point of the ranges could be simulated" in capsys.readouterr().err


def test_the_search_finds_a_tilted_valley_within_its_budget() -> None:
    asked = 0

    def losses(points, bound):
        nonlocal asked
        asked += len(points)
        return [(10 * (x + y - 1.1)) ** 2 + (x - y - 0.3) ** 2 + (z - 0.25) ** 2 for x, y, z in points]

    point, loss = minimise(losses, start=(0.5, 0.5, 0.5), budget=500, seed=0)
    assert asked == 500
    assert loss < 1e-3
    assert point == pytest.approx((0.7, 0.4, 0.25), abs=0.02)


@pytest.mark.parametrize("budget", [1, 2, 13, 50])
def test_the_search_keeps_to_its_budget_and_to_the_cube(budget: int) -> None:
    seen: list[tuple[float, ...]] = []

    def losses(points, bound):
        seen.extend(points)
        return [sum(point) for point in points]

    point, loss = minimise(losses, start=(0.9, 0.9), budget=budget, seed=5)
    assert len(seen) == budget
    assert all(0 <= value <= 1 for one in seen for value in one)
    assert loss == min(math.fsum(one) for one in seen) == math.fsum(point)


def test_every_model_has_at_most_ten_free_parameters_and_fitted_values() -> None:
    assert model_names() == ("qwen3-30b-a3b", "qwen3-8b")
    for name in model_names():
        calibration = calibration_of(name)
        assert len(calibration.spec.parameters) <= 10
        values = read_values(CALIBRATED / f"{name}.yaml", calibration)
        assert all(p.low <= values[key] <= p.high for key, p in calibration.spec.parameters.items())
        assert load_model(name) == calibration.world(values)


def test_the_prompts_share_counts_whole_contexts_and_the_computed_share_what_was_not_found(planted: Path) -> None:
    world = load_calibration(planted).world({"output": 240.0, "speed": 1.0})
    bench = Bench(workload=world.workload, engine=world.engine, seeds=(0, 1))
    prompts = outputs = 0
    for trajectory in (one for seed in (0, 1) for one in bench.trajectories(6, seed)):
        context = 0
        for turn in trajectory:
            prompts += context + turn.new_prompt_tokens
            outputs += turn.output_tokens
            context += turn.new_prompt_tokens + turn.output_tokens
    pool = parse_pool("2C")
    share = PromptTokenShare(kind="prompt_token_share", pool=pool, batch=6).read(bench)
    assert share == prompts / (prompts + outputs)
    assert PrefillTokenShare(kind="prefill_token_share", pool=pool, batch=6).read(bench) < share


def test_two_gpus_a_worker_are_held_to_the_targets_of_one() -> None:
    one = calibration_of("qwen3-30b-a3b")
    two = load_calibration(FOLDER.parents[2] / "benchmarks" / "calibrations" / "two-gpus.calibration.yaml")
    assert two.base.engine.tensor_parallel == 2 * one.base.engine.tensor_parallel
    assert two.base.workload == one.base.workload

    def figures(calibration: Calibration) -> list[tuple[str, float, float]]:
        return [(target.name, target.value, target.tolerance) for target in calibration.spec.targets]

    assert figures(two) == figures(one)
    assert two.spec.seeds == one.spec.seeds


def test_the_calibration_knows_no_held_out_row() -> None:
    """Its modules import neither the targets nor what simulates them, and its files name calibrated figures alone."""
    for module in ("bench", "calibration", "fit", "fitted", "measures", "search"):
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not named & {f"pearl.reproduce.{other}" for other in ("targets", "simulate", "rows", "run", "world")}
    known = {
        json_of(target.simulate.measure)
        for target in load_targets()
        if target.role is Role.CALIBRATED and target.simulate.kind == "measure"
    }
    ratios = {"5P3D", "4P4D"}
    for name in model_names():
        for target in calibration_of(name).spec.targets:
            if target.measure.kind == "ratio_regret":
                assert target.measure.ratio.label() in ratios
            else:
                assert json_of(target.measure) in known, target.name


def json_of(measure) -> str:
    return repr(measure)
