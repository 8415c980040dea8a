"""`pearl events`: what happened to the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pearl.cli.controller import controller_options, find_controller
from pearl.live.client import AdminClient

PAGE = 200
"""Events asked for at once."""
WAIT_S = 20.0
"""How long one question waits for news: shorter than proxies take for an idle connection."""


@click.command()
@controller_options
@click.option("--follow", is_flag=True, help="Wait for more, until interrupted.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this number.")
@click.option("--format", "form", type=click.Choice(["text", "jsonl"]), default="text", show_default=True)
def events(*, state: Path, url: str | None, follow: bool, after: int, form: str) -> None:
    """Show events in order: nodes, reclaims, training, batches, decisions' causes.

    Exit codes: 0 shown; 2 refused; 5 the controller cannot be reached.
    """
    from pearl.report.live import event_text

    controller = find_controller(state, url)
    for event in _pages(controller, after, follow):
        click.echo(json.dumps(event, ensure_ascii=False) if form == "jsonl" else event_text(event))


def _pages(controller: AdminClient, after: int, follow: bool) -> Iterator[dict[str, Any]]:
    while True:
        page = controller.events(after=after, limit=PAGE, wait_s=WAIT_S if follow else 0.0).get("events") or []
        yield from page
        if page:
            after = int(page[-1]["seq"])
        elif not follow:
            return
