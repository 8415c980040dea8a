"""What README and docs show is run here as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pearl.cli.main import run

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXPECTED_CODES = {"pearl solve infeasible-kv": 3}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = (line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines())
    return [line for line in lines if line.startswith("pearl ")]


def slow(command: str) -> bool:
    return "simulate" in command or "--sensitivity" in command


@pytest.mark.parametrize("command", [pytest.param(c, marks=[pytest.mark.slow] if slow(c) else []) for c in commands()])
def test_a_command_of_the_readme_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = run(shlex.split(command)[1:])
    captured = capsys.readouterr()
    assert code == EXPECTED_CODES.get(command, 0), captured.err
    assert captured.out


def test_the_readme_shows_enough_commands():
    assert len(commands()) >= 6


def test_the_policy_of_the_readme_holds_and_decides(tmp_path, capsys):
    (policy,) = blocks("yaml")
    path = tmp_path / "mine.yaml"
    path.write_text(policy, encoding="utf-8")
    assert run(["policy", "check", str(path)]) == 0
    assert run(["policy", "math", str(path)]) == 0
    assert "batch_budget" in capsys.readouterr().out
    assert run(["solve", "qwen3-8b-swe", "--policy", str(path)]) == 0
    assert "batch_budget" in capsys.readouterr().out


def test_the_script_of_the_readme_runs(capsys):
    (script,) = blocks("python")
    exec(compile(script, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("switch ")


def test_the_output_that_the_readme_shows_is_what_the_demo_prints(capsys):
    (shown,) = re.findall(r"```\n(switch to.*?)```", README, flags=re.DOTALL)
    assert run(["solve", "scenarios/qwen3-8b-swe.yaml"]) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in shown.splitlines() if line.strip() not in ("", "…")]
    missing = [line for line in lines if line not in printed]
    assert not missing
