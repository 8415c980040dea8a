"""Build and solve times of one decision by workers, for each solver, with rules of several kinds.

    python benchmarks/solving.py [--workers 16 --workers 4096] [--solver cpsat] [--repeat 5]

Times are processor milliseconds (median of the repeats), so that other work on the machine counts little. Cases:
`plain` (KV capacity, hysteresis, borrow gate, churn), `budget` (a rate of spending over each path's time: tables),
`nodes` (32 workers a node, at most 24 decode workers on each), `pairs` (a ladder of measured pairs).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from statistics import median
from time import process_time

from pearl.core.cluster import SERVING_ROLES, Mode, Role, Zone
from pearl.core.problem import (
    UNREACHABLE_MS,
    Axis,
    BorrowTerms,
    DecisionProblem,
    Group,
    Hurdle,
    Linear,
    MakespanTables,
    PairRung,
    Rule,
    Table,
    Tier,
)
from pearl.errors import SolverError
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import evaluate, today
from pearl.solving.registry import resolve
from pearl.solving.tiers import changes_of

ALL_ROLES = (*SERVING_ROLES, Role.INACTIVE)
WORKERS_PER_NODE = 32
DECODE_PER_NODE = 24


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Build and solve times by workers")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--solver", action="append")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'case':<8}{'workers':>8}  {'solver':<14}{'build ms':>9}{'solve ms':>9}{'total ms':>9}  status")
    for name, case in CASES.items():
        for workers in arguments.workers or (8, 16, 64, 256, 1024, 4096):
            for solver in arguments.solver or ("enumerate", "cpsat"):
                print(f"{name:<8}{workers:>8}  {solver:<14}{timed(case(workers), solver, arguments.repeat)}")


def timed(problem: DecisionProblem, spec: str, repeat: int) -> str:
    """Median build, solve and total time in processor milliseconds, and the status."""
    solver = resolve(spec)
    rows: list[tuple[float, float, float]] = []
    for _ in range(repeat + 1):
        started = process_time()
        try:
            found = solve_problem(problem, solver, timer=process_time)
        except SolverError:
            return f"{'–':>9}{'–':>9}{'–':>9}  refused (too many points)"
        rows.append((found.build_s, found.solve_s, process_time() - started))
    medians = [1e3 * median(column) for column in zip(*rows[1:], strict=True)]
    return "".join(f"{value:>9.2f}" for value in medians) + f"  {found.status}"


def plain(workers: int) -> DecisionProblem:
    """Three zones, disaggregated today at 3:2, an overlap quarter idle."""
    reserved, preemptible = workers // 4, workers // 2
    overlap = workers - reserved - preemptible
    groups = [
        _group(f"{zone}/{role}", zone, role, size)
        for zone, size_of in ((Zone.RESERVED, reserved), (Zone.PREEMPTIBLE, preemptible))
        for role, size in ((Role.PREFILL, size_of * 3 // 5), (Role.DECODE, size_of - size_of * 3 // 5))
    ]
    return _posed((*groups, _group("overlap", Zone.OVERLAP, Role.INACTIVE, overlap)))


def budget(workers: int) -> DecisionProblem:
    """`usd_rate <= budget / T_prefill and usd_rate <= budget / T_decode`: rows over tables of both paths."""
    problem = plain(workers)
    price = {Zone.RESERVED: 4, Zone.PREEMPTIBLE: 2, Zone.OVERLAP: 1}
    rate = _counted(problem, lambda group, role: 1000 * price[group.zone] * (role is not Role.INACTIVE))
    rules = [
        Rule(
            name=f"budget_{axis}",
            when=Mode.DISAGGREGATED,
            expr=Linear(
                counts=rate,
                tables=(
                    Table(
                        axis=axis,
                        values=(0, *(-70_000_000 * workers // t for t in times)),
                    ),
                ),
            ),
        )
        for axis, times in ((Axis.PREFILL, problem.tables.prefill_ms[1:]), (Axis.DECODE, problem.tables.decode_ms[1:]))
    ]
    return replace(problem, rules=(*problem.rules, *rules))


def nodes(workers: int) -> DecisionProblem:
    """Workers told apart by node: a group for each node and role, a rule for each node."""
    groups: list[Group] = []
    for node in range(max(1, workers // WORKERS_PER_NODE)):
        size = min(WORKERS_PER_NODE, workers)
        zone = (Zone.RESERVED, Zone.PREEMPTIBLE, Zone.PREEMPTIBLE, Zone.OVERLAP)[node % 4]
        for role, share in ((Role.PREFILL, size // 2), (Role.DECODE, size - size // 2)):
            today_role = Role.INACTIVE if zone is Zone.OVERLAP else role
            group = _group(f"node-{node}/{role}", zone, today_role, share)
            groups.append(replace(group, node=f"node-{node}"))
    problem = _posed(tuple(groups))
    rules = [
        Rule(
            name=f"spread[{node}]",
            expr=Linear(
                constant=-DECODE_PER_NODE,
                counts=_counted(problem, partial(_decodes_on, node)),
            ),
        )
        for node in sorted({group.node for group in groups if group.node})
    ]
    return replace(problem, rules=(*problem.rules, *rules))


def _decodes_on(node: str | None, group: Group, role: Role) -> int:
    return int(group.node == node and role is Role.DECODE)


def pairs(workers: int) -> DecisionProblem:
    """A ladder of about 24 × 24 pairs, as the network predictor gives for large pools."""
    problem = plain(workers)
    steps = sorted({max(1, round(workers ** (k / 23))) for k in range(24)})
    rungs = tuple(
        PairRung(prefill=i, decode=j, makespan_ms=problem.tables.prefill_ms[i] + problem.tables.decode_ms[j] // 8)
        for i in steps
        for j in steps
        if i + j <= workers
    )
    return replace(problem, tables=replace(problem.tables, pairs=rungs), hurdle=None, borrow=BorrowTerms(max_workers=0))


CASES: dict[str, Callable[[int], DecisionProblem]] = {"plain": plain, "budget": budget, "nodes": nodes, "pairs": pairs}


def _group(name: str, zone: Zone, role: Role, size: int) -> Group:
    return Group(id=name, zone=zone, role=role, size=size, targets=ALL_ROLES)


def _posed(groups: tuple[Group, ...]) -> DecisionProblem:
    workers = sum(group.size for group in groups)
    tables = MakespanTables(
        colocated_ms=_curve(workers, 14_000), prefill_ms=_curve(workers, 6_250), decode_ms=_curve(workers, 5_600)
    )
    bare = DecisionProblem(groups=groups, tables=tables, tiers=(), current_mode=Mode.DISAGGREGATED)
    stay_ms = evaluate(bare, today(bare) or {}).makespan_ms
    weights = {"role_change": 3, "add": 2, "remove": 1}
    churn = tuple(sorted((group.id, role, weights[kind]) for group, role, kind in changes_of(bare)))
    capacity = _counted(bare, lambda _, role: -1000 * (role is Role.DECODE))
    overlap = sum(group.size for group in groups if group.zone is Zone.OVERLAP)
    return replace(
        bare,
        tiers=(
            Tier(name="makespan", terms=(Linear(makespan=1),), tolerance=Fraction(1, 100)),
            Tier(name="churn", terms=(Linear(counts=churn),)),
        ),
        rules=(Rule(name="kv", when=Mode.DISAGGREGATED, expr=Linear(constant=125 * workers, counts=capacity)),),
        hurdle=Hurdle(stay_ms=stay_ms, mode_ms=max(8_000, stay_ms // 20), ratio_ms=max(2_000, stay_ms * 15 // 1000)),
        borrow=BorrowTerms(max_workers=overlap, gate_ms=stay_ms),
    )


def _curve(workers: int, work: int) -> tuple[int, ...]:
    return (UNREACHABLE_MS, *(20_000 + work * workers // n for n in range(1, workers + 1)))


def _counted(problem: DecisionProblem, weight: Callable[[Group, Role], int]) -> tuple[tuple[str, Role, int], ...]:
    terms = ((group.id, role, weight(group, role)) for group in problem.groups for role in group.targets)
    return tuple(sorted(term for term in terms if term[2]))


if __name__ == "__main__":
    main()
