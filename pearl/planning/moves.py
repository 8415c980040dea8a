"""Which workers change role: the fewest that turn today's pool into the counts that were chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pearl.core.cluster import ClusterState, Role, Worker
from pearl.core.grouping import ALL_TARGETS, WorkerGroup, current_role
from pearl.core.problem import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A worker that goes from one role to another; one of the two may be inactive."""

    worker: Worker
    before: Role
    after: Role


def find_moves(state: ClusterState, groups: Sequence[WorkerGroup], assignment: Assignment) -> tuple[Move, ...]:
    """Moves of the workers that are free to choose: neither pinned nor about to leave.

    Workers of one pool are interchangeable, so only the totals per role matter: min(today, target) workers of each
    role stay as they are, and no plan for the same totals can change fewer. Raises ValueError where the groups or the
    assignment do not fit the state.
    """
    _check(state, groups, assignment)
    pools: defaultdict[tuple[object, ...], _Pool] = defaultdict(_Pool)
    for entry in groups:
        if len(entry.group.targets) == 1:
            continue
        pool = pools[entry.group.pool]
        for name in entry.workers:
            worker = state.by_id[name]
            pool.today[current_role(worker)].append(worker)
        for role in entry.group.targets:
            pool.target[role] += assignment.get((entry.group.id, role), 0)
    return tuple(move for pool in pools.values() for move in _pool_moves(pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    today: defaultdict[Role, list[Worker]] = field(default_factory=lambda: defaultdict(list))
    target: defaultdict[Role, int] = field(default_factory=lambda: defaultdict(int))


def _pool_moves(pool: _Pool) -> list[Move]:
    """Match the workers that a pool has too many of with the roles that it has too few of.

    Those most likely to be reclaimed give up their place first, and those least likely take one up.
    """
    spare: list[Worker] = []
    wanted: list[Role] = []
    for role in ALL_TARGETS:
        safest_first = sorted(pool.today[role], key=_risk)
        surplus = len(safest_first) - pool.target[role]
        if surplus > 0:
            spare += safest_first[:surplus] if role is Role.INACTIVE else safest_first[-surplus:]
        wanted += [role] * -surplus
    return [
        Move(worker=worker, before=current_role(worker), after=role)
        for worker, role in zip(sorted(spare, key=_risk), wanted, strict=True)
    ]


def _risk(worker: Worker) -> float:
    return worker.reclaim_probability


def _check(state: ClusterState, groups: Sequence[WorkerGroup], assignment: Assignment) -> None:
    names = [name for entry in groups for name in entry.workers]
    if len(names) != len(state.workers) or set(names) != state.by_id.keys():
        raise ValueError("the groups are not those of this state: each of its workers must be in exactly one")
    allowed = {(entry.group.id, role) for entry in groups for role in entry.group.targets}
    given: Mapping[tuple[str, Role], int] = {pair: number for pair, number in assignment.items() if number}
    if strange := sorted(pair for pair in given if pair not in allowed):
        raise ValueError(
            f"the assignment gives {strange[0][0]!r} the role {strange[0][1].value!r}, not one it may take"
        )
    placed: defaultdict[str, int] = defaultdict(int)
    for (group_id, _), number in given.items():
        placed[group_id] += number
    for entry in groups:
        if placed[entry.group.id] != entry.group.size:
            raise ValueError(
                f"the assignment places {placed[entry.group.id]} workers of {entry.group.id!r}, which has"
                f" {entry.group.size}"
            )
