"""A click group that imports a command's module only when the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a command lives, and the line that the group's help shows for it."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """Its help names every command whose module is installed, and imports none of them."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.entries = dict(entries or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # the signature is click's
        """Names in the order of the table."""
        return [name for name, entry in self.entries.items() if find_spec(entry.module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None where no command has the name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        entry = self.entries[cmd_name]
        command = getattr(import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command), f"{entry.module}:{entry.attribute} is not a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, except that an unknown name is answered with the nearest or all known ones."""
        name = args[0] if args else ""
        known = self.list_commands(ctx)
        if name in known or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise click.UsageError(f"no command {name!r}; {hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing any."""
        rows = [(name, self.entries[name].help) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
