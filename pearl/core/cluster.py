"""The GPU–worker–role state: who is bound to which GPUs, in which role and status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import assert_never


class Zone(StrEnum):
    """Where a worker's GPUs come from."""

    RESERVED = "reserved"
    PREEMPTIBLE = "preemptible"
    OVERLAP = "overlap"
    """Training GPUs, idle between updates, that rollout may borrow and must return."""


class Role(StrEnum):
    """What a worker does for rollout."""

    COLOCATED = "colocated"
    PREFILL = "prefill"
    DECODE = "decode"
    INACTIVE = "inactive"


class Status(StrEnum):
    """Whether a worker serves."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    TRANSITIONING = "transitioning"
    """Draining or initialising: pinned to its role until done."""


class Mode(StrEnum):
    """How the whole pool executes prefill and decode."""

    COLOCATED = "colocated"
    DISAGGREGATED = "disaggregated"


SERVING_ROLES = (Role.COLOCATED, Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One serving engine, bound for life to its GPUs.

    `role` of a transitioning worker is the role it is going to. `started` is false while its GPUs are here and no
    engine runs on them yet. `must_leave` marks GPUs under a reclaim notice or a training start: the worker serves
    nothing in any decision, and the plan hands its GPUs back first.
    """

    id: str
    node: str
    zone: Zone
    role: Role
    status: Status
    gpus: int = 1
    gpu_type: str = ""
    started: bool = True
    must_leave: bool = False
    leave_within_s: float | None = None
    reclaim_probability: float = 0.0
    """Chance that the GPUs are taken within the policy's horizon, 0 to 1."""

    @property
    def serving(self) -> bool:
        """Whether the worker counts towards the pool of today."""
        return self.role is not Role.INACTIVE and not self.must_leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Number of workers by role; `borrowed` counts the serving ones of the overlap zone, whatever their role."""

    colocated: int = 0
    prefill: int = 0
    decode: int = 0
    inactive: int = 0
    borrowed: int = 0

    @property
    def mode(self) -> Mode | None:
        """The pool's mode; None while no worker serves."""
        if self.colocated:
            return Mode.COLOCATED
        return Mode.DISAGGREGATED if self.prefill or self.decode else None

    @property
    def serving(self) -> int:
        """Workers that serve."""
        return self.colocated + self.prefill + self.decode

    def of(self, role: Role) -> int:
        """The number of workers in `role`."""
        match role:
            case Role.COLOCATED:
                return self.colocated
            case Role.PREFILL:
                return self.prefill
            case Role.DECODE:
                return self.decode
            case Role.INACTIVE:
                return self.inactive
        assert_never(role)

    def label(self) -> str:
        """Short form in the field's notation: `12C`, `5P3D`, `idle`."""
        if self.colocated and (self.prefill or self.decode):
            return f"{self.colocated}C{self.prefill}P{self.decode}D"
        if self.colocated:
            return f"{self.colocated}C"
        return f"{self.prefill}P{self.decode}D" if self.prefill or self.decode else "idle"


def count_workers(workers: Iterable[Worker]) -> Counts:
    """Counts of the pool that stays: a worker that must leave counts as inactive."""
    tally = dict.fromkeys(Role, 0)
    borrowed = 0
    for worker in workers:
        role = worker.role if worker.serving else Role.INACTIVE
        tally[role] += 1
        borrowed += worker.zone is Zone.OVERLAP and role is not Role.INACTIVE
    return Counts(
        colocated=tally[Role.COLOCATED],
        prefill=tally[Role.PREFILL],
        decode=tally[Role.DECODE],
        inactive=tally[Role.INACTIVE],
        borrowed=borrowed,
    )


def count_gpus(workers: Iterable[Worker]) -> int:
    """GPUs held by the workers: the one place where GPUs are counted."""
    return sum(worker.gpus for worker in workers)


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """The one shared record of bindings, roles and statuses; every change raises `epoch`."""

    workers: tuple[Worker, ...]
    epoch: int = 0

    def __post_init__(self) -> None:
        ids = [worker.id for worker in self.workers]
        if len(set(ids)) != len(ids):
            twice = sorted({i for i in ids if ids.count(i) > 1})
            raise ValueError(f"worker ids must be unique; twice: {', '.join(twice)}")

    @cached_property
    def counts(self) -> Counts:
        """Counts of the pool that stays."""
        return count_workers(self.workers)

    @cached_property
    def by_id(self) -> dict[str, Worker]:
        """Workers by id."""
        return {worker.id: worker for worker in self.workers}

    def with_workers(self, workers: Iterable[Worker]) -> ClusterState:
        """The next state, one epoch later."""
        return replace(self, workers=tuple(workers), epoch=self.epoch + 1)
