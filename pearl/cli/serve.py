"""`pearl serve`: rollout on live workers, by a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pearl.cli import options
from pearl.cli.options import Format

if TYPE_CHECKING:
    from pearl.live.control.options import ServeOptions

LIVE_LIBRARIES = ("aiohttp", "ray", "vllm")
"""What serving needs beside the light install."""


@click.command()
@click.option("--cluster", required=True, metavar="FILE|NAME", help="Cluster file, or a built-in one by name.")
@click.option("--policy", default="pearl", show_default=True, metavar="FILE|NAME", help="Policy to decide by.")
@options.set_option
@options.cluster_set_option
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the journal, the token and the address; the cluster file's else.",
)
@click.option("--host", help="Address to listen on, instead of the cluster file's.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, instead of the cluster file's.")
@click.option("--forecaster", default="observed", show_default=True, metavar="NAME", help="Source of forecasts.")
@click.option("--text", is_flag=True, help="Take and give text too: loads the model's tokenizer.")
@click.option("--shadow", is_flag=True, help="Decide and log; beyond the first start's workers, change nothing.")
@click.option("--dry-run", is_flag=True, help="Print the first plan for the nodes that are there, and end.")
@click.option("-v", "--verbose", count=True, help="Say every event and decision on standard error; -vv: requests too.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--format",
    type=click.Choice([item.value for item in Format]),
    callback=lambda _ctx, _option, value: Format(value),
    default=Format.TABLE.value,
    show_default=True,
    help="Form of the plan that --dry-run prints.",
)
def serve(
    *,
    cluster: str,
    policy: str,
    sets: Mapping[str, str],
    cluster_sets: Mapping[str, str],
    state: Path | None,
    host: str | None,
    port: int | None,
    forecaster: str,
    text: bool,
    shadow: bool,
    dry_run: bool,
    verbose: int,
    log_format: str,
    format: Format,
) -> None:
    """Serve rollout on the workers of a cluster: one address for requests, trainers and operators.

    Joins or starts the cluster's Ray, finds or starts its workers, and decides on every event until it is stopped
    (SIGINT, SIGTERM, `pearl stop`). Workers outlive a controller that is stopped by a signal, where Ray does.

    Exit codes: 0 stopped; 1 another controller runs, or this one cannot go on; 2 bad input.
    """
    from pearl.live.control.options import LogFormat, ServeOptions

    asked = ServeOptions(
        cluster=cluster,
        policy=policy,
        sets=sets,
        cluster_sets=cluster_sets,
        state_dir=state,
        host=host,
        port=port,
        forecaster=forecaster,
        shadow=shadow,
        text=text,
    )
    if dry_run:
        with options.only_result_on_stdout():
            first = _preview(asked, format)
        options.emit(first, None)
        return
    _need(LIVE_LIBRARIES)
    from pearl.live.control.logs import set_up_logs
    from pearl.live.control.service import serve as run

    set_up_logs(LogFormat(log_format), verbosity=verbose)
    run(asked, ready=click.echo)


def _preview(asked: ServeOptions, form: Format) -> str:
    from pearl.live.preview import nodes_there, preview
    from pearl.report.preview import preview_data, preview_text
    from pearl.tracking.forecasters import get_forecaster

    cluster = asked.load()
    get_forecaster(asked.forecaster)
    if not cluster.ray.nodes:
        _need(["ray"])
    found = preview(cluster, nodes_there(cluster), policy=asked.policy, sets=asked.sets)
    return preview_text(found) if form is Format.TABLE else options.dump(preview_data(found), form)


def _need(libraries: Sequence[str]) -> None:
    """Raises `UsageError` where a library is missing: none is imported before all are known to be here."""
    from pearl.errors import Fault, UsageError

    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise UsageError(Fault(message=f"not installed: {', '.join(missing)}", hint='pip install "pearl[live]"'))
