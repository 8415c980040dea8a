"""How often each policy switches when there is no reason to, and when there is one all the time.

    python benchmarks/stability.py [--horizon 7200] [--policy pearl --policy prorsa …]

Constant load: twelve GPUs that stay, the same workload batch after batch. Oscillation: between four and eight of them
are preemptible and come and go with a period of 5 or 20 minutes, 20 s of notice each time. A pool that grows and
shrinks must be resized; what must not follow every edge is the mode and the ratio. Everything is simulated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pearl
from pearl.api import choose_predictor, choose_solver, situation_of
from pearl.core.cluster import ClusterState, Zone
from pearl.core.problem import Change
from pearl.core.situation import Situation
from pearl.sim.experiment import Experiment, Report, run_experiment
from pearl.sim.log import Happening
from pearl.sim.pipeline import TrainingCost
from pearl.sim.study import DEMAND_SOURCES, TICK_S
from pearl.sim.traces.availability import AvailabilityTrace
from pearl.sim.traces.generator import oscillate

SCENARIO = "qwen3-8b-swe"
NO_THRESHOLDS = {"mode_floor": "0s", "mode_share": "0", "ratio_floor": "0s", "ratio_share": "0"}
POLICIES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "pearl": ("pearl", {}),
    "pearl, no thresholds": ("pearl", NO_THRESHOLDS),
    "prorsa": ("prorsa", {}),
    "rlboost-plus": ("rlboost-plus", {}),
    "roll-fixed": ("roll-fixed", {}),
}
"""Policies by the name that is printed, with parameters set; the second shows what hysteresis is for."""
HORIZON_S = 7200.0
TRAJECTORIES = 24
"""Small batches: many of them, hence many occasions to switch."""
TRAINING = TrainingCost(step_s=20.0)
"""Shorter than any batch, so that rollout sets the pace."""
PERIODS_S = (300.0, 1200.0)
LOW_NODES, HIGH_NODES, NOTICE_S = 4, 8, 20.0
MOST_SWITCHES_AT_REST = 1
COLUMNS = " batches  decisions  later switches   mode  ratio  resize  lost"


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one policy did in one world."""

    batches: int
    decisions: int
    later: int
    """Decisions that changed something, the first apart, which leaves the scenario's own start."""
    mode: int
    ratio: int
    resize: int
    lost: int

    def __str__(self) -> str:
        return (
            f"{self.batches:8}{self.decisions:11}{self.later:16}{self.mode:7}{self.ratio:7}{self.resize:8}{self.lost:6}"
        )


def world() -> Situation:
    """The main scenario without its training GPUs: nothing is lent, so that nothing is to be returned."""
    situation = situation_of(pearl.load_scenario(SCENARIO))
    assert situation.workload is not None
    stay = tuple(worker for worker in situation.state.workers if worker.zone is not Zone.OVERLAP)
    return replace(
        situation,
        state=ClusterState(workers=stay),
        workload=replace(situation.workload, trajectories=TRAJECTORIES),
    )


def simulated(policy: str, *, horizon_s: float, trace: AvailabilityTrace | None = None) -> Line:
    """One policy, for so long, with or without a trace of its preemptible GPUs."""
    name, sets = POLICIES[policy]
    rules = pearl.load_policy(name, sets=sets)
    report = run_experiment(
        Experiment(
            world=world(),
            policy=rules,
            predictor=choose_predictor(rules, None),
            solver=choose_solver(rules, None),
            training=TRAINING,
            horizon_s=horizon_s,
            trace=trace,
            tick_every_s=TICK_S if rules.sources & DEMAND_SOURCES else None,
        )
    )
    return line_of(report)


def line_of(report: Report) -> Line:
    """The figures of a run."""
    changed = [bool(record.data["changes"]) for record in report.log if record.what is Happening.DECISION]
    return Line(
        batches=len(report.rollout.makespans_s),
        decisions=report.decisions,
        later=sum(changed[1:]),
        mode=report.switches[Change.MODE],
        ratio=report.switches[Change.RATIO],
        resize=report.switches[Change.RESIZE],
        lost=report.rollout.lost,
    )


def report(policies: Sequence[str], *, horizon_s: float, periods_s: Sequence[float] = PERIODS_S) -> bool:
    """Print a table for each world; whether the policy `pearl` keeps still under constant load, and nothing is lost."""
    steady = True
    worlds: list[tuple[str, AvailabilityTrace | None]] = [("constant load", None)]
    for period_s in periods_s:
        wave = oscillate(
            low_nodes=LOW_NODES, high_nodes=HIGH_NODES, period_s=period_s, horizon_s=horizon_s, grace_s=NOTICE_S
        )
        worlds.append((f"oscillation, {2 * horizon_s / period_s:.0f} edges", wave))
    for name, trace in worlds:
        print(f"{f'{name}, {horizon_s / 3600:g} h simulated':44}{COLUMNS}")
        for policy in policies:
            line = simulated(policy, horizon_s=horizon_s, trace=trace)
            print(f"{'  ' + policy:44}{line}", flush=True)
            steady &= not line.lost
            if trace is None and policy == "pearl":
                steady &= line.later <= MOST_SWITCHES_AT_REST
    return steady


def main() -> None:
    """Simulate every policy in every world; exit 1 where `pearl` does not keep still, or something is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--horizon", type=float, default=HORIZON_S, help="seconds simulated")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="repeatable; all if not given")
    options = parser.parse_args()
    sys.exit(0 if report(options.policy or list(POLICIES), horizon_s=options.horizon) else 1)


if __name__ == "__main__":
    main()
