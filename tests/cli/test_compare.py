"""`pearl compare`: solvers side by side."""

from __future__ import annotations

import csv
import json

import pytest

from pearl.cli.main import run
from pearl.policy.load import builtin_folder


def test_solvers_agree_and_are_exported(capsys, tmp_path):
    table = tmp_path / "compare.csv"
    args = [
        "compare",
        "small-4gpu",
        "--solver",
        "cpsat",
        "--solver",
        "highs",
        "--solver",
        "enumerate",
        "--repeats",
        "2",
    ]
    code = run([*args, "--predictor", "bubble", "--predictor", "network", "--csv", str(table), "--format", "json"])
    captured = capsys.readouterr()
    results = json.loads(captured.out)["results"]
    assert code == 0
    assert [(r["predictor"], r["solver"]) for r in results] == [
        (predictor, solver) for predictor in ("bubble", "network") for solver in ("cpsat", "highs", "enumerate")
    ]
    assert all(r["status"] == "optimal" and r["agrees_with_enumeration"] for r in results)
    assert results[0]["tiers"] == results[1]["tiers"] == results[2]["tiers"]
    assert all(r["bound"] == pytest.approx(r["tiers"][0]["value"]) for r in results), "in the unit of the first tier"
    assert all(r["build_s"] >= 0 and r["solve_s"] > 0 for r in results)
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["solver"] for row in rows] == [r["solver"] for r in results]
    assert "small-4gpu / pearl / bubble" in captured.err


def test_a_solver_that_cannot_is_a_row_that_says_so(capsys):
    args = ["compare", "scale-4096", "--solver", "enumerate", "--solver", "cpsat", "--repeats", "1"]
    code = run([*args, "--predictor", "bubble", "--format", "json"])
    enumerated, exact = json.loads(capsys.readouterr().out)["results"]
    assert code == 0
    assert enumerated["status"] == "error"
    assert "assignments" in enumerated["detail"]
    assert (exact["status"], exact["agrees_with_enumeration"]) == ("optimal", None)


def test_a_solver_of_ones_own_by_its_file(capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from pearl.solvers.cpsat import CpSat\n\n\nclass Mine(CpSat):\n    id = 'mine'\n", encoding="utf-8"
    )
    code = run(["compare", "small-4gpu", "--solver", f"{path}:Mine", "--repeats", "1", "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert code == 0
    assert (row["solver"], row["agrees_with_enumeration"]) == ("mine", True)


def test_every_input_is_read_before_the_first_solve(capsys):
    code = run(["compare", "small-4gpu", "nowhere", "--policy", "pearl", "--policy", "perl", "--repeats", "1"])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    first, second = captured.err.splitlines()
    assert first.startswith("error: no policy 'perl'")
    assert second.startswith("error: no scenario 'nowhere'")


def test_copies_of_a_policy_have_rows_of_their_own(capsys, tmp_path):
    text = (builtin_folder() / "roll-fixed.yaml").read_text(encoding="utf-8")
    files = [tmp_path / "mild.yaml", tmp_path / "strict.yaml"]
    for file in files:
        file.write_text(text, encoding="utf-8")
    given = [part for file in files for part in ("--policy", str(file))]
    assert run(["compare", "small-4gpu", "--solver", "cpsat", "--repeats", "1", *given, "--format", "json"]) == 0
    assert [row["policy"] for row in json.loads(capsys.readouterr().out)["results"]] == ["mild", "strict"]
