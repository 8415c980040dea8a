from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml

from pearl.cli.lazy import Entry
from pearl.cli.main import COMMANDS, EXIT_CODES, root, run
from pearl.cli.options import Format, dump, emit, format_option, output_option, seed_option, set_option
from pearl.errors import InputError

COMMAND_THAT_FAILS = """
import click
from pearl.core.source import Span
from pearl.errors import Fault, NoAnswerError, PolicyError, SolverError

def raised(how):
    span = Span(file="p.yaml", line=3, column=5)
    match how:
        case "input":
            raise PolicyError([Fault(message="unknown name 'x'", span=span, hint="did you mean 'y'?"),
                               Fault(message="duplicate key")])
        case "solver":
            raise SolverError("the solver is gone")
        case "limit":
            raise NoAnswerError("10 s passed")
        case "infeasible":
            click.get_current_context().exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "bug":
            raise RuntimeError("two\\nlines")
    click.echo("result")

@click.command()
@click.argument("how")
def fails(how):
    raised(how)
"""


@pytest.fixture
def fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "command_that_fails.py").write_text(COMMAND_THAT_FAILS)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = Entry(module="command_that_fails", attribute="fails", help="Fails.")
    monkeypatch.setitem(root.entries, "fails", entry)
    monkeypatch.delenv("PEARL_DEBUG", raising=False)


@pytest.mark.usefixtures("fails")
@pytest.mark.parametrize(
    ("how", "code", "lines"),
    [
        ("nothing", 0, []),
        (
            "input",
            2,
            ["error: p.yaml:3:5: unknown name 'x' (did you mean 'y'?)", "error: duplicate key"],
        ),
        ("solver", 2, ["error: the solver is gone"]),
        ("infeasible", 3, []),
        ("limit", 4, ["error: 10 s passed"]),
        ("interrupt", 130, ["error: interrupted"]),
        (
            "bug",
            70,
            ["error: a fault of PEARL's own, RuntimeError: two lines (set PEARL_DEBUG=1 to see the traceback)"],
        ),
    ],
)
def test_every_error_ends_as_lines_and_an_exit_code(
    how: str, code: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fails", how]) == code
    captured = capsys.readouterr()
    assert [line for line in captured.err.splitlines() if line] == lines
    assert captured.out == ("result\n" if code == 0 else "")


@pytest.mark.usefixtures("fails")
def test_the_traceback_is_there_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEARL_DEBUG", "1")
    assert run(["fails", "bug"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("fails")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fail", "x"], "error: no command 'fail'; did you mean 'fails'? (see `pearl --help`)"),
        (["fails"], "error: Missing argument 'HOW'. (see `pearl fails --help`)"),
        (["--nonsense"], "error: No such option '--nonsense'. (see `pearl --help`)"),
    ],
)
def test_usage_errors_exit_with_2(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_a_command_whose_module_is_missing_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(root.entries, "absent", Entry(module="pearl.cli.absent", attribute="absent", help="Absent."))
    assert run(["--help"]) == 0
    assert "Absent." not in capsys.readouterr().out
    assert run(["absent"]) == 2


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if find_spec(entry.module)])
def test_every_command_loads_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"Usage: pearl {name}" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pearl ")


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "from pearl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.stderr == ""


def test_a_closed_standard_output_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As behind `>&-` in a shell: Python then has no standard output at all."""
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["solve", "small-4gpu"]) == 0
    assert capsys.readouterr().err == ""


@click.command()
@format_option
@output_option
@set_option
@seed_option
def shared(*, format: Format, output: Path | None, sets: dict[str, str], seed: int | None) -> None:
    emit(dump({"sets": sets, "seed": seed}, format), output)


@pytest.fixture
def with_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(root.entries, "shared", Entry(module=__name__, attribute="shared", help="Shared."))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[shared.callback.__module__])


@pytest.mark.usefixtures("with_shared")
def test_shared_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.yaml"
    args = ["shared", "--format", "yaml", "--set", "a=1=2", "--set", "b = x", "--seed", "3", "--output", str(target)]
    assert run(args) == 0
    assert yaml.safe_load(target.read_text()) == {"sets": {"a": "1=2", "b": "x"}, "seed": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["out.yaml"]
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("with_shared")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "a"], "'a'; expected NAME=VALUE"),
        (["--set", "=1"], "'=1'; expected NAME=VALUE"),
        (["--set", "a=1", "--set", "a=2"], "'a' is set twice"),
        (["--format", "xml"], "'xml' is not one of 'table', 'json', 'yaml'"),
        (["--seed", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_shared_options_refuse(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shared", *args]) == 2
    assert message in capsys.readouterr().err


def test_a_result_that_cannot_be_written_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(InputError, match=r"cannot write .*plan.json: No space left on device"):
        emit("new", target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_result_goes_through_a_link_and_into_a_device(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(target)
    emit("text", link)
    assert link.is_symlink()
    assert target.read_text() == "text\n"
    emit("text", Path(os.devnull))
    assert not Path(os.devnull).is_file()


def test_help_and_readme_name_every_exit_code(capsys):
    assert run(["--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    for text in (told, readme):
        listed = text.split("Exit codes: ", 1)[1].split(". ", 1)[0].split("; ")
        found = dict(entry.rstrip(".").split(" ", 1) for entry in listed)
        assert list(found) == [str(code) for code in EXIT_CODES]
        assert all(found[str(code)].startswith(meaning) for code, meaning in EXIT_CODES.items())


def test_an_interrupt_while_the_command_line_is_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    done = subprocess.run(
        [sys.executable, "-m", "pearl", "--version"], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
