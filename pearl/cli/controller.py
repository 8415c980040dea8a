"""Which controller a command speaks to."""

from __future__ import annotations

from pathlib import Path

import click

from pearl.cli.options import CommandT
from pearl.live.client import AdminClient
from pearl.live.endpoint import DEFAULT_STATE_DIR, TOKEN_VARIABLE


def controller_options(function: CommandT) -> CommandT:
    """`--state` and `--url`, given as `state: Path` and `url: str | None`, for `find_controller`."""
    function = click.option(
        "--url",
        metavar="URL",
        help=f"Address of the controller, in place of the one in its state folder; the token is in {TOKEN_VARIABLE}.",
    )(function)
    return click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_STATE_DIR,
        show_default=True,
        help="State folder of the controller.",
    )(function)


def find_controller(state: Path, url: str | None) -> AdminClient:
    """A client of the controller; raises `ClientError` where none is known there."""
    return AdminClient.find(state_dir=state, url=url)
