"""The page on calibration: its tables are the schema's, its paths lead somewhere, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pearl.cli.main import run
from pearl.errors import ScenarioError
from pearl.reproduce.calibration import World, load_calibration
from pearl.reproduce.paths import Place, locate
from pearl.reproduce.reference import measures, reference
from pearl.scenario.load import load_scenario
from pearl.scenario.units import Dimension

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "calibration.md").read_text(encoding="utf-8")


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The page's calibration file, with its scenario beside it."""
    scenario, calibration = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "ours.yaml").write_text(scenario)
    path = tmp_path / "ours.calibration.yaml"
    path.write_text(calibration)
    return path


def changed(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def test_the_tables_are_those_of_the_schema() -> None:
    assert reference() in PAGE
    kinds = {
        kind for model in measures() for kind in re.findall(r"'(\w+)'", str(model.model_fields["kind"].annotation))
    }
    assert len(kinds) > 10
    assert all(f"`{kind}`" in PAGE for kind in kinds)


def test_the_example_runs_and_names_what_the_page_shows(example: Path, tmp_path: Path) -> None:
    out = tmp_path / "fitted.yaml"
    args = ["calibrate", str(example), "--budget", "6", "--jobs", "1", "--format", "yaml", "--output", str(out)]
    assert run(args) == 0
    data = yaml.safe_load(out.read_text())
    shown = PAGE.split("target         wanted", 1)[1].split("```", 1)[0]
    assert [target["name"] for target in data["targets"]] == re.findall(r"^([a-z-]+) +\S+ +\S+ +\S+$", shown, re.M)
    assert list(data["parameters"]) == re.findall(r"^(\w+) = ", shown, re.M)
    assert all(0 <= target["loss"] < 1e6 for target in data["targets"])


def test_units_of_the_example_are_read_as_such(example: Path) -> None:
    calibration = load_calibration(example)
    environment = calibration.spec.parameters["environment"]
    assert (environment.low, environment.high, environment.start) == (0.5, 10.0, 2.0)
    first, second, third = calibration.spec.targets
    assert (first.value, first.tolerance) == (120.0, 2.0 + 1.0)
    assert (second.value, third.value, third.tolerance) == pytest.approx((-0.04, 0.017, 0.002))


def test_every_path_of_the_page_leads_to_a_number_of_its_unit() -> None:
    table = PAGE.split("## Which numbers can be free", 1)[1].split("\n\nA list of paths", 1)[0]
    units = {"time": Dimension.TIME, "bandwidth": Dimension.BANDWIDTH, "size": Dimension.BYTES}
    scenario = load_scenario("qwen3-30b-a3b-swe")
    world = World(workload=scenario.workload, engine=scenario.engine)
    found = 0
    for row in table.splitlines():
        *_, unit, _ = (cell.strip() for cell in row.split("|")) if row.startswith("| `") else ("", "", "")
        for path in re.findall(r"`((?:workload|engine)\.[a-z0-9_.]+)`", row):
            place = locate(world, path)
            if not isinstance(place, Place):
                place = locate(world, f"{path}.mean")
            assert isinstance(place, Place), place
            assert place.dimension is units.get(unit), path
            found += 1
    assert found > 15


@pytest.mark.parametrize(
    ("key", "fact"),
    [
        ("workload.environment.mean", "workload.environment_s.mean"),
        ("workload.first_prompt_tokens", "workload.first_prompt_tokens.mean"),
        ("workload.first_prompt_tokens.value", "workload.first_prompt_tokens.mean"),
        ("engine.kv_transfer.bandwidth", "engine.transfer.bandwidth_bytes_per_s"),
        ("engine.kv_transfer.latency", "engine.transfer.latency_s"),
    ],
)
def test_a_number_has_the_scenario_s_key_and_the_fact_s_name(example: Path, key: str, fact: str) -> None:
    base = load_calibration(example).base
    place = locate(base, key)
    assert isinstance(place, Place)
    assert place == locate(base, fact)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("high: 10s", "high: 1 GB/s", r"high is '1 GB/s': unknown unit 'GB/s'.*; expected a time"),
        ("start: 2s", "start: 90%", r"start is '90%'.*expected a time"),
        ("low: 0.8", "low: 1ms", r"low is '1ms': expected a plain number"),
        ("value: 120s", "value: 12%", r"value is '12%'.*expected a time"),
        ("value: -4%", "value: 4s", r"value is '4s'.*expected a share"),
        ("tolerance: 3s", "tolerance: 0s", "greater than 0"),
        ("[engine.decode.c0,", "[workload.environment_s.mean,", r"'workload.environment_s.mean' is free twice"),
        ("workload.environment.mean", "workload.environment.cv", r"no 'cv'; expected one of mean, low, high"),
        ("workload.environment.mean", "workload.environments", r"no 'environments'; expected one of .*, environment, "),
        ("workload.environment.mean", "engine.decode.saturation.amplitude", "nothing is below 'saturation'"),
    ],
)
def test_what_does_not_fit_is_an_error_at_its_place(example: Path, old: str, new: str, words: str) -> None:
    line = changed(example, old, new).read_text().partition(new)[0].count("\n") + 1
    with pytest.raises(ScenarioError, match=words) as caught:
        load_calibration(example)
    assert [fault.span.line for fault in caught.value.faults if fault.span] == [line]
