"""Availability traces as events of the cluster: each node brings workers, and takes them away again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.errors import Fault, UsageError
from pearl.sim.traces.availability import AvailabilityEvent, AvailabilityTrace, Change


def events_of(trace: AvailabilityTrace, *, tensor_parallel: int = 1, gpu_type: str = "") -> Iterator[Event]:
    """Events in time order; a node of g GPUs brings g / `tensor_parallel` preemptible workers, not started.

    Workers are named `node/index`; a node that comes back brings new workers, `node+1/index` and so on, since its old
    ones may still be in their grace period. Raises UsageError, with the node's place in the trace's file, where GPUs of
    a node would be left over.
    """
    arrivals: Counter[str] = Counter()
    for event in trace.events:
        if event.gpus_per_node % tensor_parallel:
            raise UsageError(_left_over(trace, event, tensor_parallel))
        match event.kind:
            case Change.ADD:
                arrivals.update(event.nodes)
                workers = tuple(_workers(event, arrivals, tensor_parallel, gpu_type))
                yield Event(kind=EventKind.GPUS_ADDED, added=workers, at_s=event.at_s)
            case Change.RECLAIM:
                names = tuple(worker.id for worker in _workers(event, arrivals, tensor_parallel, gpu_type))
                yield Event(kind=EventKind.RECLAIM_NOTICE, workers=names, within_s=event.grace_s, at_s=event.at_s)


def _left_over(trace: AvailabilityTrace, event: AvailabilityEvent, tensor_parallel: int) -> Fault:
    node, gpus = event.nodes[0], event.gpus_per_node
    span = trace.places.get((node, gpus))
    return Fault(
        message=f"node {node!r} has {gpus} GPUs: workers of {tensor_parallel} leave some over",
        span=span,
        expected=f"a multiple of the engine's tensor_parallel, {tensor_parallel}",
        hint=None if span else f"in the trace {trace.source or 'given'}",
    )


def _workers(event: AvailabilityEvent, arrivals: Counter[str], tensor_parallel: int, gpu_type: str) -> Iterator[Worker]:
    for node in event.nodes:
        again = arrivals[node] - 1
        for index in range(event.gpus_per_node // tensor_parallel):
            yield Worker(
                id=f"{node}+{again}/{index}" if again else f"{node}/{index}",
                node=node,
                zone=Zone.PREEMPTIBLE,
                role=Role.INACTIVE,
                status=Status.INACTIVE,
                gpus=tensor_parallel,
                gpu_type=gpu_type,
                started=False,
            )
