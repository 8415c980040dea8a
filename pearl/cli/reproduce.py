"""`pearl reproduce`: every figure of the paper beside the simulated one."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pearl.cli import options
from pearl.cli.options import Format

EXIT_UNMET = 1
"""With --check: a sign or an order is not right, or too few held-out speedups are met."""


@click.command()
@click.option("--section", "sections", multiple=True, metavar="6.3", help="Only these sections of the paper.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only these models.")
@click.option("--quick", is_flag=True, help="One seed and shorter runs: noisier figures, and the report says so.")
@click.option("--seeds", type=click.IntRange(min=1, max=100), help="Seeds per run, instead of the usual number.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; all cores by default.")
@click.option(
    "--check", is_flag=True, help="Exit with 1 where a sign or order is not right, or fewer than 80% are met."
)
@click.option(
    "--plot",
    type=options.OutputFile(),
    metavar="FILE.png",
    help="Also draw published against simulated.",
)
@options.format_option
@options.output_option
def reproduce(
    *,
    sections: tuple[str, ...],
    models: tuple[str, ...],
    quick: bool,
    seeds: int | None,
    jobs: int | None,
    check: bool,
    plot: Path | None,
    format: Format,
    output: Path | None,
) -> None:
    """Simulate every figure of the paper's sections 2, 3 and 6, and show it beside the published one.

    Rows marked held out were never fitted to. Calibrated values are shipped; `pearl calibrate` repeats them.
    """
    from dataclasses import replace

    from pearl.errors import UsageError
    from pearl.reproduce import report
    from pearl.reproduce.plot import check_plot, write_plot
    from pearl.reproduce.rows import summarise
    from pearl.reproduce.run import choose_targets, plan_work, reproduce
    from pearl.reproduce.simulate import Effort

    targets = choose_targets(sections, models)
    if plot is not None:
        check_plot([target.unit for target in targets], plot)
        if output is not None and plot.resolve() == output.resolve():
            raise UsageError(f"{plot} would hold two results; expected a file for each")
    effort = Effort.quick() if quick else Effort()
    effort = effort if seeds is None else replace(effort, seeds=seeds)
    with options.progress(len(plan_work(targets, effort)), "reproducing") as advance:
        rows = reproduce(targets, effort=effort, jobs=jobs or os.cpu_count() or 1, told=advance)
    if plot is not None:
        write_plot(rows, plot)
    data = report.rows_data(rows, effort)
    options.emit(report.rows_text(rows, effort) if format is Format.TABLE else options.dump(data, format), output)
    if check and not summarise(rows).holds:
        click.get_current_context().exit(EXIT_UNMET)
