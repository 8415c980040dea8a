"""`pearl simulate` through its command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import jsonschema
import pytest

from pearl.cli.main import run
from pearl.policy.load import builtin_folder
from pearl.report.simulation_schema import study_schema

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "schemas" / "simulation.schema.json").read_text(encoding="utf-8")
)

SHORT = ["simulate", "small-4gpu", "--horizon", "240", "--jobs", "1"]


def test_policies_and_seeds_side_by_side(capsys, tmp_path):
    table = tmp_path / "study.csv"
    args = [*SHORT, "--policy", "pearl", "--policy", "rlboost-plus", "--seeds", "2", "--csv", str(table)]
    assert run([*args, "--format", "json"]) == 0
    captured = capsys.readouterr()
    study = json.loads(captured.out)
    jsonschema.validate(study, SCHEMA)
    assert (study["kind"], study["simulated"], study["horizon_s"]) == ("SimulationReport", True, 240.0)
    assert [(r["policy"], r["seed"]) for r in study["results"]] == [
        ("pearl", 0),
        ("pearl", 1),
        ("rlboost-plus", 0),
        ("rlboost-plus", 1),
    ]
    for row in study["results"]:
        assert row["lost"] == 0
        assert row["throughput_traj_per_h"] > 0
        assert row["makespan_s"].keys() == {"mean", "p50", "p95", "max"}
        assert row["switches"].keys() == {"mode", "ratio", "resize"}
        assert {"gpu_s", "borrowed_s", "interrupted", "cost"} <= row.keys()
        assert row["horizon_s"] == 240.0
        assert row["outcomes"].keys() == {"keep", "switch", "infeasible", "limit"}
        assert sum(row["outcomes"].values()) == row["decisions"]
        assert row["energy_kwh"]["reserved"].keys() <= {"prefill", "decode", "colocated", "inactive"}
    first, second = study["summary"]
    assert (first["policy"], first["difference"]) == ("pearl", None)
    assert first["throughput_traj_per_h"]["seeds"] == 2
    assert (second["difference"]["to"], second["difference"]["makespan_s"]["seeds"]) == ("pearl", 2)
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert {"traj/h", "keep", "switch", "infeasible", "limit", "kWh", "horizon s"} <= rows[0].keys()
    assert captured.err.count("simulating") == 4


def test_the_published_schema_is_the_one_of_the_code():
    assert study_schema() == SCHEMA


@pytest.mark.slow
def test_two_processes_give_what_one_gives(capsys):
    def results(*args: str) -> object:
        assert run([*SHORT[:-2], *args, "--policy", "pearl", "--seeds", "2", "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert results("--jobs", "1") == results("--jobs", "2")


def test_the_log_is_json_lines_in_order(capsys, tmp_path):
    log = tmp_path / "run.jsonl"
    assert run([*SHORT, "--log", str(log)]) == 0
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert {"event", "decision", "batch_began", "worker"} <= {record["what"] for record in records}
    assert [r["at_s"] for r in records] == sorted(r["at_s"] for r in records)


@pytest.mark.slow
def test_pictures(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    png, html = tmp_path / "run.png", tmp_path / "run.html"
    assert run([*SHORT, "--timeline", str(png), "--timeline", str(html)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "simulated" in html.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--forecaster", "oracle"], "unknown forecaster 'oracle'"),
        (["--timeline", "run.gif"], ".png or .html"),
        (["--horizon", "0"], "--horizon"),
        (["--policy", "nope"], "nope"),
        (["--policy", "pearl", "--policy", "pearl"], "given twice"),
        (["--trace-from", "3"], "there is none"),
        (["--csv", "one", "--output", "one"], "would hold two results"),
    ],
)
def test_bad_input_is_one_clear_error(capsys, args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([*SHORT, *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_nothing_runs_where_a_result_could_not_be_written(capsys, tmp_path):
    """The name of one run's log is a folder's, which shows only once policy and seed are in it."""
    (tmp_path / "run.pearl.1.jsonl").mkdir()
    assert run([*SHORT, "--policy", "pearl", "--seeds", "2", "--log", str(tmp_path / "run.jsonl")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (said,) = captured.err.splitlines()
    assert "run.pearl.1.jsonl: Is a directory" in said


def test_copies_of_a_policy_have_rows_and_logs_of_their_own(capsys, tmp_path):
    text = (builtin_folder() / "roll-fixed.yaml").read_text(encoding="utf-8")
    names = ("mild", "strict")
    files = [tmp_path / f"{name}.yaml" for name in names]
    for file in files:
        file.write_text(text, encoding="utf-8")
    args = [part for file in files for part in ("--policy", str(file))]
    log = tmp_path / "run.jsonl"
    assert run([*SHORT, "--horizon", "1min", *args, "--log", str(log), "--format", "json"]) == 0
    study = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in study["results"]] == list(names)
    assert [(p["label"], p["policy"]) for p in study["inputs"]["policies"]] == [(n, "roll-fixed") for n in names]
    assert all((tmp_path / f"run.{name}.0.jsonl").is_file() for name in names)


def test_a_run_without_a_feasible_decision_says_so(capsys):
    args = ["simulate", "infeasible-kv", "--horizon", "200", "--jobs", "1"]
    assert run(args) == 0
    captured = capsys.readouterr()
    assert "infeasible" in captured.out.splitlines()[1].split()
    assert captured.err.splitlines()[-1].startswith("warning: pearl, seed 0: all ")


def test_the_report_says_what_the_runs_were_made_from(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spot.csv").write_text(
        "at_s,event,node,gpus,grace_s\n0.0,add,spot-0,1,\n400.0,end,,,\n", encoding="utf-8"
    )
    args = ["--policy", "prorsa", "--trace", "spot.csv", "--trace-from", "1min", "--set", "kv_safety=0.9"]
    assert run([*SHORT, "--horizon", "30s", *args, "--forecaster", "last_value", "--format", "json"]) == 0
    study = json.loads(capsys.readouterr().out)
    jsonschema.validate(study, SCHEMA)
    assert study["trace"] == "spot.csv"
    inputs = study["inputs"]
    assert (inputs["scenario"], inputs["trace_from_s"], inputs["horizon_s"]) == ("small-4gpu", 60.0, 30.0)
    assert (inputs["sets"], inputs["forecaster"]) == ({"kv_safety": "0.9"}, "last_value")
    (policy,) = inputs["policies"]
    assert (policy["policy"], policy["tick_s"]) == ("prorsa", 15.0)
    assert len(policy["policy_sha256"]) == len(inputs["scenario_sha256"]) == 64


def test_several_seeds_are_summed_up_below_the_table(capsys):
    assert run([*SHORT, "--horizon", "60s", "--policy", "roll-fixed", "--policy", "rlboost-plus", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    title = lines.index("means over the seeds (sd: standard deviation; Δ: less roll-fixed on the same seed)")
    assert [line.split()[:2] for line in lines[title + 2 :]] == [["roll-fixed", "2"], ["rlboost-plus", "2"]]
