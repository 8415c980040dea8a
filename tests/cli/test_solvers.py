"""`pearl solvers`: listing and checking."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pearl.cli.solvers import solvers
from pearl.errors import SolverContractError, SolverError, UnknownSolverError

TEMPLATE = Path(__file__).parents[2] / "solvers" / "template.py"

UNSOUND = """
from pearl.solving.protocol import Answer, Capabilities, SolveStatus

class Zeros:
    id = "zeros"
    capabilities = Capabilities()

    def library_version(self):
        return "0"

    def minimize(self, model, objective, *, limits, hint=None):
        return Answer(status=SolveStatus.OPTIMAL, point=(0,) * len(model.variables))
"""


def run(*arguments: str) -> str:
    result = CliRunner().invoke(solvers, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_table_lists_every_solver_with_its_version() -> None:
    header, *rows = run().splitlines()
    assert header.split() == ["SOLVER", "LIBRARY", "VERSION", "EXACT", "READS", "NOTE"]
    by_id = {row.split()[0]: row.split() for row in rows}
    assert by_id["cpsat"][1] == "ortools"
    assert by_id["cpsat"][3:5] == ["yes", "model"]
    assert by_id["enumerate"][3:5] == ["yes", "problem"]


def test_json_has_a_kind_and_the_same_solvers() -> None:
    document = json.loads(run("--format", "json"))
    assert (document["apiVersion"], document["kind"]) == ("pearl.dev/v1alpha1", "SolverList")
    ids = [line["id"] for line in document["solvers"]]
    assert ids == [row.split()[0] for row in run().splitlines()[1:]]
    cpsat = document["solvers"][ids.index("cpsat")]
    assert cpsat["capabilities"]["exact"] is True


def test_a_missing_library_is_listed_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    real = metadata.version

    def without_scip(name: str) -> str:
        if name == "pyscipopt":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", without_scip)
    row = next(row for row in run().splitlines() if row.startswith("scip"))
    assert "missing" in row
    assert 'pip install "pearl[research]"' in row


def test_check_passes_on_enumeration() -> None:
    first, *findings = run("--check", "enumerate").splitlines()
    assert first.startswith("enumerate ")
    assert len(findings) == 4
    assert all(line.startswith("  pass  ") for line in findings)


@pytest.mark.slow
def test_check_passes_on_the_template_as_a_file() -> None:
    document = json.loads(run("--check", f"{TEMPLATE}:BranchAndBound", "--format", "json"))
    assert document["passed"] is True
    assert len(document["findings"]) == 15


def test_check_names_what_fails(tmp_path: Path) -> None:
    path = tmp_path / "zeros.py"
    path.write_text(UNSOUND)
    result = CliRunner().invoke(solvers, ["--check", f"{path}:Zeros"])
    assert isinstance(result.exception, SolverContractError)
    assert result.exception.exit_code == 2
    assert "FAIL  agrees with enumeration, tier by tier" in result.stdout
    assert "does not hold" in result.stdout


@pytest.mark.parametrize(
    ("spec", "kind"),
    [("nothing", UnknownSolverError), (f"{TEMPLATE}:Nobody", UnknownSolverError), ("json:loads", SolverError)],
)
def test_check_of_what_is_no_solver(spec: str, kind: type[Exception]) -> None:
    result = CliRunner().invoke(solvers, ["--check", spec])
    assert isinstance(result.exception, kind)
