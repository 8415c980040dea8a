"""Seams of the control plane to live workers, to the nodes that hold them, and to the router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from pearl.core.cluster import Worker
from pearl.live.engine.engine import EngineReport, TransitionLimits
from pearl.live.router.pool import Pool


class WorkerHandle(Protocol):
    """A live worker, as `pearl.live.worker.RayWorker`: every call raises `EngineError` and has a limit of its own."""

    @property
    def name(self) -> str:
        """The worker's id."""
        ...

    async def start(self, timeout_s: float) -> EngineReport:
        """Start the engine and try it with a canary; inactive until admitted."""
        ...

    async def admit(self) -> None:
        """Let it serve."""
        ...

    async def drain(self, grace_s: float) -> int:
        """Let it serve no more; returns the number of legs cut short."""
        ...

    async def update_weights(self, *, version: int, directory: Path, limits: TransitionLimits) -> None:
        """Serve other weights; raises `UnfitError` where that fails."""
        ...

    async def sleep(self, limits: TransitionLimits) -> int:
        """Give device memory back; returns the bytes freed."""
        ...

    async def wake(self, limits: TransitionLimits) -> None:
        """Take device memory again; inactive until admitted."""
        ...

    async def report(self) -> EngineReport:
        """What it says of itself."""
        ...

    async def canary(self, *, id: str, timeout_s: float) -> None:
        """A tiny generation; raises `CanaryError`. `id` must be new."""
        ...

    async def canary_from(self, prefill: Self, *, id: str, timeout_s: float) -> None:
        """A tiny KV transfer from `prefill`; raises `CanaryError`. `id` must be new."""
        ...

    async def stop(self) -> None:
        """End engine and actor, whatever state they are in. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the Ray cluster that is alive, and how many workers each zone may place on it."""

    name: str
    id: str
    """Ray's own id, to place actors with."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """By zone."""


class Fleet(Protocol):
    """Makes and finds workers. Calls return at once: engines start by the handle."""

    def launch(self, worker: Worker) -> WorkerHandle:
        """Create the worker's actor on its node.

        Its engine starts with the model's own weights, as version 0, and is updated then.
        """
        ...

    def find(self, worker_id: str) -> WorkerHandle | None:
        """The actor of that name; None where none lives."""
        ...

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive now."""
        ...


class Dispatch(Protocol):
    """What the control plane asks of the router, as `pearl.live.router.service.Router`."""

    def set_pool(self, proposed: Pool) -> Pool:
        """Replace the pool as a whole, at once."""
        ...

    async def empty(self, worker: str, *, deadline_s: float) -> int:
        """Wait until nothing runs on `worker`, which gets nothing new; returns the legs moved at the deadline."""
        ...
