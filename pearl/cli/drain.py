"""`pearl drain`: take a worker out of service, as before work on its machine."""

from __future__ import annotations

from pathlib import Path

import click

from pearl.cli import options
from pearl.cli.controller import controller_options, find_controller


@click.command()
@click.argument("worker")
@controller_options
@click.option(
    "--deadline",
    type=options.Seconds(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait. Requests move elsewhere, with their tokens, after limits.drain of the cluster file.",
)
@click.option("--undo", is_flag=True, help="Let a drained worker serve again.")
def drain(*, worker: str, state: Path, url: str | None, deadline: float, undo: bool) -> None:
    """Take WORKER out of service, and wait until it has left; no request is lost.

    Exit codes: 0 done; 2 refused; 5 the controller cannot be reached, or did not answer in time.
    """
    controller = find_controller(state, url)
    if undo:
        controller.undo_drain(worker)
        click.echo(f"{worker} may serve again")
        return
    controller.drain(worker, deadline_s=deadline)
    click.echo(f"{worker} serves nothing")
