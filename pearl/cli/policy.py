"""`pearl policy`: check, show, set, schema and math."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pearl.cli.controller import controller_options, find_controller
from pearl.cli.options import set_option
from pearl.errors import PolicyError

if TYPE_CHECKING:
    from pearl.policy.model import Policy


@click.group()
def policy() -> None:
    """Check policies and show what they say."""


@policy.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@set_option
def check(files: tuple[str, ...], sets: Mapping[str, str]) -> None:
    """Check policies; every fault of every file is reported. Exits 2 if there is any."""
    from pearl.policy.load import load_policy

    failed = False
    for file in files:
        try:
            found = load_policy(file, sets=sets)
        except PolicyError as e:
            failed = True
            for fault in e.faults:
                click.echo(f"error: {fault}", err=True)
        else:
            rows = sum(len(rule.rows) for rule in found.rules)
            click.echo(f"{file}: ok ({found.name}: {rows} rows, {len(found.tiers)} tiers)")
    if failed:
        click.get_current_context().exit(PolicyError.exit_code)


@policy.command()
@click.argument("name", metavar="FILE|NAME")
@set_option
@click.option("--format", "format_", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def show(name: str, sets: Mapping[str, str], format_: str) -> None:
    """Print a policy as it is after `extends` and `--set`."""
    from pearl.policy.load import load_policy

    found = load_policy(name, sets=sets)
    if format_ == "json":
        click.echo(_json(found.document))
        return
    import yaml

    click.echo(f"# sha256 {found.sha256}, from {', '.join(found.files)}")
    click.echo(yaml.safe_dump(dict(found.document), sort_keys=False, allow_unicode=True, width=110), nl=False)


@policy.command("set")
@click.argument("name", metavar="FILE|NAME")
@set_option
@controller_options
def set_(name: str, sets: Mapping[str, str], state: Path, url: str | None) -> None:
    """Let a running controller decide by another policy. It is checked here first, and there again.

    Exit codes: 0 taken; 2 the policy does not hold, or is refused; 5 the controller cannot be reached.
    """
    from pearl.policy.load import load_policy

    found = load_policy(name, sets=sets)
    find_controller(state, url).set_policy(text=_one_text(found, with_sets=bool(sets)), name=name)
    click.echo(f"policy {found.name} is in force")


def _one_text(found: Policy, *, with_sets: bool) -> str:
    """The policy as one text: as it was written where that is all of it, so that lines in messages are the author's."""
    import yaml

    from pearl.policy.load import builtin_folder

    shown = Path(found.files[-1])
    written = (shown if shown.is_file() else builtin_folder() / shown.name).read_text(encoding="utf-8")
    parents = yaml.safe_load(written).get("extends") or ()
    if not with_sets and all(str(parent).startswith("builtin/") for parent in parents):
        return written
    return str(yaml.safe_dump(dict(found.document), sort_keys=False, allow_unicode=True, width=110))


@policy.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for editors."""
    from pearl.policy.reference import json_schema

    click.echo(_json(json_schema()))


@policy.command()
@click.argument("name", metavar="FILE|NAME")
@set_option
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def math(name: str, sets: Mapping[str, str], format_: str) -> None:
    """Print the rows, tiers and thresholds that a policy compiles to."""
    from pearl.policy.load import load_policy
    from pearl.policy.mathematics import mathematics

    found = mathematics(load_policy(name, sets=sets))
    click.echo(_json(found.plain()) if format_ == "json" else "\n".join(found.lines()))


@policy.command()
def reference() -> None:
    """Print the reference of the language, in Markdown."""
    from pearl.policy.reference import reference as text

    click.echo(text(), nl=False)


@policy.command("list")
def list_() -> None:
    """List the built-in policies."""
    from pearl.policy.load import builtin_names, load_policy

    for name in builtin_names():
        description = load_policy(name).document["metadata"].get("description", "")
        click.echo(f"{name:14} {description}")


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)
