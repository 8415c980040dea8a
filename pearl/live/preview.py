"""What `pearl serve` would do first, worked out from the nodes that are there; nothing is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pearl.api import DEFAULT_POLICY, Result, solve
from pearl.core.cluster import ClusterState
from pearl.core.plan import Plan
from pearl.core.workload import Workload
from pearl.errors import InputError
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.offers import offer, too_few
from pearl.live.control.bootstrap import bootstrap_plan
from pearl.live.control.fleet import Node
from pearl.planning import apply_plan
from pearl.scenario.model import Scenario


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The first steps."""

    nodes: tuple[Node, ...]
    bootstrap: Plan
    """The reserved workers start, whatever is known."""
    result: Result | None
    """The first decision, once those serve; None where no workload is known before it is measured."""


def file_nodes(cluster: LiveCluster) -> tuple[Node, ...]:
    """The nodes of a Ray cluster that PEARL starts itself; none where one is joined."""
    zones: dict[str, Counter[str]] = {}
    for node in cluster.ray.nodes:
        zones.setdefault(node.name, Counter())[node.zone] += node.workers
    return tuple(Node(name=name, id=name, workers=workers) for name, workers in zones.items())


def nodes_there(cluster: LiveCluster) -> tuple[Node, ...]:
    """The nodes of a cluster: of its file, or of the Ray cluster that it joins; raises `UsageError` where none runs."""
    if cluster.ray.nodes:
        return file_nodes(cluster)
    import asyncio

    from pearl.live.embedded import connected
    from pearl.live.fleet import RayFleet

    with connected(cluster):
        return asyncio.run(RayFleet(cluster).nodes())


def opening(cluster: LiveCluster, nodes: Iterable[Node]) -> tuple[ClusterState, Plan]:
    """The state before anything is started, and the plan that starts the reserved workers.

    Raises `InputError` where the nodes offer less than the cluster needs.
    """
    offered = offer(cluster, nodes)
    if faults := too_few(cluster, offered):
        raise InputError(faults)
    state = ClusterState(workers=offered)
    return state, bootstrap_plan(state, cluster.costs)


def preview(
    cluster: LiveCluster,
    nodes: Iterable[Node],
    *,
    policy: Path | str | None = None,
    sets: Mapping[str, str] | None = None,
    event: str | None = None,
) -> Preview:
    """The first steps on `nodes`; raises what `pearl.solve` raises, and `InputError` where nodes offer too little."""
    there = tuple(nodes)
    state, plan = opening(cluster, there)
    result = None
    if cluster.workload is not None:
        scenario = _scenario(cluster, cluster.workload, apply_plan(state, plan))
        result = solve(scenario, policy=policy or DEFAULT_POLICY, sets=sets, event=event)
    return Preview(nodes=there, bootstrap=plan, result=result)


def _scenario(cluster: LiveCluster, workload: Workload, state: ClusterState) -> Scenario:
    return Scenario(
        name=cluster.name,
        file=cluster.file,
        sha256=cluster.sha256,
        state=state,
        workload=workload,
        engine=cluster.profile,
        costs=cluster.costs,
        prices=cluster.prices,
        power_w=cluster.power_w,
        job_priority=cluster.job_priority,
        overlap_window_s=cluster.overlap_window_s,
        description=cluster.description,
    )
