"""Ray under `pearl serve`: a cluster of its own on loopback, with several nodes on this machine, or one that runs.

An embedded cluster ends with the process that began it, however that ends, and its workers with it. Whoever wants
workers that outlive the controller runs Ray apart and joins it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator
from typing import Any

from pearl.core.cluster import Zone
from pearl.errors import Fault, PearlError, UsageError
from pearl.live.cluster.model import LiveCluster, LocalNode
from pearl.live.cluster.schema import LOCAL, is_loopback
from pearl.live.fleet import NODE_LABEL

LOOPBACK = "127.0.0.1"
HEAD = "head"
"""Name of the node that holds Ray's own services, and no worker."""
STORE_BYTES = 100 << 20
"""Object store of a node: legs and chunks are small, and weights do not pass through it."""
SPARE_CPUS = 4
"""Of a node, beyond those of its workers, for Ray's own tasks."""

_ENVIRONMENT = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_METRICS_EXPORT": "0",
}
_LOOPBACK_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Forces loopback addresses, also on machines whose own address cannot be reached."""
_SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
"""A node that is killed is seen to be dead within seconds; with Ray's own settings it takes 15."""


class RayStartError(PearlError):
    """Ray's own processes did not start on this machine."""


class EmbeddedRay:
    """A Ray cluster in child processes of this one. Calls block for the seconds that Ray takes; close it in the end."""

    def __init__(self, cluster: LiveCluster) -> None:
        _set_environment(loopback=True)
        from ray.cluster_utils import Cluster

        self._cluster = cluster
        self._nodes: dict[str, Any] = {}
        head = {
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
            "node_ip_address": LOOPBACK,
            "labels": {NODE_LABEL: HEAD},
            "_system_config": _SYSTEM_CONFIG,
        }
        with _starting(HEAD):
            self._ray: Any = Cluster(initialize_head=True, head_node_args=head)

    @property
    def address(self) -> str:
        """HOST:PORT to join it at."""
        return str(self._ray.address)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that hold workers."""
        return tuple(self._nodes)

    def add_node(self, name: str, zone: Zone, workers: int = 1) -> None:
        """Start a node that offers workers to a zone; raises `UsageError` where there is one of that name.

        Raises `RayStartError` where Ray does not start it.
        """
        if name in self._nodes or name == HEAD:
            raise UsageError(Fault(message=f"a node {name!r} runs already", expected="a new name"))
        settings = self._cluster.zones[zone]
        if settings.resource is None:
            raise UsageError(Fault(message=f"zone {zone} goes by label", expected="a resource, for a local node"))
        with _starting(name):
            self._nodes[name] = self._ray.add_node(
                num_cpus=math.ceil(settings.cpus * workers) + SPARE_CPUS,
                num_gpus=math.ceil(settings.gpus * workers),
                resources={settings.resource: workers},
                object_store_memory=STORE_BYTES,
                node_ip_address=LOOPBACK,
                node_name=name,
                labels={NODE_LABEL: name},
            )

    def remove_node(self, name: str, *, graceful: bool = True) -> None:
        """End a node and all on it; not graceful is how a preemption without notice looks. Idempotent."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._ray.remove_node(node, allow_graceful=graceful)

    def close(self) -> None:
        """End all nodes. Idempotent."""
        self._nodes.clear()
        self._ray.shutdown()


@contextlib.contextmanager
def connected(cluster: LiveCluster) -> Iterator[EmbeddedRay | None]:
    """Connect this process to the cluster's Ray; gives the embedded one, or None where one was joined.

    Raises `UsageError` where there is none to join, and `RayStartError` where none starts. Blocks for seconds: enter it
    before the event loop runs, in the main thread.
    """
    if cluster.ray.address != LOCAL:
        _join(cluster.ray.address, cluster.namespace)
        try:
            yield None
        finally:
            _leave()
        return
    embedded = EmbeddedRay(cluster)
    try:
        _add_nodes(embedded, cluster.ray.nodes)
        _join(embedded.address, cluster.namespace)
        yield embedded
    finally:
        _leave()
        embedded.close()


@contextlib.contextmanager
def _starting(node: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, TimeoutError) as e:
        hint = "its logs are in /tmp/ray/session_latest/logs"
        raise RayStartError(f"Ray did not start node {node!r}: {_first_line(e)} ({hint})") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _add_nodes(embedded: EmbeddedRay, nodes: tuple[LocalNode, ...]) -> None:
    for node in nodes:
        embedded.add_node(node.name, node.zone, node.workers)


def _join(address: str, namespace: str) -> None:
    loopback = is_loopback(address.rpartition(":")[0].strip("[]"))
    _set_environment(loopback=loopback)
    import ray

    where = {"_node_ip_address": LOOPBACK} if loopback else {}
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING, **where)
    except (ConnectionError, RuntimeError, ValueError) as e:
        fault = Fault(
            message=f"cannot join Ray at {address}: {_first_line(e)}",
            expected="a Ray cluster that runs",
            hint="start one with `ray start --head`, or use ray.address local",
        )
        raise UsageError(fault) from None


def _leave() -> None:
    import ray

    ray.shutdown()


def _set_environment(*, loopback: bool) -> None:
    """Before Ray is imported: it reads these then. What the user has set stands."""
    for name, value in {**_ENVIRONMENT, **(_LOOPBACK_ENVIRONMENT if loopback else {})}.items():
        os.environ.setdefault(name, value)
