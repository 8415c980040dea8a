"""Simulated worlds of the lessons: a steady pool, and one whose preemptible half comes and goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pearl
from pearl.api import choose_predictor, choose_solver, situation_of
from pearl.core.cluster import ClusterState, Zone
from pearl.core.situation import Situation
from pearl.sim.experiment import Experiment, Report, run_experiment
from pearl.sim.log import Happening
from pearl.sim.pipeline import TrainingCost
from pearl.sim.traces.availability import AvailabilityTrace

TRAINING = TrainingCost(step_s=20.0)
"""Shorter than any batch here, so that rollout sets the pace."""


def steady(*, trajectories: int = 24) -> Situation:
    """The main scenario without its training GPUs: nothing comes, nothing goes."""
    situation = situation_of(pearl.load_scenario("qwen3-8b-swe"))
    assert situation.workload is not None
    stays = tuple(w for w in situation.state.workers if w.zone is not Zone.OVERLAP)
    return replace(
        situation,
        state=ClusterState(workers=stays),
        workload=replace(situation.workload, trajectories=trajectories),
    )


def simulated(
    policy: str,
    *,
    horizon_s: float,
    world: Situation | None = None,
    trace: AvailabilityTrace | None = None,
    sets: Mapping[str, str] | None = None,
    seed: int = 0,
    batches: int | None = None,
) -> Report:
    """One policy, shipped or in a file, in a world."""
    rules = pearl.load_policy(policy, sets=sets or {})
    return run_experiment(
        Experiment(
            world=world or steady(),
            policy=rules,
            predictor=choose_predictor(rules, None),
            solver=choose_solver(rules, None),
            training=TRAINING,
            horizon_s=horizon_s,
            trace=trace,
            seed=seed,
            batches=batches,
        )
    )


@cache
def two_hours(policy: str) -> Report:
    """Two simulated hours of constant load."""
    return simulated(policy, horizon_s=7200.0)


def switches_after_the_first(report: Report) -> int:
    """Decisions to change something, the first one apart; a plan that is issued again changes nothing more."""
    decisions = [record for record in report.log if record.what is Happening.DECISION]
    return sum(bool(record.data["changes"]) for record in decisions[1:])
