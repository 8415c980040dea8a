from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from pearl.scenario.fit_files import fit_table
from pearl.scenario.load import shipped_scenarios
from pearl.scenario.reference import scenario_reference, update_page
from pearl.scenario.schema import scenario_schema
from tests.scenario.cases import TEXT, small_text

PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(scenario_schema())


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert update_page(text) == text, "run: python -m pearl.scenario.reference docs/scenarios.md"


def test_the_table_of_step_times_that_the_page_shows_can_be_fitted(tmp_path: Path):
    shown = PAGE.read_text(encoding="utf-8").split("```json\n", 1)[1].split("```", 1)[0]
    table = tmp_path / "STEP_TIMES.json"
    table.write_text(shown, encoding="utf-8")
    (fitted,) = fit_table(table, gpu="H200", shape="36,8,128")
    assert fitted.profile.fit is not None
    assert fitted.profile.fit.decode_mean < 0.2


def test_the_page_names_every_shipped_scenario():
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in shipped_scenarios() if f"| `{name}` |" not in text] == []


def test_every_field_has_a_meaning():
    rows = [line for line in scenario_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.split(" | ")[-1].strip(" |") == ""] == []


def test_a_page_without_a_place_for_the_reference_is_refused():
    with pytest.raises(ValueError, match="needs the lines"):
        update_page("# nothing here\n")


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(scenario_schema())


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_shipped_scenarios_meet_the_schema(validator: Draft202012Validator, name: str):
    validator.validate(yaml.safe_load(shipped_scenarios()[name].read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("turns: 4", "turns: -4"),
        ("low: 1s", "low: 1"),
        ("low: 1s", "low: 1 parsec"),
        ("nodes: 1,", "nodes: 0,"),
        ("role: decode", "rôle: decode"),
        ("engine: qwen3-8b-h200", "engine: ~"),
        ("reclaim_probability: 5%", "reclaim_probability: 5"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(validator: Draft202012Validator, old: str, new: str):
    assert validator.is_valid(yaml.safe_load(TEXT))
    assert not validator.is_valid(yaml.safe_load(small_text((old, new))))
