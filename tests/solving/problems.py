"""Hand-made problems whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pearl.core.cluster import SERVING_ROLES, Mode, Role, Zone
from pearl.core.problem import (
    UNREACHABLE_MS,
    BorrowTerms,
    DecisionProblem,
    Group,
    Linear,
    MakespanTables,
    Tier,
)

ALL_ROLES = (*SERVING_ROLES, Role.INACTIVE)
MAKESPAN = Tier(name="makespan", terms=(Linear(makespan=1),))


def group(id: str, role: Role, size: int, **other: Any) -> Group:
    return Group(id=id, role=role, size=size, **{"zone": Zone.RESERVED, "targets": ALL_ROLES, **other})


def curve(workers: int, work: int, *, floor: int = 1_000) -> tuple[int, ...]:
    """floor + work/n, in ms."""
    return (UNREACHABLE_MS, *(floor + work // n for n in range(1, workers + 1)))


def three_and_one() -> DecisionProblem:
    """3P1D today, 4 workers; best is 2P2D: T = max(1000 + 6000/2, 1000 + 6000/2) = 4000, today 7000."""
    return DecisionProblem(
        groups=(group("p", Role.PREFILL, 3), group("d", Role.DECODE, 1)),
        tables=MakespanTables(colocated_ms=curve(4, 20_000), prefill_ms=curve(4, 6_000), decode_ms=curve(4, 6_000)),
        tiers=(MAKESPAN,),
        current_mode=Mode.DISAGGREGATED,
    )


def with_idle_overlap(problem: DecisionProblem, size: int, borrow: BorrowTerms) -> DecisionProblem:
    workers = sum(g.size for g in problem.groups) + size
    return replace(
        problem,
        groups=(*problem.groups, group("o", Role.INACTIVE, size, zone=Zone.OVERLAP)),
        tables=MakespanTables(
            colocated_ms=curve(workers, 20_000), prefill_ms=curve(workers, 6_000), decode_ms=curve(workers, 6_000)
        ),
        borrow=borrow,
    )


def pool(workers: int) -> DecisionProblem:
    """A disaggregated pool over three zones, an overlap quarter idle, makespans like 1/n."""
    reserved, preemptible = workers // 4, workers // 2
    overlap = workers - reserved - preemptible
    groups = [
        group(f"{zone}/{role}", role, size, zone=zone)
        for zone, total in ((Zone.RESERVED, reserved), (Zone.PREEMPTIBLE, preemptible))
        for role, size in ((Role.PREFILL, total * 3 // 5), (Role.DECODE, total - total * 3 // 5))
    ]
    return DecisionProblem(
        groups=(*groups, group("overlap", Role.INACTIVE, overlap, zone=Zone.OVERLAP)),
        tables=MakespanTables(
            colocated_ms=curve(workers, 14_000 * workers, floor=20_000),
            prefill_ms=curve(workers, 6_000 * workers, floor=20_000),
            decode_ms=curve(workers, 5_600 * workers, floor=20_000),
        ),
        tiers=(MAKESPAN,),
        current_mode=Mode.DISAGGREGATED,
        borrow=BorrowTerms(max_workers=overlap),
    )
