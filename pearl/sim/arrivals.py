"""Availability traces as events of the cluster: each node brings workers, and takes them away again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.errors import Fault, UsageError
from pearl.sim.traces.availability import AvailabilityEvent, AvailabilityTrace, Change


def events_of(
    trace: AvailabilityTrace, *, tensor_parallel: int = 1, gpu_type: str = "", beside: Iterable[Worker] = ()
) -> Iterator[Event]:
    """Events in time order; a node of g GPUs brings g / `tensor_parallel` preemptible workers, not started.

    Workers are named `node/index`; a node that comes back brings new workers, `node+1/index` and so on, since its old
    ones may still be in their grace period. `beside` are the workers that the trace has no say over. Raises UsageError,
    with the node's place in the trace's file, where GPUs of a node would be left over, or one of `beside` is on it.
    """
    zones = {worker.node: worker.zone for worker in beside}
    arrivals = _Arrivals(trace)
    for event in trace.events:
        if event.gpus_per_node % tensor_parallel:
            raise UsageError(_left_over(trace, event, tensor_parallel))
        for node in event.nodes:
            if node in zones:
                raise UsageError(_in_two_zones(trace, event, node, zones[node]))
        match event.kind:
            case Change.ADD:
                arrivals.count(event)
                workers = tuple(_workers(event, arrivals, tensor_parallel, gpu_type))
                yield Event(kind=EventKind.GPUS_ADDED, added=workers, at_s=event.at_s)
            case Change.RECLAIM:
                names = tuple(worker.id for worker in _workers(event, arrivals, tensor_parallel, gpu_type))
                yield Event(kind=EventKind.RECLAIM_NOTICE, workers=names, within_s=event.grace_s, at_s=event.at_s)


class _Arrivals:
    """How often each node came, and what its workers are called since it came last."""

    def __init__(self, trace: AvailabilityTrace) -> None:
        self._nodes = frozenset(node for event in trace.events for node in event.nodes)
        self._times: Counter[str] = Counter()

    def count(self, event: AvailabilityEvent) -> None:
        self._times.update(event.nodes)

    def prefix(self, node: str) -> str:
        """No node's own name but this one's, and no other arrival's.

        Node names may end like a prefix. More `+` tell the two apart, and no two arrivals become one by it: the number
        before them, and the node before that, can still be read off.
        """
        if self._times[node] <= 1:
            return node
        prefix = f"{node}+{self._times[node] - 1}"
        while prefix in self._nodes:
            prefix += "+"
        return prefix


def _left_over(trace: AvailabilityTrace, event: AvailabilityEvent, tensor_parallel: int) -> Fault:
    node, gpus = event.nodes[0], event.gpus_per_node
    message = f"node {node!r} has {gpus} GPUs: workers of {tensor_parallel} leave some over"
    expected = f"a multiple of the engine's tensor_parallel, {tensor_parallel}"
    return _fault(trace, event, node, message, expected)


def _in_two_zones(trace: AvailabilityTrace, event: AvailabilityEvent, node: str, zone: Zone) -> Fault:
    message = f"node {node!r} is in the {zone} zone of the cluster"
    return _fault(trace, event, node, message, "a name of its own: the nodes of a trace are preemptible")


def _fault(trace: AvailabilityTrace, event: AvailabilityEvent, node: str, message: str, expected: str) -> Fault:
    span = trace.places.get((node, event.gpus_per_node))
    hint = None if span else f"in the trace {trace.source or 'given'}"
    return Fault(message=message, span=span, expected=expected, hint=hint)


def _workers(event: AvailabilityEvent, arrivals: _Arrivals, tensor_parallel: int, gpu_type: str) -> Iterator[Worker]:
    for node in event.nodes:
        prefix = arrivals.prefix(node)
        for index in range(event.gpus_per_node // tensor_parallel):
            yield Worker(
                id=f"{prefix}/{index}",
                node=node,
                zone=Zone.PREEMPTIBLE,
                role=Role.INACTIVE,
                status=Status.INACTIVE,
                gpus=tensor_parallel,
                gpu_type=gpu_type,
                started=False,
            )
