"""Time of one decision, solver by solver and size by size: from a situation in memory to its plan.

    python benchmarks/decision.py [--workers 16 …] [--solver cpsat …] [--predictor network …] [--repeat 7] [--check]

The policy is `pearl`; a quarter of the workers is reserved, half preemptible, a quarter borrowable, eight to a node,
all but the last colocated today, and four trajectories come to a worker. Columns, in processor milliseconds, each the
least of the repeats (other work on the machine can only add to it):

    tables   the predictor's makespan tables
    build    rows of the problem with all gates (0 where the solver reads the problem itself)
    solve    every tier of that problem
    plan     the plan alone
    warm     the whole tick with the tables remembered, as between two fits of the profile: group, bind, solve without
             borrowing and with every gate, re-check, plan
    total    the whole tick on new profiles, tables included
    explain  what it adds to a keep to name the configuration that a gate turned down: another solve

A `*` marks what is over its limit; with --check the exit code is then 1 if it is the solve or the warm tick. Machines
differ: compare the calibration loop printed first.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import process_time

from pearl.api import situation_of
from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.situation import Situation
from pearl.errors import SolverError
from pearl.makespan.cached import CachedPredictor
from pearl.makespan.profile import batch_profile, demand_rates
from pearl.makespan.protocol import Predictor
from pearl.makespan.registry import get_predictor, predictor_names
from pearl.planning import make_plan
from pearl.policy.load import load_policy
from pearl.policy.model import Policy
from pearl.scenario.load import load_scenario
from pearl.scheduler import Tick, deliberate
from pearl.solving.driver import solve_problem
from pearl.solving.protocol import Solver
from pearl.solving.registry import resolve

SIZES = (8, 16, 64, 256, 1024, 4096)
WORKERS_PER_NODE = 8
TRAJECTORIES_PER_WORKER = 4
LIMITS_MS = {
    ("cpsat", 16, "warm"): 25.0,
    ("cpsat", 16, "total"): 25.0,
    ("cpsat", 4096, "warm"): 150.0,
    ("cpsat", 4096, "total"): 150.0,
    ("enumerate", 16, "solve"): 1.0,
}
CHECKED = ("warm", "solve")
"""Columns whose limits --check enforces; a star at `total` says that the tables do not fit in as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Processor milliseconds of one predictor, solver and size."""

    tables: float
    build: float
    solve: float
    plan: float
    warm: float
    total: float
    explain: float
    outcome: str


def main() -> int:
    """Print the table; 1 where --check finds a limit missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--solver", action="append")
    parser.add_argument("--predictor", action="append")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    policy, scenario = load_policy("pearl"), situation_of(load_scenario("qwen3-8b-swe"))
    print(f"calibration: {calibration_ms():.0f} ms")
    print(f"{'predictor':<10}{'workers':>8}  {'solver':<10}" + "".join(f"{name:>9}" for name in COLUMNS) + "  outcome")
    missed = 0
    for predictor in arguments.predictor or predictor_names():
        for workers in arguments.workers or SIZES:
            situation = sized(scenario, workers)
            for solver in arguments.solver or ("enumerate", "cpsat"):
                row = measured(situation, policy, get_predictor(predictor), resolve(solver), arguments.repeat)
                shown, over = cells(row, solver, workers)
                missed += over
                print(f"{predictor:<10}{workers:>8}  {solver:<10}{shown}", flush=True)
    return 1 if missed and arguments.check else 0


COLUMNS = ("tables", "build", "solve", "plan", "warm", "total", "explain")


def cells(row: Row | str, solver: str, workers: int) -> tuple[str, int]:
    """The row's cells, a star at each that is over its limit, and how many of those count."""
    if isinstance(row, str):
        return "".join(f"{'–':>9}" for _ in COLUMNS) + f"  {row}", 0
    parts, over = [], 0
    for name in COLUMNS:
        value = getattr(row, name)
        star = value > LIMITS_MS.get((solver, workers, name), math.inf)
        over += star and name in CHECKED
        parts.append(f"{value:>8.2f}{'*' if star else ' '}")
    return "".join(parts) + f"  {row.outcome}", over


def measured(situation: Situation, policy: Policy, predictor: Predictor, solver: Solver, repeat: int) -> Row | str:
    """The figures of a case; where the solver refuses its size, why."""
    assert situation.workload is not None
    workload, warm = situation.workload, CachedPredictor(predictor)

    def tick(model: Predictor, *, explain: bool) -> Tick:
        return deliberate(situation, policy, predictor=model, solver=solver, explain=explain)

    def tick_on_new_profiles() -> Tick:
        batch_profile.cache_clear()
        demand_rates.cache_clear()
        return tick(predictor, explain=False)

    try:
        found = tick(warm, explain=True)
    except SolverError as e:
        return f"refused: {e}"
    verdict = found.verdict
    assert verdict is not None
    solutions = [solve_problem(verdict.problem, solver, timer=process_time) for _ in range(repeat)]
    pool, groups = situation.state, verdict.posed.groups
    warm_ms = timed_ms(lambda: tick(warm, explain=False), repeat)
    return Row(
        tables=timed_ms(lambda: predictor.tables(workload, situation.engine, workers=len(pool.workers)), repeat),
        build=1e3 * min(solution.build_s for solution in solutions),
        solve=1e3 * min(solution.solve_s for solution in solutions),
        plan=timed_ms(lambda: make_plan(pool, groups, verdict.assignment, situation.costs), repeat),
        warm=warm_ms,
        total=timed_ms(tick_on_new_profiles, repeat),
        explain=timed_ms(lambda: tick(warm, explain=True), repeat) - warm_ms,
        outcome=f"{found.decision.outcome.value} {found.decision.counts.label()}",
    )


def timed_ms(work: Callable[[], object], repeat: int) -> float:
    """Least processor milliseconds of the repeats."""
    samples = []
    for _ in range(repeat):
        gc.collect()
        started = process_time()
        work()
        samples.append(process_time() - started)
    return 1e3 * min(samples)


def calibration_ms() -> float:
    """Processor milliseconds of a million additions in Python: by this machines can be compared."""

    def work() -> int:
        total = 0
        for i in range(1_000_000):
            total += i
        return total

    return timed_ms(work, 5)


def sized(situation: Situation, workers: int) -> Situation:
    """The situation on so many workers, with so many trajectories for each."""
    assert situation.workload is not None
    workload = replace(situation.workload, trajectories=TRAJECTORIES_PER_WORKER * workers)
    return replace(situation, state=ClusterState(workers=tuple(_pool(workers))), workload=workload)


def _pool(workers: int) -> Iterator[Worker]:
    for i in range(workers):
        zone = (Zone.RESERVED, Zone.PREEMPTIBLE, Zone.PREEMPTIBLE, Zone.OVERLAP)[4 * i // workers]
        node = f"node-{i // WORKERS_PER_NODE}"
        idle = zone is Zone.OVERLAP
        yield Worker(
            id=f"{node}/{i % WORKERS_PER_NODE}",
            node=node,
            zone=zone,
            role=Role.INACTIVE if idle else Role.COLOCATED,
            status=Status.INACTIVE if idle else Status.ACTIVE,
        )


if __name__ == "__main__":
    sys.exit(main())
