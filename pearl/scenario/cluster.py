"""Pools and workers of a scenario become the GPU–worker–role state.

A worker of tensor-parallel size t holds t GPUs of one node, so a node serves gpus / t workers, and a remainder is a
fault rather than GPUs that nobody counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone, count_gpus
from pearl.documents import Document, PathKey
from pearl.errors import Fault
from pearl.scenario.schema import MAX_WORKERS, ClusterSpec, PoolSpec, WorkerSpec

_ROOT: PathKey = ("spec", "cluster")


def build_cluster(spec: ClusterSpec, document: Document, *, gpu: str) -> tuple[ClusterState, list[Fault]]:
    """The state, with every fault found (then it is partial); `gpu` is the GPU type where the cluster names none."""
    faults = _size_faults(spec, document)
    if faults:
        return ClusterState(workers=()), faults
    build = _Build(spec=spec, document=document, gpu=spec.gpu or gpu)
    for index, pool in enumerate(spec.pools):
        build.add_pool(pool, (*_ROOT, "pools", index))
    for index, worker in enumerate(spec.workers):
        build.add_worker(worker, (*_ROOT, "workers", index))
    state = ClusterState(workers=tuple(build.workers.values()))
    held = count_gpus(state.workers)
    if spec.max_gpus is not None and held > spec.max_gpus:
        build.fault((*_ROOT, "max_gpus"), f"the cluster holds {held} GPUs", expected=f"at most {spec.max_gpus}")
    return state, build.faults


def _size_faults(spec: ClusterSpec, document: Document) -> list[Fault]:
    """Faults of the pools' sizes, found before a single worker is made."""
    faults = []
    for index, pool in enumerate(spec.pools):
        if left := pool.gpus_per_node % spec.tensor_parallel:
            faults.append(
                Fault(
                    message=f"{pool.gpus_per_node} GPUs per node leave {left} over",
                    span=document.span((*_ROOT, "pools", index, "gpus_per_node")),
                    expected=f"a multiple of tensor_parallel {spec.tensor_parallel}",
                    hint="a worker's GPUs are all of one node",
                )
            )
    total = len(spec.workers) + sum(
        _node_count(pool) * (pool.gpus_per_node // spec.tensor_parallel) for pool in spec.pools
    )
    if total > MAX_WORKERS:
        message = f"the cluster would have {total} workers"
        faults.append(Fault(message=message, span=document.span(_ROOT), expected=f"at most {MAX_WORKERS}"))
    return faults


def _node_count(pool: PoolSpec) -> int:
    return pool.nodes if isinstance(pool.nodes, int) else len(pool.nodes)


@dataclass(kw_only=True)
class _Build:
    """Workers made so far, by id, with what later pools must agree with."""

    spec: ClusterSpec
    document: Document
    gpu: str
    workers: dict[str, Worker] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    _zones: dict[str, Zone] = field(default_factory=dict)
    _prefixes: Counter[str] = field(default_factory=Counter)
    _next_index: Counter[str] = field(default_factory=Counter)

    def fault(self, path: PathKey, message: str, *, expected: str | None = None, hint: str | None = None) -> None:
        """Record a fault at `path`."""
        self.faults.append(Fault(message=message, span=self.document.span(path), expected=expected, hint=hint))

    def add_pool(self, pool: PoolSpec, path: PathKey) -> None:
        """Every node's workers, numbered on from those that earlier pools put on the node."""
        per_node = pool.gpus_per_node // self.spec.tensor_parallel
        for node in self._node_names(pool, path):
            first = self._next_index[node]
            self._next_index[node] += per_node
            for index in range(first, first + per_node):
                self._add(pool, id_=f"{node}/{index}", node=node, path=path)

    def add_worker(self, worker: WorkerSpec, path: PathKey) -> None:
        """A single worker."""
        self._add(worker, id_=worker.id, node=worker.node, path=path)

    def _node_names(self, pool: PoolSpec, path: PathKey) -> Iterator[str]:
        if isinstance(pool.nodes, int):
            prefix = pool.name or pool.zone.value
            first = self._prefixes[prefix]
            self._prefixes[prefix] += pool.nodes
            yield from (f"{prefix}-{index}" for index in range(first, first + pool.nodes))
            return
        for index, node in enumerate(pool.nodes):
            if node in pool.nodes[:index]:
                self.fault((*path, "nodes", index), f"node {node!r} is named twice in one pool")
            else:
                yield node

    def _add(self, placed: PoolSpec | WorkerSpec, *, id_: str, node: str, path: PathKey) -> None:
        zone = self._zones.setdefault(node, placed.zone)
        if zone is not placed.zone:
            message = f"node {node!r} is in zone {placed.zone}, and above in zone {zone}"
            self.fault((*path, "zone"), message, expected="one zone for each node")
            return
        if id_ in self.workers:
            self.fault((*path, "id"), f"worker id {id_!r} is taken", hint="ids must be unique")
            return
        serving = placed.role is not Role.INACTIVE
        self.workers[id_] = Worker(
            id=id_,
            node=node,
            zone=placed.zone,
            role=placed.role,
            status=placed.status or (Status.ACTIVE if serving else Status.INACTIVE),
            gpus=self.spec.tensor_parallel,
            gpu_type=self.gpu,
            started=placed.started,
            must_leave=placed.must_leave,
            leave_within_s=placed.leave_within,
            reclaim_probability=placed.reclaim_probability,
        )
