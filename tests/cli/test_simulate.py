"""`pearl simulate` through its command line."""

from __future__ import annotations

import csv
import json

import pytest

from pearl.cli.main import run

SHORT = ["simulate", "small-4gpu", "--horizon", "240", "--jobs", "1"]


def test_policies_and_seeds_side_by_side(capsys, tmp_path):
    table = tmp_path / "study.csv"
    args = [*SHORT, "--policy", "pearl", "--policy", "rlboost-plus", "--seeds", "2", "--csv", str(table)]
    assert run([*args, "--format", "json"]) == 0
    captured = capsys.readouterr()
    study = json.loads(captured.out)
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
    with table.open(encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 5
    assert captured.err.count("simulating") == 4


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
    ],
)
def test_bad_input_is_one_clear_error(capsys, args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([*SHORT, *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
