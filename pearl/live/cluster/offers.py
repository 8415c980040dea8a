"""Which workers the nodes of the Ray cluster offer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.errors import Fault
from pearl.live.cluster.model import LiveCluster, ZoneSettings
from pearl.live.control.fleet import Node

MAX_PER_NODE = 1024
"""What a resource says beyond this counts something other than workers."""


def capacity(zones: Mapping[Zone, ZoneSettings], node: Mapping[str, Any]) -> dict[str, int]:
    """How many workers each zone may place on a node, as `ray.nodes()` tells of it; zones without any are left out."""
    found = {str(zone): _workers(settings, node) for zone, settings in zones.items()}
    return {zone: count for zone, count in found.items() if count}


def _workers(zone: ZoneSettings, node: Mapping[str, Any]) -> int:
    if zone.label is not None:
        labels: Mapping[str, str] = node.get("Labels") or {}
        return zone.workers_per_node if labels.get(zone.label.key) == zone.label.value else 0
    resources: Mapping[str, float] = node.get("Resources") or {}
    return min(MAX_PER_NODE, int(resources.get(zone.resource or "", 0.0)))


def offer(cluster: LiveCluster, nodes: Iterable[Node], held: Sequence[Worker] = ()) -> tuple[Worker, ...]:
    """The workers that `nodes` offer beyond those `held`, up to each zone's limit: inactive, and not started.

    They are `node/0`, `node/1`, … in the order of zones.
    """
    taken = Counter(worker.zone for worker in held)
    known = {worker.id for worker in held}
    offered = []
    for worker in _all(cluster, nodes):
        limit = cluster.zones[worker.zone].max_workers
        if worker.id not in known and (limit is None or taken[worker.zone] < limit):
            taken[worker.zone] += 1
            offered.append(worker)
    return tuple(offered)


def _all(cluster: LiveCluster, nodes: Iterable[Node]) -> Iterator[Worker]:
    for node in sorted(nodes, key=lambda node: node.name):
        zones = [zone for zone in Zone for _ in range(node.workers.get(zone, 0))]
        for index, zone in enumerate(zones):
            yield Worker(
                id=f"{node.name}/{index}",
                node=node.name,
                zone=zone,
                role=Role.INACTIVE,
                status=Status.INACTIVE,
                gpus=cluster.engine.tensor_parallel,
                gpu_type=cluster.profile.gpu,
                started=False,
            )


def too_few(cluster: LiveCluster, offered: Sequence[Worker]) -> list[Fault]:
    """Zones whose nodes offer less than `min_workers`."""
    counts = Counter(worker.zone for worker in offered)
    return [
        Fault(
            message=f"zone {zone}: the nodes offer {counts[zone]} workers",
            expected=f"at least {settings.min_workers}",
            hint=f"start nodes with {_mark(settings)}",
        )
        for zone, settings in cluster.zones.items()
        if counts[zone] < settings.min_workers
    ]


def _mark(zone: ZoneSettings) -> str:
    return f"label {zone.label.key}={zone.label.value}" if zone.label else f"resource {zone.resource}"
