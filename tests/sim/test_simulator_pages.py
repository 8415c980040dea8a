"""The Python of the pages on simulation runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pearl.cli.main import run

DOCS = Path(__file__).parents[2] / "docs"


def code(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_simulator_page_simulates_a_batch() -> None:
    names: dict = {}
    (block,) = code("simulator.md")
    exec(block, names)
    assert names["result"].makespan_s > 0


def test_the_page_on_simulating_draws_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", "small-4gpu", "--horizon", "1min", "--jobs", "1", "--log", "run.jsonl"]) == 0
    names: dict = {}
    (block,) = code("simulate.md")
    exec(block, names)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert "simulated" in names["page"]
