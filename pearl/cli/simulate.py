"""`pearl simulate`: what policies would have done in a simulated world."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pearl.cli import options
from pearl.cli.options import Format

if TYPE_CHECKING:
    from pearl.sim.study import Run, RunSpec

MOST_SEEDS = 100_000
"""Runs per policy: more than any study needs, few enough to be listed."""


@click.command()
@click.argument("scenario")
@click.option("--policy", "policies", multiple=True, metavar="FILE|NAME", help="Policy; repeatable.")
@options.set_option
@options.solver_option
@options.predictor_option
@click.option("--trace", metavar="FILE", help="Availability trace of the preemptible zone, instead of the scenario's.")
@click.option(
    "--trace-from", type=options.Seconds(positive=False), default=0.0, metavar="TIME", help="Start in the trace."
)
@click.option("--horizon", type=options.Seconds(), metavar="TIME", help="Simulated time, in seconds or such as 2h.")
@click.option("--batches", type=click.IntRange(min=1), help="Stop after so many batches.")
@click.option("--forecaster", default="observed", show_default=True, help="Source of the policy's forecasts.")
@click.option(
    "--tick",
    type=options.Seconds(least=1),
    metavar="TIME",
    help="Also decide so often. Default: on events only, and every 15 s for policies that read demand forecasts.",
)
@click.option(
    "--seeds", type=click.IntRange(min=1, max=MOST_SEEDS), default=1, show_default=True, help="Runs per policy."
)
@options.seed_option
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; all cores by default.")
@click.option("--ray", "ray_address", metavar="ADDRESS", help="Run on a Ray cluster: an address, auto, or local.")
@click.option("--log", type=options.OutputFile(), help="Write the event log of each run, JSON lines.")
@click.option(
    "--timeline",
    type=options.OutputFile(),
    multiple=True,
    metavar="FILE.png|html",
    help="Draw each run; repeatable.",
)
@click.option("--csv", "csv_path", type=options.OutputFile(), help="Also write a CSV file.")
@options.format_option
@options.output_option
def simulate(
    *,
    scenario: str,
    policies: tuple[str, ...],
    sets: Mapping[str, str],
    solver: str | None,
    predictor: str | None,
    trace: str | None,
    trace_from: float,
    horizon: float | None,
    batches: int | None,
    forecaster: str,
    tick: float | None,
    seeds: int,
    seed: int | None,
    jobs: int | None,
    ray_address: str | None,
    log: Path | None,
    timeline: tuple[Path, ...],
    csv_path: Path | None,
    format: Format,
    output: Path | None,
) -> None:
    """Simulate SCENARIO under each policy, with the scheduler of `pearl solve`; every figure is a simulated one.

    With several runs, the files of --log and --timeline get the policy and the seed into their names. Policies of one
    name are called by their files. Every input and output is checked before the first run.
    """
    from pearl.errors import UsageError
    from pearl.scenario.load import load_scenario
    from pearl.sim.study import RunSpec, prepare

    first = load_scenario(scenario).seed if seed is None else seed
    specs = [
        RunSpec(
            scenario=scenario,
            policy=policy,
            seed=first + index,
            sets=sets,
            solver=solver,
            predictor=predictor,
            trace=trace,
            trace_from_s=trace_from,
            horizon_s=horizon,
            batches=batches,
            forecaster=forecaster,
            tick_every_s=tick,
            keep_log=log is not None or bool(timeline),
        )
        for policy in policies or (None,)
        for index in range(seeds)
    ]
    if len(set(policies)) < len(policies):
        raise UsageError("a policy is given twice; expected each one once")
    for picture in timeline:
        _check_picture(picture)
    with options.only_result_on_stdout():
        ready = prepare(specs)
        _check_places(ready, log, timeline, (csv_path, output))
        runs = _run(ready, jobs or os.cpu_count() or 1, ray_address)
    for run in runs:
        _write_pictures(run, log, timeline, several=len(runs) > 1)
    _report(runs, csv_path, format, output)


def _report(runs: Sequence[Run], csv_path: Path | None, format: Format, output: Path | None) -> None:
    from pearl.report.simulation import study_csv, study_data, study_text, study_warnings

    for warning in study_warnings(runs):
        click.echo(f"warning: {warning}", err=True)
    if csv_path is not None:
        options.emit(study_csv(runs), csv_path)
    options.emit(study_text(runs) if format is Format.TABLE else options.dump(study_data(runs), format), output)


def _run(specs: Sequence[RunSpec], jobs: int, ray_address: str | None) -> tuple[Run, ...]:
    from pearl.sim.study import run_study, run_study_on_ray

    with options.progress(len(specs), "simulating") as advance:

        def done(run: Run) -> None:
            advance(f"{run.figures.policy}, seed {run.spec.seed}")

        if ray_address is not None:
            return run_study_on_ray(specs, address=ray_address, done=done)
        return run_study(specs, jobs=jobs, done=done)


def _place(path: Path, spec: RunSpec, *, several: bool) -> Path:
    return path.with_name(f"{path.stem}.{spec.label}.{spec.seed}{path.suffix}") if several else path


def _check_places(
    specs: Sequence[RunSpec], log: Path | None, pictures: Sequence[Path], others: Sequence[Path | None]
) -> None:
    """Raise InputError where a file of a run cannot be written, or where two results would share one."""
    from pearl.errors import UsageError, every_fault
    from pearl.files import check_writable

    several = len(specs) > 1
    own = [_place(path, spec, several=several) for path in (log, *pictures) if path is not None for spec in specs]
    every_fault(partial(check_writable, path) for path in own)
    for path, count in Counter(path for path in (*own, *others) if path is not None).items():
        if count > 1 and (path.is_file() or not path.exists()):
            raise UsageError(f"{path} would hold two results; expected a file for each")


def _write_pictures(run: Run, log: Path | None, pictures: Sequence[Path], *, several: bool) -> None:
    from pearl.sim.log import to_jsonl

    if log is not None:
        options.emit(to_jsonl(run.report.log), _place(log, run.spec, several=several))
    for picture in pictures:
        _draw(run, _place(picture, run.spec, several=several))


def _draw(run: Run, path: Path) -> None:
    from pearl.report.simulation import study_data
    from pearl.report.timeline import html_text, picture_title, timeline_of, write_png

    drawn = timeline_of(run.report.log, run.figures.horizon_s)
    title = picture_title(policy=run.figures.policy, scenario=run.spec.scenario, seed=run.spec.seed)
    if path.suffix.lower() == ".png":
        write_png(drawn, path, title=title)
    else:
        options.emit(html_text(drawn, title=title, results=study_data([run])["results"]), path)


def _check_picture(path: Path) -> None:
    """Raise UsageError where nothing draws a file of this name."""
    from pearl.errors import UsageError
    from pearl.report.png import check_png

    match path.suffix.lower():
        case ".png":
            check_png(path, hint="or write .html")
        case ".html":
            pass
        case other:
            raise UsageError(f"no picture format {other!r}; expected a file name in .png or .html")
