"""Types of options that several commands share."""

from __future__ import annotations

import click
import pytest

from pearl.cli.main import run
from pearl.cli.options import OutputFile, Seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("0.5", 0.5), ("2h", 7200.0), ("150ms", 0.15), ("1.5 min", 90.0)]
)
def test_a_time_is_in_seconds_or_has_a_unit(text, seconds):
    assert Seconds().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "not in the range"),
        ("-2h", "not in the range"),
        ("nan", "no number of seconds"),
        ("inf", "not in the range"),
        ("400d", "not in the range"),
        ("2 hours", "unknown unit 'hours'"),
        ("soon", "expected a time such as 2s, 150ms, 10min"),
    ],
)
def test_what_is_no_time_is_refused(text, said):
    with pytest.raises(click.BadParameter, match=said):
        Seconds().convert(text, None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "1e308", "0.5"])
def test_decisions_cannot_come_at_no_time_or_without_end(capsys, text):
    assert run(["simulate", "small-4gpu", "--tick", text]) == 2
    assert "Invalid value for '--tick'" in capsys.readouterr().err


def test_a_time_has_a_least_value_where_one_is_set():
    assert Seconds(least=1).convert("1s", None, None) == 1
    with pytest.raises(click.BadParameter):
        Seconds(least=1).convert("999ms", None, None)


def test_an_output_file_is_checked_when_it_is_named(tmp_path):
    assert OutputFile().convert(str(tmp_path / "new.json"), None, None) == tmp_path / "new.json"
    for path in (tmp_path, tmp_path / "no" / "file"):
        with pytest.raises(click.BadParameter):
            OutputFile().convert(str(path), None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["simulate", "small-4gpu", "--log"],
        ["simulate", "small-4gpu", "--csv"],
        ["simulate", "small-4gpu", "--timeline"],
        ["compare", "small-4gpu", "--csv"],
        ["compare", "small-4gpu", "--output"],
        ["reproduce", "--output"],
        ["reproduce", "--plot"],
        ["calibrate", "none.yaml", "--output"],
        ["replay", "none.jsonl", "--output"],
        ["trace", "generate", "--max-gpus", "4", "--out"],
    ],
)
def test_every_command_refuses_what_it_cannot_write_before_it_runs(capsys, tmp_path, args):
    assert run([*args, str(tmp_path / "no" / "file.html")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (said,) = captured.err.splitlines()
    assert f"Invalid value for '{args[-1]}': cannot write" in said
