"""`pearl calibrate`: fit named numbers of a scenario to given figures."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pearl.cli import options
from pearl.cli.options import Format

MOST_CANDIDATES = 100_000
"""Days of simulation, and far past where a search of ten numbers still gains."""


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--budget",
    type=click.IntRange(min=1, max=MOST_CANDIDATES),
    default=240,
    show_default=True,
    help="Candidates to simulate.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the search.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; all cores by default. The result is the same.")
@options.format_option
@options.output_option
def calibrate(*, spec: Path, budget: int, seed: int, jobs: int | None, format: Format, output: Path | None) -> None:
    """Fit the free parameters of the calibration file SPEC to its targets, by a seeded search with the simulator.

    The YAML result names the values, how far each target was met, and the command that repeats it.
    """
    from pearl.reproduce.calibration import load_calibration
    from pearl.reproduce.fit import calibrate as fit
    from pearl.reproduce.fitted import fitted_data
    from pearl.reproduce.report import fit_text

    calibration = load_calibration(spec)
    with options.progress(budget, "calibrating") as advance:
        found = fit(calibration, budget=budget, seed=seed, jobs=jobs or os.cpu_count() or 1, told=advance)
    text = fit_text(found) if format is Format.TABLE else options.dump(fitted_data(found), format)
    options.emit(text, output)
