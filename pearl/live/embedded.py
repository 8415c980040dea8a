"""Ray under `pearl serve`: a cluster of its own on loopback, with several nodes on this machine, or one that runs.

An embedded cluster ends with the process that began it, however that ends, and its workers with it. Whoever wants
workers that outlive the controller runs Ray apart and joins it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
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
HOST_MODULE = "pearl.live.ray_host"
ANSWER_S = 180.0
"""A node starts in 3 s on free cores, and within a minute on a host that is busy with engines."""
CLOSE_S = 30.0
"""Then the host is killed, and the kernel ends its nodes with it."""
CONNECT_S = 5.0
LOGS_HINT = "its logs are in /tmp/ray/session_latest/logs"

_ENVIRONMENT = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_METRICS_EXPORT": "0",
    "RAY_worker_niceness": "0",
}
"""The last: Ray has its workers give way to all else on the host, and a request waits for an engine as for a router."""
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
    """A Ray cluster in child processes of this one. Calls block for the seconds that Ray takes, in any thread.

    Close it in the end; it ends with this process, however that ends.
    """

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._nodes: set[str] = set()
        self._asking = threading.Lock()
        self._host = subprocess.Popen(
            [sys.executable, "-m", HOST_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_host_environment(),
            start_new_session=True,  # Ctrl-C is for the controller, which ends this in order
        )
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _SYSTEM_CONFIG}
        self.address = self._start(HEAD, head)
        """HOST:PORT to join it at."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that hold workers, sorted."""
        return tuple(sorted(self._nodes))

    def add_node(self, name: str, zone: Zone, workers: int = 1) -> None:
        """Start a node that offers workers to a zone; raises `UsageError` where there is one of that name.

        Raises `RayStartError` where Ray does not start it.
        """
        if name in self._nodes or name == HEAD:
            raise UsageError(Fault(message=f"a node {name!r} runs already", expected="a new name"))
        settings = self._cluster.zones[zone]
        if settings.resource is None:
            raise UsageError(Fault(message=f"zone {zone} goes by label", expected="a resource, for a local node"))
        arguments = {
            "num_cpus": math.ceil(settings.cpus * workers) + SPARE_CPUS,
            "num_gpus": math.ceil(settings.gpus * workers),
            "resources": {settings.resource: workers},
        }
        self._start(name, arguments)
        self._nodes.add(name)

    def remove_node(self, name: str, *, graceful: bool = True) -> None:
        """End a node and all on it; not graceful is how a preemption without notice looks. Idempotent."""
        if name in self._nodes:
            self._nodes.discard(name)
            self._ask({"remove": name, "graceful": graceful})

    def close(self) -> None:
        """End all nodes. Idempotent."""
        self._nodes.clear()
        with self._asking:
            for pipe in (self._host.stdin, self._host.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                self._host.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                self._host.kill()
                self._host.wait()

    def _start(self, name: str, arguments: dict[str, Any]) -> str:
        common = {
            "object_store_memory": STORE_BYTES,
            "node_ip_address": LOOPBACK,
            "node_name": name,
            "labels": {NODE_LABEL: name},
        }
        try:
            return str(self._ask({"add": name, "arguments": {**common, **arguments}})["address"])
        except RayStartError as e:
            if name == HEAD:
                self.close()
            raise RayStartError(f"Ray did not start node {name!r}: {e} ({LOGS_HINT})") from None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The host's answer; raises `RayStartError` where it fails, is gone, or takes too long."""
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        with self._asking:
            try:
                self._host.stdin.write(json.dumps(request).encode() + b"\n")
                self._host.stdin.flush()
            except (OSError, ValueError):
                raise RayStartError("its host process has ended") from None
            if not select.select([self._host.stdout], [], [], ANSWER_S)[0]:
                self._host.kill()
                raise RayStartError(f"no answer in {ANSWER_S:g} s")
            line = self._host.stdout.readline()
        if not line:
            raise RayStartError("its host process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RayStartError(answer["error"])
        return answer


@contextlib.contextmanager
def connected(cluster: LiveCluster) -> Iterator[EmbeddedRay | None]:
    """Connect this process to the cluster's Ray; gives the embedded one, or None where one was joined.

    Raises `UsageError` where there is none to join, and `RayStartError` where none starts. Blocks for seconds: enter it
    before the event loop runs.
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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _add_nodes(embedded: EmbeddedRay, nodes: tuple[LocalNode, ...]) -> None:
    for node in nodes:
        embedded.add_node(node.name, node.zone, node.workers)


def _join(address: str, namespace: str) -> None:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    loopback = is_loopback(host)
    set_ray_environment(loopback=loopback)
    if host:
        _reach(host, int(port))
    import ray

    where = {"_node_ip_address": LOOPBACK} if loopback else {}
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING, **where)
    except (ConnectionError, RuntimeError, ValueError) as e:
        raise _no_ray(address, _first_line(e)) from None


def _reach(host: str, port: int) -> None:
    """Ray itself waits for minutes where nothing listens."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as e:
        raise _no_ray(f"{host}:{port}", e.strerror or str(e)) from None


def _no_ray(address: str, reason: str) -> UsageError:
    return UsageError(
        Fault(
            message=f"cannot join Ray at {address}: {reason}",
            expected="a Ray cluster that runs",
            hint="start one with `ray start --head`, or use ray.address local",
        )
    )


def _leave() -> None:
    import ray

    ray.shutdown()


def set_ray_environment(*, loopback: bool) -> None:
    """Set what Ray reads when it is imported: call it before. What the user has set stands."""
    for name, value in _ray_environment(loopback=loopback).items():
        os.environ.setdefault(name, value)


def _host_environment() -> dict[str, str]:
    """With this copy of PEARL to import, there and in the workers."""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    python_path = os.pathsep.join(part for part in path if part)
    patience = {"RAY_gcs_server_port_wait_time_s": f"{ANSWER_S:.0f}"}
    return {**patience, **_ray_environment(loopback=True), **os.environ, "PYTHONPATH": python_path}


def _ray_environment(*, loopback: bool) -> dict[str, str]:
    return {**_ENVIRONMENT, **(_LOOPBACK_ENVIRONMENT if loopback else {})}
