"""`pearl stop`: end the controller."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import click

from pearl.cli import options
from pearl.cli.controller import controller_options, find_controller
from pearl.live.client import AdminClient, LateError, NotRunningError, RejectedError

POLL_S = 0.2


@click.command()
@controller_options
@click.option("--keep-workers", is_flag=True, help="Leave the workers as they are, for the next controller to find.")
@click.option(
    "--wait",
    type=options.Seconds(),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the controller may take: open requests finish first.",
)
def stop(*, state: Path, url: str | None, keep_workers: bool, wait: float) -> None:
    """End the controller and its workers. Requests that are open then go on at the next start.

    Exit codes: 0 ended; 2 refused; 5 the controller cannot be reached, or has not ended in time.
    """
    controller = find_controller(state, url)
    controller.stop(workers=not keep_workers)
    _wait(controller, wait)
    click.echo("stopped; the workers live on" if keep_workers else "stopped")


def _wait(controller: AdminClient, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        try:
            with suppress(LateError):
                controller.call("GET", "/state", deadline_s=max(until_s - time.monotonic(), POLL_S))
        except NotRunningError:
            return
        except RejectedError as e:
            if not e.passing:
                raise
        time.sleep(POLL_S)
    raise LateError(f"the controller at {controller.url} was told to stop, and still runs after {limit_s:g} s")
