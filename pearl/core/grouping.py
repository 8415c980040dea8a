"""Grouping: interchangeable workers become one group, so that a problem's size does not grow with the pool."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from pearl.core.cluster import SERVING_ROLES, ClusterState, Role, Status, Worker, Zone
from pearl.core.problem import Group

ALL_TARGETS = (*SERVING_ROLES, Role.INACTIVE)
"""Roles that a free worker may take, serving ones first; the order is part of every group and so of every model."""

_COMMON = ("zone", "gpus", "started", "must_leave", "status", "role")
"""Fields of a worker that decide its group, whatever the rules read."""

_DIGITS = re.compile("([0-9]+)")

KEYS_KEPT = 1 << 17
"""Sort keys remembered: every decision sorts the same ids, up to those of twice the largest pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """A group of the problem, and the ids of its workers in natural order."""

    group: Group
    workers: tuple[str, ...]


@lru_cache(maxsize=KEYS_KEPT)
def natural_key(text: str) -> tuple[str | int, ...]:
    """Sort key by which `node-2` comes before `node-10`: text and numbers alternate, so that keys always compare."""
    parts: list[str | int] = [*_DIGITS.split(text)]
    parts[1::2] = map(int, parts[1::2])
    return tuple(parts)


def current_role(worker: Worker) -> Role:
    """The role that a worker holds today: inactive while its status is, or while no engine runs on its GPUs.

    A transitioning worker holds the role that it is going to.
    """
    if worker.status is Status.TRANSITIONING:
        return worker.role
    return worker.role if worker.started and worker.status is Status.ACTIVE else Role.INACTIVE


def group_workers(state: ClusterState, *, by_node: bool, by_risk: bool) -> tuple[WorkerGroup, ...]:
    """Partition the workers of a state into groups of the same zone, GPUs, role and fate.

    `by_node` and `by_risk` also tell workers apart by node and by reclaim probability: ask for each only where a rule
    reads it, since every distinction enlarges the problem. The result depends on the set of workers alone, not on
    their order in the state; ids are stable (`preemptible/node-3/decode`, `overlap/inactive/x2/leaving`).
    """
    seen = attrgetter(*_COMMON, *(("node",) if by_node else ()), *(("reclaim_probability",) if by_risk else ()))
    alike: defaultdict[tuple[object, ...], list[Worker]] = defaultdict(list)
    for worker in state.workers:
        alike[seen(worker)].append(worker)
    members: defaultdict[_Key, list[str]] = defaultdict(list)
    for workers in alike.values():
        members[_key(workers[0], by_node=by_node, by_risk=by_risk)].extend(worker.id for worker in workers)
    return tuple(
        WorkerGroup(group=_group(key, len(members[key])), workers=tuple(sorted(members[key], key=natural_key)))
        for key in sorted(members, key=_order)
    )


class _Key(NamedTuple):
    """What the workers of a group have in common."""

    zone: Zone
    node: str | None
    risk: float
    gpus: int
    started: bool
    leaving: bool
    pinned: bool
    role: Role


def _key(worker: Worker, *, by_node: bool, by_risk: bool) -> _Key:
    return _Key(
        worker.zone,
        worker.node if by_node else None,
        worker.reclaim_probability if by_risk else 0.0,
        worker.gpus,
        worker.started,
        worker.must_leave,
        worker.status is Status.TRANSITIONING and not worker.must_leave,
        current_role(worker),
    )


def _order(key: _Key) -> tuple[object, ...]:
    zone, role = list(Zone).index(key.zone), ALL_TARGETS.index(key.role)
    return (zone, natural_key(key.node or ""), key.risk, key.gpus, key.leaving, not key.started, key.pinned, role)


def _group(key: _Key, size: int) -> Group:
    return Group(
        id=_id(key),
        zone=key.zone,
        role=key.role,
        size=size,
        targets=_targets(key),
        gpus_per_worker=key.gpus,
        node=key.node,
        reclaim_probability=key.risk,
        started=key.started,
        leaving=key.leaving,
    )


def _targets(key: _Key) -> tuple[Role, ...]:
    if key.leaving:
        return (Role.INACTIVE,)
    return (key.role,) if key.pinned else ALL_TARGETS


def _id(key: _Key) -> str:
    parts = (
        key.zone.value,
        key.node,
        key.role.value,
        f"risk={key.risk}" if key.risk else None,
        f"x{key.gpus}" if key.gpus != 1 else None,
        None if key.started else "new",
        "pinned" if key.pinned else None,
        "leaving" if key.leaving else None,
    )
    return "/".join(part for part in parts if part is not None)
