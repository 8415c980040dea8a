"""Options that several commands share, and how a command hands over its result."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, assert_never

import click

LONGEST_S = 366 * 86_400.0
"""Longest time that an option takes: a year."""

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
Decorator = Callable[[CommandT], CommandT]


class Seconds(click.FloatRange):
    """A finite time of `least` or more, or more than 0: `90`, which is in seconds, or `2h`, `150ms`.

    `nan` passes every comparison of a plain range, and is refused here.
    """

    name = "time"

    def __init__(self, *, positive: bool = True, least: float = 0) -> None:
        super().__init__(min=least, min_open=positive and not least, max=LONGEST_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number of seconds; fails like any click type."""
        number = super().convert(self._seconds(value, param, ctx), param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return number

    def _seconds(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value)
        except ValueError:
            pass
        from pearl.scenario.units import Dimension, parse_quantity

        try:
            return parse_quantity(value, Dimension.TIME)
        except ValueError as e:
            self.fail(f"{value!r}: {e}", param, ctx)


class OutputFile(click.Path):
    """A file that a command writes; one that cannot be written is refused while nothing has run yet."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; fails like any click type."""
        from pearl.errors import InputError
        from pearl.files import check_writable

        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            check_writable(path)
        except InputError as e:
            self.fail(str(e), param, ctx)
        return path


class Format(StrEnum):
    """Form of a result."""

    TABLE = "table"
    """For people; not stable."""
    JSON = "json"
    YAML = "yaml"


def _read_sets(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> Mapping[str, str]:
    sets: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not name or not equals or not value.strip():
            raise click.BadParameter(f"{text!r}; expected NAME=VALUE", ctx=ctx, param=option)
        if name in sets:
            raise click.BadParameter(f"{name!r} is set twice", ctx=ctx, param=option)
        sets[name] = value.strip()
    return sets


def format_option(function: CommandT) -> CommandT:
    """`--format`, given as `format: Format`."""
    return click.option(
        "--format",
        type=click.Choice([item.value for item in Format]),
        callback=lambda _ctx, _option, value: Format(value),
        default=Format.TABLE.value,
        show_default=True,
        help="Form of the result.",
    )(function)


def output_option(function: CommandT) -> CommandT:
    """`--output`, given as `output: Path | None`, for `emit`."""
    return click.option(
        "--output",
        type=OutputFile(),
        help="Write the result to this file, whole or not at all; standard output else.",
    )(function)


def policy_option(function: CommandT) -> CommandT:
    """`--policy`, given as `policy: str | None`."""
    return click.option("--policy", metavar="FILE|NAME", help="Policy file, or a built-in one by name.")(function)


def set_option(function: CommandT) -> CommandT:
    """`--set`, repeatable, given as `sets: Mapping[str, str]`."""
    return _sets_option(function, "--set", "sets", "Override a parameter of the policy; repeatable.")


def cluster_set_option(function: CommandT) -> CommandT:
    """`--cluster-set`, repeatable, given as `cluster_sets: Mapping[str, str]`."""
    help = "Override a value of the cluster file by its path (limits.drain=10s); repeatable."
    return _sets_option(function, "--cluster-set", "cluster_sets", help)


def _sets_option(function: CommandT, flag: str, parameter: str, help: str) -> CommandT:
    return click.option(flag, parameter, multiple=True, metavar="NAME=VALUE", callback=_read_sets, help=help)(function)


def solver_option(function: CommandT) -> CommandT:
    """`--solver`, given as `solver: str | None`."""
    return click.option(
        "--solver", metavar="NAME|FILE.py:CLASS|MODULE:CLASS", help="Solver, instead of the policy's preference."
    )(function)


def predictor_option(function: CommandT) -> CommandT:
    """`--predictor`, given as `predictor: str | None`."""
    return click.option("--predictor", metavar="NAME", help="Makespan predictor, instead of the policy's.")(function)


def event_option(function: CommandT) -> CommandT:
    """`--event`, given as `event: str | None`."""
    return click.option("--event", metavar="EVENT", help="Why the decision is due, instead of the scenario's event.")(
        function
    )


def seed_option(function: CommandT) -> CommandT:
    """`--seed`, given as `seed: int | None`."""
    return click.option("--seed", type=click.IntRange(min=0), help="Seed, instead of the scenario's.")(function)


def dump(data: Mapping[str, Any], form: Format) -> str:
    """Plain data as JSON or YAML text, keys in their given order; a table is the command's own affair."""
    match form:
        case Format.JSON:
            import json

            return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        case Format.YAML:
            import yaml

            return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120))
        case Format.TABLE:
            raise ValueError("a table has no general form")
    assert_never(form)


def emit(text: str, output: Path | None) -> None:
    """Print the result, or write a file that is whole or not there at all; raises InputError where it cannot."""
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    from pearl.files import write_whole

    write_whole(output, text if text.endswith("\n") else f"{text}\n")


@contextmanager
def only_result_on_stdout() -> Iterator[None]:
    """While this is open, what solvers, predictors and their libraries print goes to standard error."""
    if sys.stdout is not None:
        sys.stdout.flush()
    with redirect_stdout(sys.stderr), _descriptor_aside():
        yield


@contextmanager
def _descriptor_aside() -> Iterator[None]:
    """File descriptor 1 as a second standard error, for libraries that do not print through Python."""
    try:
        kept = os.dup(1)
    except OSError:  # Standard output is closed: nothing can reach it.
        yield
        return
    try:
        with suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, plain lines elsewhere, on standard error; yields what to call when a part is done."""
    if sys.stderr.isatty():
        with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
            yield lambda _: bar.update(1)
        return
    done = 0

    def advance(what: str) -> None:
        nonlocal done
        done += 1
        click.echo(f"{label}, {done} of {length} done: {what}", err=True)

    yield advance
