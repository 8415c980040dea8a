from __future__ import annotations

import re
from pathlib import Path

import pytest

from pearl.cli.main import run
from pearl.live.control.metrics import HELP

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")


def test_every_series_of_the_control_plane_is_listed() -> None:
    listed = dict(re.findall(r"^\| `(pearl_\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert listed == dict(HELP)


@pytest.mark.parametrize("command", ["serve", "status", "events", "explain", "drain", "stop", "policy set", "replay"])
def test_every_option_that_the_page_names_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    named = {
        option
        for line in re.findall(rf"pearl {command}\b[^\n`]*", PAGE)
        for option in re.findall(r"--[a-z][a-z-]*", line.partition("#")[0])
    }
    assert named <= known
