"""`pearl compare`: solvers side by side on the same problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pearl.cli import options
from pearl.cli.options import Format

if TYPE_CHECKING:
    from pearl.api import Result
    from pearl.policy.model import Policy
    from pearl.report.comparison import Instance, Rows
    from pearl.solving.protocol import Solver

EXIT_DISAGREES = 1
ORACLE = "enumerate"


@click.command()
@click.argument("scenarios", nargs=-1, required=True)
@click.option("--solver", "solvers", multiple=True, help="A solver to compare; repeatable. Default: all available.")
@click.option("--policy", "policies", multiple=True, help="Policy file or name; repeatable. Default: the scenario's.")
@click.option("--predictor", "predictors", multiple=True, help="Predictor; repeatable. Default: the policy's.")
@options.set_option
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Solves per time's median.")
@click.option("--time-limit", type=options.Seconds(), default=30.0, metavar="TIME")
@click.option("--csv", "csv_path", type=options.OutputFile(), help="Also write a CSV file.")
@options.format_option
@options.output_option
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    scenarios: tuple[str, ...],
    solvers: tuple[str, ...],
    policies: tuple[str, ...],
    predictors: tuple[str, ...],
    sets: Mapping[str, str],
    repeats: int,
    time_limit: float,
    csv_path: Path | None,
    format: Format,
    output: Path | None,
) -> None:
    """Solve the problem of each SCENARIO with several solvers: status, tiers, bound, agreement with enumeration, times.

    Policies of one name are called by their files. Exit code 1 if some solver disagrees with enumeration.
    """
    from pearl.api import solve
    from pearl.report.comparison import comparison_csv, comparison_data, comparison_text

    with options.only_result_on_stdout():
        asked = list(product(scenarios, policies or (None,), predictors or (None,)))
        chosen = _solvers(solvers)
        labels = _check(asked, sets)
        results = [
            (
                labels.get(policy),
                solve(scenario, policy=policy, sets=sets, predictor=predictor, time_limit_s=time_limit),
            )
            for scenario, policy, predictor in asked
        ]
        rows = _rows(results, chosen, repeats)
    if csv_path is not None:
        options.emit(comparison_csv(rows), csv_path)
    text = comparison_text(rows) if format is Format.TABLE else options.dump(comparison_data(rows), format)
    options.emit(text, output)
    ctx.exit(EXIT_DISAGREES if any(measured.agrees is False for _, measured in rows) else 0)


def _check(asked: Sequence[tuple[str, str | None, str | None]], sets: Mapping[str, str]) -> Mapping[str | None, str]:
    """Read every input before the first solve, and name the policies that were given.

    Raises InputError with the faults of all, or for policies that rows could not tell apart.
    """
    from pearl.api import choose_policy, choose_predictor
    from pearl.errors import every_fault
    from pearl.policy.labels import labels_of
    from pearl.scenario.load import load_scenario

    found: dict[str | None, Policy] = {}

    def read(scenario: str, policy: str | None, predictor: str | None) -> None:
        chosen = choose_policy(load_scenario(scenario), policy, sets)
        choose_predictor(chosen, predictor)
        if policy is not None:
            found[policy] = chosen

    every_fault(partial(read, *one) for one in asked)
    return labels_of(found)


def _solvers(names: tuple[str, ...]) -> list[Solver]:
    from pearl.solving.registry import catalogue, resolve

    return [resolve(name) for name in names or [info.id for info in catalogue() if info.available]]


def _rows(results: Sequence[tuple[str | None, Result]], solvers: list[Solver], repeats: int) -> Rows:
    from pearl.deciding.comparison import compare_solvers
    from pearl.report.comparison import Instance
    from pearl.solving.registry import resolve

    rows = []
    for label, result in results:
        policy = label or result.policy.name
        instance = Instance(scenario=result.scenario.name, policy=policy, predictor=result.predictor.id)
        _say(instance)
        measured = compare_solvers(
            result.verdict.problem, solvers, oracle=resolve(ORACLE), limits=result.limits, repeats=repeats
        )
        rows += [(instance, m) for m in measured]
    return rows


def _say(instance: Instance) -> None:
    click.echo(f"{instance.scenario} / {instance.policy} / {instance.predictor} …", err=True)
