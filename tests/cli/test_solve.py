"""`pearl solve` through its command line: exit codes, forms, determinism, and what each flag adds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from pearl.cli.main import run
from pearl.report.schema import result_schema

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "schemas" / "decision.schema.json"


def solve(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = run(["solve", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    code, out, err = solve(capsys, *args, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_main_job(capsys):
    result = document(capsys, "scenarios/qwen3-8b-swe.yaml")
    assert result["apiVersion"] == "pearl.dev/v1alpha1"
    assert result["decision"]["outcome"] == "switch"
    assert sum(result["decision"]["counts"][role] for role in ("prefill", "decode", "colocated", "inactive")) == 28
    assert result["predicted"]["makespan_s"] < result["predicted"]["stay_s"]
    assert [step["kind"] for step in result["plan"]["steps"]].count("borrow") == result["decision"]["counts"][
        "borrowed"
    ]
    assert {"name", "file", "line", "slack"} <= result["rules"][0].keys()
    assert re.fullmatch("[0-9a-f]{64}", result["inputs"]["policy_sha256"])


def test_the_published_schema_is_the_one_of_the_code():
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == result_schema()


@pytest.mark.parametrize(
    "args",
    [
        ["qwen3-8b-swe", "--why", "5P3D", "--why", "28C", "--alternatives", "2"],
        ["reclaim"],
        ["infeasible-kv"],
        ["small-4gpu", "--predictor", "bubble", "--solver", "enumerate"],
    ],
)
def test_every_result_fits_the_published_schema(capsys, args):
    _, out, _ = solve(capsys, *args, "--format", "json")
    jsonschema.validate(json.loads(out), json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_yaml_says_what_json_says(capsys):
    def timeless(result: dict) -> dict:
        return {**result, "solver": {**result["solver"], "build_s": 0, "solve_s": 0}}

    _, text, _ = solve(capsys, "small-4gpu", "--format", "yaml")
    assert timeless(yaml.safe_load(text)) == timeless(document(capsys, "small-4gpu"))


def test_infeasible_has_its_own_exit_code_and_says_what_would_mend_it(capsys):
    code, out, _ = solve(capsys, "infeasible-kv", "--format", "json")
    result = json.loads(out)
    assert code == 3
    assert result["decision"]["outcome"] == "infeasible"
    assert {rule["name"] for rule in result["diagnosis"]["conflict"]} == {"kv_capacity", "kv_capacity_colo"}
    assert all(not rule["relaxable"] for rule in result["diagnosis"]["conflict"])
    assert {fix["kind"] for fix in result["diagnosis"]["resources"]} == {"add_workers", "trajectories"}
    assert result["plan"]["steps"] == []


def test_a_limit_that_no_solver_can_keep_is_exit_4(capsys):
    code, out, _ = solve(capsys, "scale-4096", "--time-limit", "1e-9", "--format", "json")
    result = json.loads(out)
    assert code == 4
    assert result["decision"]["outcome"] == "limit"
    assert result["decision"]["counts"]["colocated"] == 3072
    assert result["plan"]["steps"] == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["no-such"], "no scenario 'no-such'"),
        (["small-4gpu", "--solver", "cpsta"], "cpsat"),
        (["small-4gpu", "--policy", "perl"], "pearl"),
        (["small-4gpu", "--predictor", "netwrk"], "network"),
        (["small-4gpu", "--set", "kv_safty=0.9"], "kv_safety"),
        (["small-4gpu", "--set", "kv_safety=7"], "kv_safety"),
        (["small-4gpu", "--why", "five"], "names no configuration"),
        (["small-4gpu", "--event", "gpus_lots:x"], "gpus_lost"),
        (["small-4gpu", "--export", "/no/such/folder/model.mps"], "cannot write"),
        (["small-4gpu", "--export", "model.json", "--output", "model.json"], "would hold two results"),
        (["small-4gpu", "--alternatives", "0"], "0 is not in the range"),
        (["small-4gpu", "--output", "/no/such/folder/plan.json"], "cannot write"),
    ],
)
def test_bad_input_is_one_clear_error_and_exit_2(capsys, args, said):
    code, out, err = solve(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["model.xyz", "model", "mps"])
def test_an_export_of_no_format_is_refused_before_anything_is_solved(capsys, name):
    code, out, err = solve(capsys, "no-such", "--export", name)
    assert (code, out) == (2, "")
    assert "no model format" in err
    assert "expected a file name in .mps, .lp, .json" in err


def test_output_goes_to_the_file_whole(capsys, tmp_path):
    path = tmp_path / "plan.json"
    code, out, _ = solve(capsys, "small-4gpu", "--format", "json", "--output", str(path))
    assert (code, out) == (0, "")
    assert json.loads(path.read_text(encoding="utf-8"))["kind"] == "Decision"
    assert list(tmp_path.iterdir()) == [path]


def test_an_event_in_place_of_the_scenarios_own(capsys):
    lost = document(capsys, "qwen3-8b-swe", "--event", "gpus_lost:spot-0")
    assert sum(lost["decision"]["counts"][role] for role in ("prefill", "decode", "colocated", "inactive")) == 24
    assert lost["inputs"]["event"] == "gpus_lost:spot-0"


def test_settings_change_the_decision_and_are_recorded(capsys):
    strict = document(capsys, "qwen3-8b-swe", "--set", "mode_floor=1000s")
    assert strict["decision"]["mode"] == "colocated"
    assert strict["inputs"]["sets"] == {"mode_floor": "1000s"}


@pytest.mark.parametrize("suffix", ["mps", "lp", "json"])
def test_the_model_is_exported(capsys, tmp_path, suffix):
    path = tmp_path / f"model.{suffix}"
    code, _, _ = solve(capsys, "small-4gpu", "--export", str(path))
    assert code == 0
    assert "kv_capacity" in path.read_text(encoding="utf-8")


def test_the_table_names_what_was_asked(capsys):
    code, out, _ = solve(capsys, "qwen3-8b-swe", "--why", "5P3D", "--alternatives", "2")
    assert code == 0
    for part in ("switch to", "Why", "Plan:", "Rules", "Objective tiers", "Why not 5P3D?", "Alternatives", "policies/"):
        assert part in out


BY_VALUE = """
apiVersion: pearl.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: by-value}
extends: [builtin/pearl]
spec:
  objective:
    tiers:
      - {name: value, minimize: T + 40s * borrowed}
      - {name: churn, minimize: role_changes}
"""


def test_why_an_allowed_and_faster_configuration_was_not_taken(capsys, tmp_path):
    path = tmp_path / "by-value.yaml"
    path.write_text(BY_VALUE, encoding="utf-8")
    asked = ["qwen3-8b-swe", "--policy", str(path), "--why", "6P22D", "--alternatives", "1", "--time-limit", "60"]
    result = document(capsys, *asked)
    jsonschema.validate(result, json.loads(SCHEMA.read_text(encoding="utf-8")))
    (other,) = result["why"]
    assert (other["configuration"], other["blocks"]) == ("6P22D", [])
    assert other["delta_s"] < 0
    loss, first = other["loss"], other["tiers"][0]
    assert (loss["tier"], loss["number"], loss["unit"]) == ("value", 1, "s")
    assert loss["lost_to"] == result["decision"]["configuration"]
    assert loss["value"] > loss["against"] == result["tiers"][0]["value"]
    assert (first["value"], first["chosen"]) == (loss["value"], loss["against"])
    assert [tier["name"] for tier in other["tiers"]] == [tier["name"] for tier in result["tiers"]]
    _, text, _ = solve(capsys, *asked)
    assert f"  allowed, but {loss['text']}\n" in text
    assert "worse in tier 1 'value': " in loss["text"]


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_in_any_process():
    def once(seed: str) -> str:
        code = "from pearl.cli.main import main; main()"
        command = [sys.executable, "-c", code, "solve", "qwen3-8b-swe", "--format", "json", "--alternatives", "2"]
        env = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=True, timeout=60).stdout
        return re.sub(r'"(build|solve)_s": [0-9.e-]+', "", out)

    assert once("1") == once("2")
