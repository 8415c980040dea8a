"""What may import what: the contracts of pyproject.toml, and what they cannot express."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("numpy", "ortools", "pydantic", "yaml", "highspy", "pyomo", "pyscipopt", "matplotlib", "scipy", "torch", "ray")


def imports(file: Path) -> Iterator[str]:
    """Modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            yield node.module or ""


def inside(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_imports_point_downward() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_has_a_layer() -> None:
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    loaded_by_name = {"pearl.solvers", "pearl.policies", "pearl.scenarios"}
    entry = {"pearl.__main__"}  # of the layer pearl.cli, which is all that it may import
    found = {
        f"pearl.{path.stem}"
        for path in (ROOT / "pearl").iterdir()
        if path.name != "__init__.py" and (path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__"))
    }
    assert found - loaded_by_name - entry <= named
    assert set(imports(ROOT / "pearl" / "__main__.py")) <= {"pearl.cli.main", "__future__", "signal", "sys"}


@pytest.mark.parametrize("file", sorted((ROOT / "solvers").glob("*.py")), ids=lambda file: file.name)
def test_a_solver_knows_only_the_core_the_protocol_and_the_errors(file: Path) -> None:
    """Third-party libraries aside: each solver has its own."""
    own = [module for module in imports(file) if inside(module, "pearl", "solvers")]
    assert [module for module in own if not inside(module, "pearl.core", "pearl.solving", "pearl.errors")] == []


def test_nothing_imports_a_solver() -> None:
    for file in (ROOT / "pearl").rglob("*.py"):
        if "solvers" not in file.read_text(encoding="utf-8"):
            continue  # to parse them all takes seconds
        assert not [module for module in imports(file) if inside(module, "pearl.solvers", "solvers")], file


@pytest.mark.parametrize("file", sorted((ROOT / "pearl" / "core").glob("*.py")), ids=lambda file: file.name)
def test_the_core_needs_the_standard_library_alone(file: Path) -> None:
    strange = [
        module
        for module in imports(file)
        if module.split(".")[0] not in sys.stdlib_module_names and not inside(module, "pearl.core")
    ]
    assert strange == []


@pytest.mark.parametrize("module", ["pearl", "pearl.cli.main", "pearl.cli.options", "pearl.core.grouping"])
def test_what_everything_starts_with_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & set(HEAVY) == set()


def test_the_help_of_the_root_imports_no_command() -> None:
    program = (
        "import sys; from pearl.cli.main import run; run(['--help']);"
        "print(*sorted(name for name in sys.modules if name.startswith('pearl')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) == {
        "pearl",
        "pearl.cli",
        "pearl.cli.lazy",
        "pearl.cli.main",
        "pearl.core",
        "pearl.core.source",
        "pearl.errors",
    }
