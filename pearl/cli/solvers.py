"""`pearl solvers`: the solvers that can be chosen, and whether one does what a solver must."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pearl.solving.conformance import Report
    from pearl.solving.registry import SolverInfo

API_VERSION = "pearl.dev/v1alpha1"


@click.command()
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--check",
    "spec",
    metavar="SPEC",
    help="Run the conformance suite on a solver: an id, path/to/file.py:Class or package.module:Class.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draws the models of --check.")
def solvers(*, form: str, spec: str | None, seed: int) -> None:
    """List the solvers with availability, library version and capabilities; or check one.

    With --check, exit code 0 says that every property holds, and 2 that one does not.
    """
    if spec is None:
        from pearl.solving.registry import catalogue

        lines = catalogue()
        click.echo(_catalogue_json(lines) if form == "json" else _catalogue_table(lines))
        return
    from pearl.cli.options import only_result_on_stdout
    from pearl.errors import SolverContractError
    from pearl.solving.conformance import check
    from pearl.solving.registry import resolve

    with only_result_on_stdout():
        report = check(resolve(spec), seed=seed)
    click.echo(_report_json(report) if form == "json" else _report_table(report))
    if not report.passed:
        failed = sum(not found.passed for found in report.findings)
        raise SolverContractError(f"solver {spec!r} fails {failed} of {len(report.findings)} properties")


def _catalogue_table(lines: tuple[SolverInfo, ...]) -> str:
    rows = [("SOLVER", "LIBRARY", "VERSION", "EXACT", "READS", "NOTE")]
    for line in lines:
        can = line.capabilities
        exact = "yes" if can and can.exact else "no" if can else ""
        missing = "; ".join(filter(None, (line.problem, line.install)))
        note = (can.note if can else "") if line.available else missing
        rows.append((line.id, line.library, line.version or "missing", exact, can.reads if can else "", note))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _catalogue_json(lines: tuple[SolverInfo, ...]) -> str:
    return _json("SolverList", {"solvers": [asdict(line) for line in lines]})


def _report_table(report: Report) -> str:
    lines = [f"{report.solver} {report.version}"]
    for found in report.findings:
        lines.append(f"  {'pass' if found.passed else 'FAIL'}  {found.name}")
        if not found.passed:
            lines.append(f"        {found.detail}")
    return "\n".join(lines)


def _report_json(report: Report) -> str:
    body = {
        "solver": report.solver,
        "version": report.version,
        "passed": report.passed,
        "findings": [asdict(found) for found in report.findings],
    }
    return _json("SolverReport", body)


def _json(kind: str, body: dict[str, object]) -> str:
    return json.dumps({"apiVersion": API_VERSION, "kind": kind, **body}, indent=2)
