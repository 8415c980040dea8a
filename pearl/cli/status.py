"""`pearl status`: what the cluster is doing now."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pearl.cli import options
from pearl.cli.controller import controller_options, find_controller
from pearl.cli.options import Format
from pearl.live.client import AdminClient


@click.command()
@controller_options
@click.option("--watch", is_flag=True, help="Show it again and again, until interrupted.")
@click.option(
    "--every", type=options.Seconds(), default=2.0, show_default=True, metavar="SECONDS", help="Period of --watch."
)
@options.format_option
def status(*, state: Path, url: str | None, watch: bool, every: float, format: Format) -> None:
    """Show mode, workers, weights, and what is under way.

    Exit codes: 0 shown; 2 refused; 5 the controller cannot be reached.
    """
    controller = find_controller(state, url)
    text = _text(controller, format)
    while watch:
        if format is Format.TABLE:
            click.clear()
        click.echo(text, nl=False)
        time.sleep(every)
        text = _text(controller, format)
    options.emit(text, None)


def _text(controller: AdminClient, format: Format) -> str:
    from pearl.report.live import state_text

    found = controller.state()
    return state_text(found) if format is Format.TABLE else options.dump(found, format)
