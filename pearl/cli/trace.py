"""`pearl trace`: what a trace holds, in one format or another, generated, or as the workload of a scenario."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pearl.cli.options import OutputFile, emit

if TYPE_CHECKING:
    from pearl.sim.traces.availability import AvailabilityTrace
    from pearl.sim.traces.recording import ReadOptions

_FILE = click.Path(path_type=Path)
_GPUS = click.IntRange(1, 65_536 * 64)
"""GPUs of a trace: as many as its most nodes can have."""
_RANDOM = {"seed": "--seed", "changes_per_hour": "--changes-per-hour", "burst": "--burst"}
"""Options of `generate` that a square wave has no use for."""


def duration(text: str) -> float:
    """Seconds of `2h` or `150ms`, up to the longest that a trace may hold; a number without a unit is refused."""
    from pearl.scenario.units import Dimension, parse_quantity
    from pearl.sim.traces.reading import MAX_SECONDS

    try:
        seconds = parse_quantity(text, Dimension.TIME)
    except ValueError as e:
        raise click.BadParameter(f"{text!r}: {e}") from None
    if seconds < 0:
        raise click.BadParameter(f"{text!r}: a time must not be negative")
    if seconds > MAX_SECONDS:
        raise click.BadParameter(f"{text!r}: a time of more than ten years")
    return seconds


def _reading(command: Callable[..., None]) -> Callable[..., None]:
    """Options of every command that reads a recorded trace of availability."""
    for option in (
        click.option(
            "--gpus-per-node",
            type=click.IntRange(1, 64),
            default=1,
            help="For formats that do not say, and when scaling.",
        ),
        click.option("--grace", type=duration, default="30s", help="Reclaim notice, for formats that do not say."),
        click.option("--format", "format_name", metavar="NAME", help="Read as this format; told from the text else."),
    ):
        command = option(command)
    return command


@click.group()
def trace() -> None:
    """Traces of GPU availability and of agents' turns."""


@trace.command()
@click.argument("files", nargs=-1, required=True, type=_FILE)
@_reading
@click.option("--window", type=duration, help="Also show windows of this length, such as 2h (availability only).")
@click.option("--json", "as_json", is_flag=True, help="JSON: a list, one object for each file.")
def info(
    *,
    files: tuple[Path, ...],
    format_name: str | None,
    grace: float,
    gpus_per_node: int,
    window: float | None,
    as_json: bool,
) -> None:
    """Show what FILES hold: statistics of availability, or of agents' turns with log-normal fits."""
    from pearl.sim.traces.availability import AvailabilityTrace
    from pearl.sim.traces.formats import read_trace
    from pearl.sim.traces.summary import summarise_agents, summarise_availability

    summaries = []
    for file in files:
        read = read_trace(file, format_name=format_name, options=_options(grace, gpus_per_node))
        if isinstance(read, AvailabilityTrace):
            summaries.append(summarise_availability(read, window_s=window))
        else:
            summaries.append(summarise_agents(read))
    if as_json:
        click.echo(json.dumps(summaries, indent=2))
        return
    for summary in summaries:
        lines = _availability_lines(summary) if summary["kind"] == "availability" else _agent_lines(summary)
        click.echo("\n".join(lines))


@trace.command()
@click.argument("file", type=_FILE)
@_reading
@click.option("--to", type=click.Choice(["csv"]), default="csv", show_default=True, help="Format to write.")
@click.option("--start", type=duration, default="0s", help="Begin here.")
@click.option("--length", type=duration, help="Take this much; all the rest else.")
@click.option("--max-gpus", type=_GPUS, help="Scale the curve so that its maximum is this.")
@click.option("--out", type=OutputFile(), help="File to write; standard output else.")
def convert(
    *,
    file: Path,
    format_name: str | None,
    grace: float,
    gpus_per_node: int,
    to: str,
    start: float,
    length: float | None,
    max_gpus: int | None,
    out: Path | None,
) -> None:
    """Write the availability trace FILE, or a segment of it, scaled or not, in PEARL's own format."""
    from pearl.sim.traces.formats import read_availability

    read = read_availability(file, format_name=format_name, options=_options(grace, gpus_per_node))
    if start or length is not None:
        read = read.segment(start, read.horizon_s - start if length is None else length)
    if max_gpus is not None:
        read = read.rescaled(max_gpus, gpus_per_node=gpus_per_node)
    _write_table(read, to, out)


@trace.command()
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--max-gpus", type=_GPUS, required=True, help="GPUs when all are available.")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--abundance", type=float, default=0.7, show_default=True, help="Mean share of the maximum, 0 to 1.")
@click.option("--changes-per-hour", type=float, default=10.0, show_default=True, help="Mean rate of changes.")
@click.option("--burst", type=float, default=0.15, show_default=True, help="Share of the nodes drawn anew at a change.")
@click.option("--horizon", type=duration, default="2h", show_default=True)
@click.option("--grace", type=duration, default="30s", show_default=True, help="Notice before a reclaim.")
@click.option("--oscillate", type=duration, help="A square wave of this period instead; abundance is its low share.")
@click.option("--out", type=OutputFile(), help="File to write; standard output else.")
@click.pass_context
def generate(
    ctx: click.Context,
    *,
    seed: int,
    max_gpus: int,
    gpus_per_node: int,
    abundance: float,
    changes_per_hour: float,
    burst: float,
    horizon: float,
    grace: float,
    oscillate: float | None,
    out: Path | None,
) -> None:
    """Generate an availability trace; the same options give the same trace."""
    from pearl.errors import UsageError
    from pearl.sim.traces import generator

    if max_gpus % gpus_per_node:
        raise UsageError(f"--max-gpus {max_gpus} is not a multiple of --gpus-per-node {gpus_per_node}")
    max_nodes = max_gpus // gpus_per_node
    if oscillate is not None:
        if ignored := [flag for name, flag in _RANDOM.items() if _is_given(ctx, name)]:
            raise UsageError(f"{', '.join(ignored)}: a wave of --oscillate is not random; expected one or the other")
        if not 0 <= abundance <= 1:
            raise UsageError(f"--abundance {abundance:g}; expected 0 to 1")
        made = generator.oscillate(
            low_nodes=round(abundance * max_nodes),
            high_nodes=max_nodes,
            period_s=oscillate,
            horizon_s=horizon,
            gpus_per_node=gpus_per_node,
            grace_s=grace,
        )
    else:
        market = generator.SpotMarket(
            max_nodes=max_nodes,
            abundance=abundance,
            changes_per_h=changes_per_hour,
            horizon_s=horizon,
            gpus_per_node=gpus_per_node,
            grace_s=grace,
            burst=burst,
        )
        made = generator.generate(market, seed=seed)
    _write_table(made, "csv", out)


@trace.command()
@click.argument("file", type=_FILE)
@click.option("--format", "format_name", metavar="NAME", help="Read as this format; told from the text else.")
@click.option("--shape", type=click.Choice(["empirical", "lognormal"]), default="lognormal", show_default=True)
@click.option("--trajectories", type=click.IntRange(1, 1_000_000), default=64, show_default=True, help="Batch size.")
@click.option(
    "--max-context", type=click.IntRange(2, 10_000_000), help="Token limit; the trace's longest context else."
)
@click.option("--out", type=OutputFile(), help="File to write; standard output else.")
def profile(
    *,
    file: Path,
    format_name: str | None,
    shape: str,
    trajectories: int,
    max_context: int | None,
    out: Path | None,
) -> None:
    """Print the agent trace FILE as the `workload:` section of a scenario."""
    from pearl.sim.traces.agents import workload
    from pearl.sim.traces.fits import Shape
    from pearl.sim.traces.formats import read_agents
    from pearl.sim.traces.workload_text import workload_text

    read = read_agents(file, format_name=format_name)
    fitted = workload(read, trajectories=trajectories, shape=Shape(shape), max_context_tokens=max_context)
    notes = "".join(f"# {' '.join(note.split())}\n" for note in (f"fitted to {file.name}", *read.notes))
    emit(notes + workload_text(fitted), out)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _options(grace_s: float, gpus_per_node: int) -> ReadOptions:
    from pearl.sim.traces.recording import ReadOptions

    return ReadOptions(grace_s=grace_s, gpus_per_node=gpus_per_node)


def _write_table(made: AvailabilityTrace, to: str, out: Path | None) -> None:
    from pearl.sim.traces.table import table_text

    writers = {"csv": table_text}
    emit(writers[to](made), out)


def _availability_lines(summary: dict[str, Any]) -> Iterator[str]:
    yield f"{summary['source']}: availability over {summary['horizon_s'] / 3600:.2f} h, {summary['events']} events"
    yield f"  {'start':>8} {_AVAILABILITY_HEADER}"
    yield f"  {'all':>8} {_availability_row(summary)}"
    for window in summary["windows"]:
        yield f"  {window['start_s'] / 3600:7.2f}h {_availability_row(window)}"
    yield from (f"  note: {note}" for note in summary["notes"])


_AVAILABILITY_HEADER = (
    f"{'GPUs mean':>9} {'min':>5} {'max':>5} {'abundance':>9} {'changes/h':>9} {'reclaims/h':>10} {'GPUs moved/h':>12}"
)


def _availability_row(row: dict[str, Any]) -> str:
    return (
        f"{row['mean_gpus']:9.2f} {row['min_gpus']:5} {row['max_gpus']:5} {row['abundance']:9.3f} "
        f"{row['changes_per_h']:9.2f} {row['reclaims_per_h']:10.2f} {row['gpus_moved_per_h']:12.2f}"
    )


def _agent_lines(summary: dict[str, Any]) -> Iterator[str]:
    longest = summary["longest_context_tokens"]
    yield f"{summary['source']}: {summary['trajectories']} trajectories, longest context {longest} tokens"
    columns = ("count", "mean", "p50", "p90", "p99", "max")
    heads = " ".join(f"{name:>9}" for name in columns)
    yield f"  {'':20} {heads} | log-normal {'mean':>9} {'cv':>5} {'KS':>5}"
    for name, figures in summary["quantities"].items():
        if figures is None:
            yield f"  {name:20} {'not in this trace':>17}"
            continue
        cells = " ".join(_cell(figures[column]) for column in columns)
        fitted = f"{_cell(figures['lognormal_mean'])} {figures['lognormal_cv']:5.2f} {figures['ks_distance']:5.3f}"
        yield f"  {name:20} {cells} |            {fitted}"
    yield from (f"  note: {note}" for note in summary["notes"])


def _cell(value: float) -> str:
    return f"{value:9.0f}" if value >= 1000 or value == int(value) else f"{value:9.2f}"
