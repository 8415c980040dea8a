"""The router's view of the pool: the GPU–worker–role state, where each engine listens, and its weight version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pearl.core.cluster import ClusterState, Role, Status, Worker
from pearl.errors import PearlError


class StalePoolError(PearlError):
    """A pool state that is older than the one in force, or differs from it under the same epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a worker's engine listens, and the version of the weights it holds."""

    url: str
    weight_version: int = 0


@dataclass(frozen=True, kw_only=True)
class Pool:
    """One consistent picture, replaced as a whole."""

    state: ClusterState = field(default_factory=lambda: ClusterState(workers=()))
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    oldest_weight_version: int = 0
    """Workers with older weights get no request, and legs on them are moved."""

    def __post_init__(self) -> None:
        if missing := sorted(self.state.by_id.keys() ^ self.endpoints.keys()):
            raise ValueError(f"workers and endpoints must match; one alone: {', '.join(missing)}")

    @property
    def epoch(self) -> int:
        """Raised by every change."""
        return self.state.epoch

    @cached_property
    def dispatchable(self) -> tuple[Worker, ...]:
        """Workers that may be given new legs."""
        return tuple(w for w in self.state.workers if w.serving and w.status is Status.ACTIVE and self.may_run(w.id))

    def may_run(self, worker: str) -> bool:
        """Whether legs that run on `worker` may go on: a draining or leaving worker finishes what it has."""
        known = self.state.by_id.get(worker)
        return (
            known is not None
            and known.status is not Status.INACTIVE
            and known.role is not Role.INACTIVE
            and self.endpoints[worker].weight_version >= self.oldest_weight_version
        )

    def weight_version(self, worker: str) -> int | None:
        """The worker's weight version; None for a worker that is not in the pool."""
        endpoint = self.endpoints.get(worker)
        return endpoint.weight_version if endpoint else None


def replace_pool(current: Pool, proposed: Pool) -> Pool:
    """The pool in force after `proposed` arrives; arriving twice changes nothing.

    Raises `StalePoolError` for an epoch that is not newer, so that messages out of order cannot undo one another.
    """
    if proposed == current:
        return current
    if proposed.epoch <= current.epoch:
        raise StalePoolError(
            f"pool state has epoch {proposed.epoch}, and the one in force {current.epoch}: "
            f"observe it (GET /pearl/v1/pool) and propose epoch {current.epoch + 1} or later"
        )
    return proposed


def drain_worker(pool: Pool, worker: str) -> Pool:
    """The pool in which `worker` gets nothing new, one epoch later; `pool` itself where that is so already."""
    known = pool.state.by_id[worker]
    if known.status is not Status.ACTIVE:
        return pool
    workers = (replace(w, status=Status.TRANSITIONING) if w.id == worker else w for w in pool.state.workers)
    return replace(pool, state=pool.state.with_workers(workers))
