"""`pearl fit`: recorded telemetry becomes a workload profile and an engine profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pearl.cli.options import emit, output_option

if TYPE_CHECKING:
    from pearl.core.engine import EngineProfile
    from pearl.core.telemetry import Telemetry
    from pearl.core.workload import Workload
    from pearl.tracking.tracker import RuntimeTracker

PARTS = ("scenario", "workload", "engine")


@click.command()
@click.argument("telemetry", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--part",
    type=click.Choice(PARTS),
    default="scenario",
    show_default=True,
    help="`scenario`: workload and engine, to paste under `spec:`; `workload` alone; `engine`: a profile file.",
)
@click.option("--prior", metavar="NAME|FILE", help="Offline engine profile, refined by the telemetry.")
@click.option("--name", help="Name of the engine profile; that of the prior, or `telemetry`, else.")
@click.option("--trajectories", type=click.IntRange(1, 1_000_000), help="Batch size; as offered else.")
@click.option("--max-context", type=click.IntRange(2, 10_000_000), help="Token limit; the longest context seen else.")
@output_option
def fit(
    *,
    telemetry: tuple[Path, ...],
    part: str,
    prior: str | None,
    name: str | None,
    trajectories: int | None,
    max_context: int | None,
    output: Path | None,
) -> None:
    """Fit profiles to the files TELEMETRY (JSON lines, see docs/tracking.md).

    Newer rollout steps weigh more; outliers and the first steps of every worker are left out.
    """
    from pearl.scenario.engines import load_profile
    from pearl.tracking.engine import EngineTracker
    from pearl.tracking.jsonl import read_telemetry
    from pearl.tracking.tracker import RuntimeTracker
    from pearl.tracking.workload import WorkloadSettings, WorkloadTracker

    records = [record for file in telemetry for record in read_telemetry(file)]
    settings = WorkloadSettings(trajectories=trajectories, max_context_tokens=max_context)
    tracker = RuntimeTracker(
        workload=WorkloadTracker(settings=settings),
        engine=EngineTracker(prior=load_profile(prior) if prior else None),
    )
    tracker = _replayed(tracker, records)
    sources = ", ".join(file.name for file in telemetry)
    emit(_text(part, tracker, name=name, sources=sources), output)


def _replayed(tracker: RuntimeTracker, records: Sequence[Telemetry]) -> RuntimeTracker:
    """The tracker after every rollout step in turn, as it would have been live."""
    from pearl.core.telemetry import EngineRecord

    steps: dict[int, list[Telemetry]] = {}
    for record in records:
        steps.setdefault(0 if isinstance(record, EngineRecord) else record.step, []).append(record)
    for step in sorted(steps):
        tracker = tracker.update(steps[step], max(record.at_s for record in steps[step]))
    return tracker


def _text(part: str, tracker: RuntimeTracker, *, name: str | None, sources: str) -> str:
    from pearl.sim.traces.workload_text import workload_text

    if part == "engine":
        return _engine_document(_engine(tracker, sources, name), sources)
    workload = f"# fitted to {sources} by pearl fit\n{workload_text(_workload(tracker, sources))}"
    return workload if part == "workload" else workload + _engine_section(_engine(tracker, sources, name), sources)


def _workload(tracker: RuntimeTracker, sources: str) -> Workload:
    from pearl.errors import Fault, InputError
    from pearl.tracking.workload import MIN_FINISHED, REFIT_MIN_SAMPLES

    profile = tracker.workload.profile()
    if profile is None:
        expected = f"{REFIT_MIN_SAMPLES} `turn` records, and {MIN_FINISHED} with `last`, at least"
        raise InputError(Fault(message=f"{sources}: too little telemetry for a workload profile", expected=expected))
    return profile


def _engine(tracker: RuntimeTracker, sources: str, name: str | None) -> EngineProfile:
    from dataclasses import replace

    from pearl.errors import Fault, InputError
    from pearl.tracking.engine import WARMUP_SAMPLES
    from pearl.tracking.workload import REFIT_MIN_SAMPLES

    profile = tracker.engine.profile()
    if profile is None:
        expected = (
            f"an `engine` record, and {REFIT_MIN_SAMPLES} `step` records each of prefill and decode besides the first"
            f" {WARMUP_SAMPLES} of each worker"
        )
        message = f"{sources}: too little telemetry for an engine profile"
        hint = "--prior refines an offline profile; --part workload needs no engine"
        raise InputError(Fault(message=message, expected=expected, hint=hint))
    return replace(profile, name=name or profile.name)


def _engine_document(profile: EngineProfile, sources: str) -> str:
    from pearl.scenario.profile_text import profile_text

    description = f"{profile.model} on {profile.gpu}, fitted to {sources} by pearl fit"
    return profile_text(profile, description=description, derivation={})


def _engine_section(profile: EngineProfile, sources: str) -> str:
    """The profile's `spec:` as the `engine:` of a scenario."""
    from pearl.scenario.profile_text import plain

    _, spec = _engine_document(profile, sources).split("\nspec:\n")
    return f"engine:\n  name: {plain(profile.name)}\n{spec}"
