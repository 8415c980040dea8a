from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from pearl.cli.policy import policy
from pearl.errors import PolicyError
from pearl.policy.load import builtin_folder, load_policy
from pearl.policy.reference import json_schema, reference
from tests.policy.samples import policy_text, rule, written

ROOT = Path(__file__).resolve().parents[2]


def run(*args: str):
    return CliRunner().invoke(policy, list(args), catch_exceptions=False)


def test_check_reports_ok_and_every_fault(tmp_path):
    good = run("check", "pearl", "feasibility")
    assert (good.exit_code, good.stderr) == (0, "")
    assert [line.split(":")[1].split()[0] for line in good.stdout.splitlines()] == ["ok", "ok"]
    bad = written(tmp_path, policy_text(rule("N_P <= N_Q") + "solver: {sed: 1}\n"))
    mixed = run("check", "pearl", str(bad))
    assert mixed.exit_code == 2
    assert mixed.stdout.startswith("pearl: ok")
    assert [line.split(": ")[2].split(" (")[0] for line in mixed.stderr.splitlines()] == [
        "unknown name 'N_Q'",
        "unknown key 'sed'",
    ]
    assert all(line.startswith(f"error: {bad}:") for line in mixed.stderr.splitlines())


def test_show_prints_a_policy_that_loads_to_the_same_rules(tmp_path):
    shown = run("show", "cost-budget", "--set", "budget=3 usd * 1h")
    again = load_policy(written(tmp_path, shown.stdout))
    assert [r.name for r in again.rules] == [r.name for r in load_policy("cost-budget").rules]
    assert {p.name: p.value for p in again.params}["budget"] == 3 * 3600
    assert json.loads(run("show", "pearl", "--format", "json").stdout) == dict(load_policy("pearl").document)


def test_faults_of_the_other_commands_reach_the_root(tmp_path):
    for command in ("show", "math"):
        with pytest.raises(PolicyError):
            run(command, str(tmp_path / "absent.yaml"))
    assert run("show", "pearl", "--set", "x").exit_code == 2


def test_math_as_json():
    found = json.loads(run("math", "feasibility", "--format", "json").stdout)
    row = found["rows"][1]
    assert row["row"] == "B·K_seq − 0.95·H_max·N_D"
    assert (row["name"], row["when"], row["file"], row["unit"]) == (
        "kv_capacity",
        "disaggregated",
        "policies/feasibility.yaml",
        "tokens",
    )


def test_the_schema_accepts_the_shipped_policies_and_documents_every_field():
    schema = json.loads(run("schema").stdout)
    assert schema == json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for path in builtin_folder().glob("*.yaml"):
        jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"apiVersion": "x"}, schema)
    for section in (schema, *schema["$defs"].values()):
        for name, field in section.get("properties", {}).items():
            assert field.get("description"), name


def test_the_reference_is_current():
    assert (ROOT / "docs" / "policy-reference.md").read_text(encoding="utf-8") == reference()
    assert run("reference").stdout == reference()


def test_list_names_every_policy():
    names = [line.split()[0] for line in run("list").stdout.splitlines()]
    assert names == sorted(path.stem for path in builtin_folder().glob("*.yaml"))
