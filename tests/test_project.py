"""The README's commands are the Makefile's, and CI runs them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def sections(heading: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def targets() -> dict[str, list[str]]:
    """Commands of every Makefile target, as written."""
    found: dict[str, list[str]] = {}
    name = None
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if line.startswith("\t") and name:
            found[name].append(line.strip())
        elif rule := re.match(r"([a-z]+):(?!=)", line):
            name = rule[1]
            found[name] = []
        else:
            name = None
    return found


def test_the_readme_gives_two_commands_and_make_knows_them() -> None:
    commands = re.findall(r"```sh\n(.*?)\n```", sections("Two commands"), flags=re.DOTALL)
    assert commands == ["make demo", "make test"]
    assert {command.removeprefix("make ") for command in commands} <= targets().keys()


def test_the_demo_plans_the_scenario_that_the_readme_names() -> None:
    (scenario,) = set(re.findall(r"scenarios/[\w.-]+", "\n".join(targets()["demo"])))
    assert scenario in sections("Two commands")
    assert (ROOT / scenario).is_file()


def test_ci_runs_the_readme_test_command_and_stops_at_the_first_failure() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    made = [line.removeprefix("make ") for line in lines if line.startswith("make ")]
    assert made[0] == "test"
    assert {target.split()[0] for target in made} <= targets().keys()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_no_code_is_left_out_of_a_check() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert tools["mypy"]["strict"] is True
    assert "exclude" not in tools["mypy"]
    assert not {"exclude", "extend-exclude"} & tools["ruff"].keys()
    assert not [o for o in tools["mypy"].get("overrides", []) if o.get("ignore_errors")]
    assert not [c for c in tools["importlinter"]["contracts"] if c.get("ignore_imports")]


@pytest.mark.parametrize("folder", ["solvers", "policies", "scenarios"])
def test_the_top_level_folders_are_reached_through_the_package(folder: str) -> None:
    link = ROOT / "pearl" / folder
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / folder
    mode = subprocess.run(
        ["git", "ls-files", "--stage", f"pearl/{folder}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if mode.returncode == 0 and mode.stdout:
        assert mode.stdout.startswith("120000 "), "git must store a link, not a copy"


def test_every_command_in_the_readme_exists() -> None:
    from pearl.cli.main import COMMANDS

    used = set(re.findall(r"^pearl (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert used
    assert used <= COMMANDS.keys()


def test_every_page_is_in_the_index_and_every_link_leads_somewhere() -> None:
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([^)#]+)\)", (docs / "index.md").read_text(encoding="utf-8")))
    assert {path.name for path in docs.glob("*.md")} - {"index.md"} <= linked
    assert [link for link in linked if not (docs / link).exists()] == []
