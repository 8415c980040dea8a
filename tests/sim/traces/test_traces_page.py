"""The figures in docs/traces.md are what the commands beside them print."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pearl.cli.trace import trace
from tests.sim.traces.trace_samples import SHARED

PAGE = Path(__file__).resolve().parents[3] / "docs" / "traces.md"
RECORDED = re.findall(r"```console\n\$ pearl trace ([^\n#…]+)\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
QUOTED = [(command, output) for command, output in RECORDED if not output.startswith("$")]


def test_the_page_quotes_output():
    assert len(QUOTED) == 4


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not here")
@pytest.mark.parametrize(("command", "output"), QUOTED)
def test_recorded_output_is_current(monkeypatch, command, output):
    folder = "availability" if "parcae" in command or "bamboo" in command else "agent-turns"
    monkeypatch.chdir(SHARED / folder)
    assert CliRunner().invoke(trace, command.split()).output == output
