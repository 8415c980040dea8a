"""Solvers by name: built-in, file, module, entry point; every misfit is one clear error."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pearl.errors import SolverError, SolverUnavailableError, UnknownSolverError
from pearl.solving import registry
from pearl.solving.protocol import ModelSolver
from pearl.solving.registry import BUILT_IN, catalogue, known_ids, resolve

GOOD = """
from pearl.solving.protocol import Answer, Capabilities, Limits, SolveStatus

class Mine:
    id = "mine"
    capabilities = Capabilities(note="test")

    def library_version(self):
        return "1.0"

    def minimize(self, model, objective, *, limits, hint=None):
        return Answer(status=SolveStatus.LIMIT)
"""


def write(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def refusal(spec: str, kind: type[SolverError] = SolverError) -> str:
    with pytest.raises(kind) as caught:
        resolve(spec)
    return str(caught.value)


class FakeDistribution(metadata.Distribution):
    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        return f"Name: {self._name}\nVersion: 3.1\n" if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


def offer(monkeypatch: pytest.MonkeyPatch, *named: tuple[str, str]) -> None:
    points = [
        metadata.EntryPoint(name=name, value=value, group="pearl.solvers")._for(FakeDistribution("plug"))  # type: ignore[attr-defined]
        for name, value in named
    ]
    monkeypatch.setattr(registry.metadata, "entry_points", lambda *, group: points if group == "pearl.solvers" else [])


def test_file_and_class(tmp_path: Path) -> None:
    solver = resolve(f"{write(tmp_path, GOOD)}:Mine")
    assert isinstance(solver, ModelSolver)
    assert (solver.id, solver.library_version()) == ("mine", "1.0")


def test_file_is_read_again_after_an_edit(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert resolve(f"{path}:Mine").id == "mine"
    path.write_text(GOOD.replace('id = "mine"', 'id = "mine-edited"'))
    assert resolve(f"{path}:Mine").id == "mine-edited"


def test_file_may_hold_dataclasses(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Note:\n    a: int\n"
    )
    assert resolve(f"{write(tmp_path, text + GOOD)}:Mine").id == "mine"


def test_module_and_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, GOOD, "pearl_test_plugin.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve("pearl_test_plugin:Mine").id == "mine"


def test_unknown_name_lists_the_known_and_the_nearest() -> None:
    message = refusal("cpsatt", UnknownSolverError)
    assert "Did you mean 'cpsat'?" in message
    assert "path/to/file.py:Class" in message
    assert all(built_in.id in message for built_in in BUILT_IN)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("mathopt:glop", "known: mathopt:highs, mathopt:gscip, mathopt:cpsat"),
        ("mathopt:", "unknown option ''"),
        ("highs:fast", "takes no option"),
        ("no/such/file.py:Mine", "does not exist"),
        ("some/file.py", "give some/file.py:Class"),
        ("no_such_package.solver:Mine", "no module 'no_such_package.solver'"),
        ("json:Mine", "json has no class 'Mine'"),
        ("json:not-a-name", "unknown solver"),
        ("", "unknown solver"),
        (":", "unknown solver"),
    ],
)
def test_specs_that_name_nothing(spec: str, said: str) -> None:
    assert said in refusal(spec, UnknownSolverError)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('id = "mine"', 'id = ""', "`id` must be a non-empty str"),
        ('capabilities = Capabilities(note="test")', "capabilities = None", "`capabilities` must be"),
        ('Capabilities(note="test")', 'Capabilities(reads="problem")', "`capabilities.reads` must be"),
        ("def library_version(self)", "def version(self)", "`library_version()` is missing"),
        ("def minimize(", "def minimise(", "`minimize(model, objective, *, limits, hint)`"),
        (", hint=None", "", "`minimize(model, objective, *, limits, hint)`"),
    ],
)
def test_a_class_that_does_not_fit_is_told_what_is_missing(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    message = refusal(f"{path}:Mine")
    assert said in message
    assert "docs/solvers.md" in message


def test_every_missing_thing_is_named_at_once(tmp_path: Path) -> None:
    message = refusal(f"{write(tmp_path, 'class Mine: pass')}:Mine")
    assert all(word in message for word in ("`id`", "`capabilities`", "library_version", "minimize"))


def test_constructor_that_needs_arguments(tmp_path: Path) -> None:
    text = GOOD.replace('id = "mine"', 'id = "mine"\n    def __init__(self, gap): pass')
    assert "must work without arguments" in refusal(f"{write(tmp_path, text)}:Mine")


@pytest.mark.parametrize(
    ("text", "line", "said"), [("x = 1\nx.y\n", 2, "AttributeError"), ("x = 1\n\ndef (:\n", 3, "SyntaxError")]
)
def test_a_file_that_fails_names_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path, text)
    message = refusal(f"{path}:Mine")
    assert message.startswith(f"{path}:{line}: ")
    assert said in message


def test_missing_library_while_loading(tmp_path: Path) -> None:
    path = write(tmp_path, "import no_such_library\n" + GOOD)
    assert "no_such_library" in refusal(f"{path}:Mine", SolverUnavailableError)


def test_missing_library_behind_a_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    message = refusal("highs", SolverUnavailableError)
    assert 'pip install "pearl[research]"' in message
    line = next(line for line in catalogue() if line.id == "highs")
    assert not line.available
    assert line.capabilities is not None


def test_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, GOOD, "pearl_test_entry.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    offer(monkeypatch, ("plugged", "pearl_test_entry:Mine"), ("broken", "pearl_test_entry:Nothing"))
    assert resolve("plugged").id == "mine"
    assert "plugged" in known_ids()
    lines = {line.id: line for line in catalogue()}
    assert (lines["plugged"].available, lines["plugged"].library) == (True, "plug")
    assert "has no class 'Nothing'; solver classes there: Mine" in lines["broken"].problem


def test_entry_points_of_one_name_are_not_chosen_between(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("twin", "a:A"), ("twin", "b:B"))
    message = refusal("twin", UnknownSolverError)
    assert "a:A, b:B" in message


def test_entry_point_cannot_shadow_a_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("highs", "elsewhere:Highs"))
    assert type(resolve("highs")).__module__ == "pearl.solvers.highs"
    line = next(line for line in catalogue() if line.id == "elsewhere:Highs")
    assert "taken by a built-in" in line.problem


def test_catalogue_holds_every_built_in_and_its_variants() -> None:
    lines = {line.id: line for line in catalogue()}
    assert {"cpsat", "enumerate", "mathopt", "mathopt:gscip", "mathopt:cpsat", "highs", "scip", "pyomo"} <= set(lines)
    for line in lines.values():
        assert line.available == (line.version is not None)
        assert line.available or line.problem


def test_the_catalogue_imports_no_solver_library() -> None:
    code = (
        "import sys; from pearl.solving.registry import catalogue; catalogue(); "
        "print([m for m in ('ortools', 'highspy', 'pyscipopt', 'pyomo') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
