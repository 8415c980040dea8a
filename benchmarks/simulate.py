"""Time of `pearl simulate` on one core, scheduler included, against its budgets.

    python benchmarks/simulate.py [--case segment|large …] [--repeat 3] [--check]

segment   two hours of rollout and training on 4 reserved, up to 16 preemptible and 16 borrowable GPUs; 64 trajectories
large     ten minutes on 300 reserved, up to 600 preemptible and 100 borrowable GPUs; 4,096 trajectories

Both run the policy `pearl` with the predictor `network` and the policy's solver on the workload of `qwen3-8b-swe`.
Times are processor seconds, the least of the repeats (other work on the machine can only add to it), libraries loaded.
Machines differ: `loop` is a fixed calibration loop, run before and after, and `ratio` the time over it. With --check
the exit code is 1 where a case is over its budget, which says something on an idle machine only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import process_time

from pearl.api import choose_solver, situation_of
from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.situation import Situation
from pearl.makespan.registry import get_predictor
from pearl.policy.load import load_policy
from pearl.scenario.load import load_scenario
from pearl.sim.experiment import Experiment, Report, run_experiment
from pearl.sim.pipeline import TrainingCost
from pearl.sim.traces.generator import SpotMarket, generate

LOOP = 3_000_000
"""Rounds of the calibration loop: long against the ticks in which processor time is counted."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One simulated segment and its budget in processor seconds."""

    world: Callable[[], Situation]
    market: SpotMarket
    budget_s: float


def swe(*, trajectories: int, state: ClusterState | None = None) -> Situation:
    """The shipped scenario with a batch of another size, on another pool if one is given."""
    world = situation_of(load_scenario("qwen3-8b-swe"))
    assert world.workload is not None
    workload = replace(world.workload, trajectories=trajectories)
    return replace(world, workload=workload, state=world.state if state is None else state)


def pool(reserved: int, overlap: int) -> ClusterState:
    """Reserved workers that serve, and overlap workers that may be borrowed, eight to a node."""

    def worker(zone: Zone, index: int) -> Worker:
        serves = zone is Zone.RESERVED
        return Worker(
            id=f"{zone}/{index}",
            node=f"{zone}/{index // 8}",
            zone=zone,
            role=Role.COLOCATED if serves else Role.INACTIVE,
            status=Status.ACTIVE if serves else Status.INACTIVE,
        )

    zones = [Zone.RESERVED] * reserved + [Zone.OVERLAP] * overlap
    return ClusterState(workers=tuple(worker(zone, index) for index, zone in enumerate(zones)))


CASES = {
    "segment": Case(
        world=lambda: swe(trajectories=64),
        market=SpotMarket(max_nodes=16, abundance=0.7, changes_per_h=12, horizon_s=7200),
        budget_s=5.0,
    ),
    "large": Case(
        world=lambda: swe(trajectories=4096, state=pool(300, 100)),
        market=SpotMarket(max_nodes=600, abundance=0.7, changes_per_h=12, horizon_s=600),
        budget_s=120.0,
    ),
}


def simulated(case: Case) -> Report:
    """Run a case from nothing: no table, answer or trajectory is left from a run before."""
    policy = load_policy("pearl")
    return run_experiment(
        Experiment(
            world=case.world(),
            policy=policy,
            predictor=get_predictor("network"),
            solver=choose_solver(policy, None),
            training=TrainingCost(step_s=160),
            horizon_s=case.market.horizon_s,
            trace=generate(case.market, seed=1),
        )
    )


def loop_s() -> float:
    """Processor seconds of the calibration loop."""
    start = process_time()
    total, seen = 0, {}
    for i in range(LOOP):
        total += i * 3 % 7
        seen[i & 1023] = total
    return process_time() - start


def measured(name: str, case: Case, repeat: int) -> bool:
    """Run a case, print its line, and say whether it kept its budget."""
    spent, loops = [], [loop_s()]
    for _ in range(repeat):
        start = process_time()
        report = simulated(case)
        spent.append(process_time() - start)
        loops.append(loop_s())
    best, loop = min(spent), sum(loops) / len(loops)
    verdict = "ok" if best <= case.budget_s else "OVER"
    ratio = sum(spent) / len(spent) / loop
    print(
        f"{name:8} {best:7.2f} s of {case.budget_s:g} s  {verdict:4}  loop {loop:.2f} s, ratio {ratio:.1f};"
        f"  {len(report.rollout.batches)} batches, {report.rollout.finished} trajectories,"
        f" {report.decisions} decisions",
        flush=True,
    )
    return best <= case.budget_s


def main() -> None:
    """Print each case; exit 1 with --check where one is over its budget."""
    parser = argparse.ArgumentParser(description="Time of pearl simulate on one core.")
    parser.add_argument("--case", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="exit 1 where a budget is missed")
    options = parser.parse_args()
    simulated(replace(CASES["segment"], market=replace(CASES["segment"].market, horizon_s=60)))
    kept = [measured(name, CASES[name], options.repeat) for name in options.case]
    sys.exit(options.check and not all(kept))


if __name__ == "__main__":
    main()
