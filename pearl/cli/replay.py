"""`pearl replay`: recorded telemetry through the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pearl.cli import options
from pearl.cli.options import Format

if TYPE_CHECKING:
    from pearl.core.situation import Situation
    from pearl.policy.model import Policy
    from pearl.sim.replay import Recording

STORE_SUFFIX = ".db"


@click.command()
@click.argument("telemetry", type=click.Path(path_type=Path))
@options.policy_option
@options.set_option
@click.option("--scenario", metavar="FILE|NAME", help="Pool, profiles and costs to begin with.")
@click.option("--cluster", metavar="FILE|NAME", help="The same, of a cluster file that names its nodes.")
@options.solver_option
@options.predictor_option
@options.format_option
@options.output_option
def replay(
    *,
    telemetry: Path,
    policy: str | None,
    sets: Mapping[str, str],
    scenario: str | None,
    cluster: str | None,
    solver: str | None,
    predictor: str | None,
    format: Format,
    output: Path | None,
) -> None:
    """Show what a policy would have decided on TELEMETRY, when, and why.

    TELEMETRY is a file of JSON lines (docs/tracking.md), or the state folder of a controller that does not run. The
    pool is what the policy's own plans make of the one given; the telemetry stays as it was measured.
    """
    from pearl.api import choose_predictor, choose_solver
    from pearl.errors import Fault, InputError
    from pearl.report.replay import replay_data, replay_text
    from pearl.sim.replay import replay as run

    with options.only_result_on_stdout():
        world, rules = _world(scenario, cluster, policy, sets)
        taken = run(
            _recording(telemetry),
            world,
            rules,
            predictor=choose_predictor(rules, predictor),
            solver=choose_solver(rules, solver),
        )
    if not taken:
        message = f"{telemetry} holds no turn and no event of the cluster: nothing would have been decided"
        raise InputError(Fault(message=message, expected="`turn` records (docs/tracking.md)"))
    names = {"policy": rules.name, "source": telemetry.name}
    text = replay_text(taken, **names) if format is Format.TABLE else options.dump(replay_data(taken, **names), format)
    options.emit(text, output)


def _recording(path: Path) -> Recording:
    from pearl.sim.replay import Recording
    from pearl.tracking.jsonl import read_telemetry

    if path.is_dir() or path.suffix == STORE_SUFFIX:
        from pearl.live.recording import read_store

        records, events = read_store(path)
        return Recording(telemetry=records, events=events)
    return Recording(telemetry=read_telemetry(path))


def _world(
    scenario: str | None, cluster: str | None, policy: str | None, sets: Mapping[str, str]
) -> tuple[Situation, Policy]:
    from pearl.api import DEFAULT_POLICY, choose_policy, situation_of
    from pearl.errors import UsageError
    from pearl.policy.load import load_policy
    from pearl.scenario.load import load_scenario

    if (scenario is None) == (cluster is None):
        raise UsageError("give --scenario or --cluster, one of the two: what the pool and its engines are")
    if scenario is not None:
        loaded = load_scenario(scenario)
        return situation_of(loaded), choose_policy(loaded, policy, sets)
    assert cluster is not None
    from pearl.live.cluster.load import load_cluster
    from pearl.live.recording import opening_state

    live = load_cluster(cluster)
    return live.situation(opening_state(live)), load_policy(policy or DEFAULT_POLICY, sets=sets)
