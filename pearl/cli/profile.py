"""`pearl profile`: fit engine profiles to measured step times, list and show them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pearl.core.engine import EngineProfile

_HEADER = f"{'profile':24} {'prefill mean':>12} {'max':>6} {'decode mean':>12} {'max':>6} {'H_max':>9} {'H_colo':>9}"


@click.group()
def profile() -> None:
    """Engine profiles: what one worker of a model on a GPU type can do."""


@profile.command("list")
def list_profiles() -> None:
    """List the built-in profiles with the error of their fits."""
    from pearl.scenario.engines import builtin_profiles, read_profile

    _print_table(read_profile(path) for path in builtin_profiles().values())


@profile.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a profile: a built-in NAME, or the path of a file."""
    from pearl.scenario.engines import locate_profile, read_profile

    path = locate_profile(name)
    read_profile(path)
    click.echo(path.read_text(encoding="utf-8"), nl=False)


@profile.command()
@click.argument("step_times", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", required=True, help="GPU type that was measured, such as H200.")
@click.option("--gpu-memory", help="Its memory, such as '141 GB'; known for H100 and H200.")
@click.option("--model", "models", multiple=True, help="Fit this model only; repeatable. Default: all of the table.")
@click.option("--shape", help="LAYERS,KV_HEADS,HEAD_SIZE[,EXPERTS,TOP_K] of a model that is not known.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the profile files; none are written else.",
)
def fit(
    *, step_times: Path, gpu: str, gpu_memory: str | None, models: tuple[str, ...], shape: str | None, out: Path | None
) -> None:
    """Fit profiles to the table STEP_TIMES, and print the relative error of each.

    The table maps a model to pre {new: [ms, GiB]}, pfx {"cached+new": ms} and dec {"context/batch": [ms, GiB]}.
    """
    from pearl.scenario.fit_files import fit_table, write_profile

    fits = fit_table(step_times, gpu=gpu, gpu_memory=gpu_memory, models=models, shape=shape)
    _print_table(item.profile for item in fits)
    if out is not None:
        for item in fits:
            click.echo(f"wrote {write_profile(item, out)}", err=True)


def _print_table(profiles: Iterable[EngineProfile]) -> None:
    click.echo(_HEADER)
    for item in profiles:
        error = item.fit
        shown = (
            [
                f"{error.prefill_mean:12.2%} {error.prefill_max:6.1%}",
                f"{error.decode_mean:12.2%} {error.decode_max:6.1%}",
            ]
            if error
            else [f"{'-':>12} {'-':>6}"] * 2
        )
        click.echo(f"{item.name:24} {' '.join(shown)} {item.kv_decode_tokens:9} {item.kv_colocated_tokens:9}")
