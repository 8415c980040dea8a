"""Lessons on solvers: what their users met, and solvers of unknown making (the list: docs/lessons.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pearl.cli.main import run

ROOT = Path(__file__).parents[2]
HEAD = """
from pearl.solving.protocol import *
class X:
    id = "x"
    capabilities = Capabilities(reads="problem")
    def library_version(self): return "1"
    def solve(self, problem, *, limits):
"""


def solve_with(tmp_path: Path, body: str, *args: str) -> int:
    path = tmp_path / "own.py"
    path.write_text(body, encoding="utf-8")
    return run(["solve", "small-4gpu", "--solver", f"{path}:X", *args])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class X:\n    def __init__(self): raise SystemExit(0)", "SystemExit: 0"),
        ("def (", "SyntaxError"),
        (f"{HEAD}        raise KeyError('k')", "solver 'x' failed: KeyError: 'k'"),
        (f"{HEAD}        raise SystemExit(0)", "solver 'x' failed: SystemExit: 0"),
        (f"{HEAD}        return None", "solver 'x' returned NoneType; expected Solution"),
        (
            f"{HEAD}        return Solution(status=SolveStatus.INFEASIBLE, detail='no way')",
            "'no way', and today's assignment is feasible",
        ),
    ],
)
def test_a_solver_that_fails_is_one_error_with_its_own_words(tmp_path, capsys, body, says):
    """or-tools#4606: errors of a library surfaced as AttributeError. An exit of the solver is no exit code of PEARL."""
    assert solve_with(tmp_path, body) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert says in err


@pytest.mark.parametrize("printing", ["print('talk')", "import os; os.write(1, b'talk')"])
def test_what_a_solver_prints_is_not_the_result(tmp_path, capfd, printing):
    body = f"{HEAD}        {printing}\n        return Solution(status=SolveStatus.LIMIT, detail='time')"
    assert solve_with(tmp_path, body, "--format", "json") == 4
    out, err = capfd.readouterr()
    assert json.loads(out)["decision"]["outcome"] == "limit"
    assert "talk" in err


@pytest.mark.parametrize("solver", ["cpsat", "highs", "scip", "mathopt", "pyomo"])
def test_a_limit_without_incumbent_is_its_own_status_and_never_zeros(capsys, solver):
    """cvxpy#3534, python-mip#17: a limit was read as zeros, or as infeasible."""
    assert run(["solve", "small-4gpu", "--solver", solver, "--time-limit", "1e-9", "--format", "json"]) == 4
    data = json.loads(capsys.readouterr().out)
    assert data["decision"]["outcome"] == "limit"
    assert data["decision"]["configuration"] == "1P3D"
    assert data["plan"]["steps"] == []


@pytest.mark.parametrize("limit", ["nan", "inf", "1e300", "0", "-1"])
def test_a_time_limit_that_is_none_is_refused(capsys, limit):
    assert run(["solve", "small-4gpu", "--time-limit", limit]) == 2
    assert "--time-limit" in capsys.readouterr().err


def bytes_of(solver: str, seed: str) -> bytes:
    """The result in a process of its own, its timings left out."""
    code = "import sys; from pearl.cli.main import run; sys.exit(run(sys.argv[1:]))"
    args = ["solve", "reclaim", "--solver", solver, "--format", "json", "--alternatives", "2", "--why", "2P6D"]
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
    )
    return b"\n".join(
        line for line in done.stdout.splitlines() if b'"build_s"' not in line and b'"solve_s"' not in line
    )


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["cpsat", "enumerate", "highs", "scip", "mathopt", "pyomo"])
def test_the_same_input_is_the_same_bytes_in_any_process(solver):
    """or-tools#4195: nondeterminism."""
    assert bytes_of(solver, "1") == bytes_of(solver, "2")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["solve", "small-4gpu", "--policy", ""], "no policy ''"),
        (["solve", "small-4gpu", "--predictor", ""], "unknown predictor ''"),
        (["solve", "small-4gpu", "--set", "mode_floor="], "expected NAME=VALUE"),
        (["policy", "check", "pearl", "--set", "mode_floor=1s", "--set", "mode_floor=2s"], "set twice"),
        (["solve", "small-4gpu", "--why", "9" * 5000 + "C"], "names no configuration"),
        (["solve", "small-4gpu", "--why", "٥P٣D"], "names no configuration"),
        (["simulate", "small-4gpu", "--horizon", "nan"], "no number of seconds"),
        (["simulate", "small-4gpu", "--trace-from", "nan"], "no number of seconds"),
        (["simulate", "small-4gpu", "--seeds", "99999999999"], "not in the range"),
        (["simulate", "small-4gpu", "--timeline", "x.svg"], "no picture format '.svg'"),
    ],
)
def test_nothing_given_is_silently_replaced_or_tried_for_ever(capsys, args, says):
    """PyYAML#165, kyverno#2106: what was given was silently ignored."""
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


@pytest.mark.parametrize(
    "body", ["raise SystemExit(3)", "1/0", "class X:\n    id=tables=paths=1\n    def __init__(self): 1/0"]
)
def test_a_predictor_that_fails_is_one_error(tmp_path, capsys, body):
    path = tmp_path / "own.py"
    path.write_text(body, encoding="utf-8")
    assert run(["solve", "small-4gpu", "--predictor", f"{path}:X"]) == 2
    assert capsys.readouterr().err.startswith("error: predictor ")
