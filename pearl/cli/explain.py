"""`pearl explain`: why the controller decided what it decided."""

from __future__ import annotations

from pathlib import Path

import click

from pearl.cli import options
from pearl.cli.controller import controller_options, find_controller
from pearl.cli.options import Format


@click.command()
@click.argument("decision_id", required=False, metavar="[DECISION]")
@controller_options
@options.format_option
@options.output_option
def explain(*, decision_id: str | None, state: Path, url: str | None, format: Format, output: Path | None) -> None:
    """Show why DECISION (the newest else) was taken: chosen, turned down, margins, rules, and what its plan became.

    Exit codes: 0 shown; 2 refused; 5 the controller cannot be reached.
    """
    from pearl.errors import InputError
    from pearl.report.live import decision_text

    controller = find_controller(state, url)
    if decision_id is None:
        newest = controller.decisions(limit=1).get("decisions") or []
        if not newest:
            raise InputError("nothing has been decided yet")
        decision_id = str(newest[-1]["id"])
    decision = controller.decision(decision_id)
    plan_id = decision.get("plan")
    plan = controller.plan(str(plan_id)) if plan_id else None
    if format is Format.TABLE:
        options.emit(decision_text(decision, plan), output)
    else:
        options.emit(options.dump({**decision, "plan": plan}, format), output)
