"""GPU-seconds by zone, role and status: what the pool cost, and what of it served."""

from __future__ import annotations

from collections.abc import Mapping

from pearl.core.cluster import Role, Status, Worker, Zone

UsageKey = tuple[Zone, Role, Status]


class UsageMeter:
    """Adds up how long each worker held its GPUs in which role and status."""

    def __init__(self) -> None:
        self._since_s: dict[str, tuple[float, Worker]] = {}
        self._gpu_s: dict[UsageKey, float] = {}

    def put(self, now_s: float, worker: Worker) -> None:
        """From `now_s` on the worker is as given."""
        self.remove(now_s, worker.id)
        self._since_s[worker.id] = (now_s, worker)

    def remove(self, now_s: float, worker_id: str) -> None:
        """The worker's GPUs are gone."""
        since = self._since_s.pop(worker_id, None)
        if since is not None:
            self._add(now_s, *since)

    def read(self, now_s: float) -> Mapping[UsageKey, float]:
        """GPU-seconds up to `now_s`."""
        for since_s, worker in list(self._since_s.values()):
            self._add(now_s, since_s, worker)
            self._since_s[worker.id] = (now_s, worker)
        return dict(self._gpu_s)

    def _add(self, now_s: float, since_s: float, worker: Worker) -> None:
        key = (worker.zone, worker.role, worker.status)
        self._gpu_s[key] = self._gpu_s.get(key, 0.0) + (now_s - since_s) * worker.gpus
