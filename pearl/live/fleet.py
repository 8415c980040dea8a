"""The workers of a live cluster as actors of Ray: placed on nodes, found again by name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pearl.core.cluster import Worker
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.offers import capacity
from pearl.live.control.fleet import Node
from pearl.live.engine.config import EngineConfig
from pearl.live.protocol import EngineUnavailableError
from pearl.live.worker import RayEngines, RayWorker

NODE_LABEL = "pearl-node"
"""Label of a Ray node that names it."""
ID_DIGITS = 12
"""Of a node's id, where it has no name: 48 bits tell any nodes apart."""
LOOK_TIMEOUT_S = 10.0
"""For a question to Ray's own services; they answer in milliseconds, and not at all while they are down."""
T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class RayFleet:
    """Makes and finds the workers of one cluster, in a Ray namespace of their own: the `Fleet` of the control plane.

    The actor of a worker has the worker's id as its name. Ray must be connected before.
    """

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._nodes: dict[str, _RayNode] = {}

    @property
    def engines(self) -> RayEngines:
        """What the router reaches the workers by."""
        return RayEngines(namespace=self._cluster.namespace)

    def launch(self, worker: Worker) -> RayWorker:
        """Create the worker's actor on its node, or take the one that lives; raises `EngineUnavailableError`.

        Waits for no engine: `start` of the handle does. An actor that finds no place fails there.
        """
        zone = self._cluster.zones[worker.zone]
        node = self._node(worker)
        try:
            return RayWorker.launch(
                engine_config(self._cluster, worker, kv_host=node.address),
                cpus=zone.cpus,
                gpus=zone.gpus,
                resources={zone.resource: 1} if zone.resource else None,
                namespace=self._cluster.namespace,
                node_id=node.id,
            )
        except ValueError as e:
            raise EngineUnavailableError(f"{worker.id}: Ray refuses its actor: {e}") from None

    def find(self, worker_id: str) -> RayWorker | None:
        """The worker's actor; None where none lives."""
        try:
            return RayWorker.find(worker_id, namespace=self._cluster.namespace)
        except EngineUnavailableError:
            return None

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive now. Raises `EngineUnavailableError` where Ray does not answer."""
        self._learn(await _ask(_ray_nodes))
        return tuple(Node(name=name, id=node.id, workers=node.workers) for name, node in self._nodes.items())

    async def living(self) -> dict[str, RayWorker]:
        """All actors of this cluster, by worker id. Raises `EngineUnavailableError` where Ray does not answer."""
        names = await _ask(lambda: _actor_names(self._cluster.namespace))
        found = {name: self.find(name) for name in names}
        return {name: worker for name, worker in found.items() if worker is not None}

    def _node(self, worker: Worker) -> _RayNode:
        if worker.node not in self._nodes:
            self._learn(_ray_nodes())
        if worker.node not in self._nodes:
            raise EngineUnavailableError(f"{worker.id}: no node {worker.node!r} is alive in the Ray cluster")
        return self._nodes[worker.node]

    def _learn(self, raw: Sequence[Mapping[str, Any]]) -> None:
        named = name_nodes(raw, {node.id: name for name, node in self._nodes.items()})
        self._nodes = {
            name: _RayNode(
                id=node["NodeID"], address=node["NodeManagerAddress"], workers=capacity(self._cluster.zones, node)
            )
            for name, node in named.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _RayNode:
    """A node that is alive, as Ray tells of it."""

    id: str
    address: str
    workers: Mapping[str, int]


def name_nodes(raw: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """The nodes that are alive, by name: label `pearl-node`, else Ray's name for it, else the start of its id.

    `known` are names by id: a node keeps its name, and of two with one name the newcomer goes by its id.
    """
    alive = sorted((node for node in raw if node.get("Alive")), key=lambda node: node["NodeID"] not in known)
    named: dict[str, Mapping[str, Any]] = {}
    for node in alive:
        own = (node.get("Labels") or {}).get(NODE_LABEL) or node.get("NodeName") or ""
        by_id = str(node["NodeID"])[:ID_DIGITS]
        name = known.get(node["NodeID"]) or (own if _NAME.fullmatch(own) else by_id)
        named[by_id if name in named else name] = node
    return named


def engine_config(cluster: LiveCluster, worker: Worker, *, kv_host: str) -> EngineConfig:
    """What the worker's engine is told.

    Every engine starts from the model's path, and gets published weights by an update: NIXL compares the paths that two
    engines were started from, and refuses the transfer where they differ.
    """
    engine = cluster.engine
    return EngineConfig(
        worker=worker.id,
        model=cluster.model.path,
        device=cluster.device,
        kv_port=cluster.kv_ports.start,
        kv_port_count=len(cluster.kv_ports),
        kv_host=kv_host,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_model_tokens=engine.max_model_tokens,
        max_sequences=engine.max_sequences,
        max_batched_tokens=engine.max_batched_tokens,
        tensor_parallel=engine.tensor_parallel,
        kv_lease_s=engine.kv_lease_s,
        kv_margin_s=engine.kv_margin_s,
    )


async def _ask(question: Callable[[], T]) -> T:
    """The answer of a blocking call to Ray, off the loop."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await asyncio.to_thread(question)
    except TimeoutError:
        raise EngineUnavailableError(f"Ray did not answer in {LOOK_TIMEOUT_S:g} s") from None
    except Exception as e:
        raise EngineUnavailableError(f"Ray does not answer: {type(e).__name__}: {e}") from None


def _ray_nodes() -> list[dict[str, Any]]:
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()
    return nodes


def _actor_names(namespace: str) -> list[str]:
    import ray

    return [
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == namespace
    ]
