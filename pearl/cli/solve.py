"""`pearl solve`: decide on a scenario, explain the decision, and plan it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pearl.cli import options
from pearl.cli.options import Format

if TYPE_CHECKING:
    from pearl.api import Result
    from pearl.report.document import Asked

EXIT_CODES = {"switch": 0, "keep": 0, "infeasible": 3, "limit": 4}


def _of_a_format(_ctx: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """The path, while nothing was solved yet for a file of no format."""
    if path is not None:
        from pearl.solving.export import check_format

        check_format(path)
    return path


@click.command()
@click.argument("scenario")
@options.policy_option
@options.set_option
@options.solver_option
@options.predictor_option
@options.event_option
@options.seed_option
@click.option(
    "--time-limit",
    type=options.Seconds(),
    metavar="SECONDS",
    help="Limit of the solver, instead of the policy's.",
)
@click.option("--why", multiple=True, metavar="5P3D|12C", help="Say what speaks against a configuration; repeatable.")
@click.option("--alternatives", type=click.IntRange(min=1), default=None, help="Show so many other configurations.")
@click.option("--sensitivity", is_flag=True, help="Show which error of which profile number flips the decision.")
@click.option(
    "--export",
    type=options.OutputFile(),
    callback=_of_a_format,
    metavar="MODEL.mps|lp|json",
    help="Also write the model that was solved, for other tools.",
)
@options.format_option
@options.output_option
@click.pass_context
def solve(
    ctx: click.Context,
    *,
    scenario: str,
    policy: str | None,
    sets: Mapping[str, str],
    solver: str | None,
    predictor: str | None,
    event: str | None,
    seed: int | None,
    time_limit: float | None,
    why: tuple[str, ...],
    alternatives: int | None,
    sensitivity: bool,
    export: Path | None,
    format: Format,
    output: Path | None,
) -> None:
    """Decide on SCENARIO (a file, or a shipped one by name), explain the decision, and plan it.

    Exit codes: 0 planned, or keep; 2 bad input; 3 infeasible; 4 no answer within the limit.
    """
    from pearl.api import solve as solve_scenario
    from pearl.deciding.alternatives import parse_counts
    from pearl.errors import UsageError
    from pearl.report.document import Asked

    if export is not None and export == output:
        raise UsageError(f"{export} would hold two results; expected a file for each")
    for configuration in why:
        parse_counts(configuration)
    asked = Asked(why=why, alternatives=alternatives or 0, sensitivity=sensitivity)
    with options.only_result_on_stdout():
        result = solve_scenario(
            scenario,
            policy=policy,
            sets=sets,
            solver=solver,
            predictor=predictor,
            event=event,
            seed=seed,
            time_limit_s=time_limit,
        )
        text = _text(result, asked, format)
        if export is not None:
            _export(result, export)
    options.emit(text, output)
    ctx.exit(EXIT_CODES[result.outcome.value])


def _text(result: Result, asked: Asked, form: Format) -> str:
    from pearl.report.document import result_document
    from pearl.report.text import result_text

    document = result_document(result, asked)
    if form is Format.TABLE:
        return result_text(document)
    return options.dump(document.model_dump(mode="json", by_alias=True), form)


def _export(result: Result, path: Path) -> None:
    from pearl.solving.export import write_model
    from pearl.solving.formulation import formulate

    write_model(formulate(result.verdict.problem), path)
