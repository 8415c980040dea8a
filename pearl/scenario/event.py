"""Events as users write them: in a scenario, or as one argument.

The short form is `KIND[:TARGETS][;KEY=VALUE]…`:

    reclaim_notice:node-2/0,node-2/1;within=30s     two workers must leave within 30 s
    reclaim_notice:node-2;within=30s                all workers of a node
    gpus_lost:node-2/0                              the worker is gone
    gpus_added:4;node=spot-9                        4 GPUs joined on node spot-9
    training_started;within=20s                     the overlap zone must be back within 20 s
    training_finished                               the overlap zone may be borrowed
    profile_updated   batch_started   operator      nothing changes but the reason
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.documents import nearest
from pearl.errors import Fault, ScenarioError
from pearl.scenario.schema import MAX_WORKERS, EventSpec
from pearl.scenario.units import Dimension, parse_quantity

_NAMES_WORKERS = frozenset(
    {EventKind.RECLAIM_NOTICE, EventKind.GPUS_LOST, EventKind.TRAINING_STARTED, EventKind.TRAINING_FINISHED}
)
_NEEDS_WORKERS = frozenset({EventKind.RECLAIM_NOTICE, EventKind.GPUS_LOST})
_HAS_DEADLINE = frozenset({EventKind.RECLAIM_NOTICE, EventKind.TRAINING_STARTED})
_KEYS = ("within", "node", "at")
MAX_TEXT = 1 << 20
"""Length of the short form that is still read."""
MAX_COMPARED = 2_000
"""Names among which the nearest is looked for: more would take longer than a person waits."""


def parse_event(text: str, state: ClusterState) -> Event:
    """The event that the short form says, checked against the workers of `state`; raises ScenarioError."""
    try:
        if len(text) > MAX_TEXT:
            raise ValueError("the event is longer than a megabyte")
        return resolve_event(_read(text), state)
    except ValueError as e:
        shown = text if len(text) <= 80 else f"{text[:79]}…"
        message = f"event {shown!r}: {e}"
        raise ScenarioError(Fault(message=message, hint="such as reclaim_notice:node-2/0;within=30s")) from None


def resolve_event(spec: EventSpec, state: ClusterState) -> Event:
    """The event with node names resolved and new workers made; raises ValueError that says what does not hold."""
    _check_fields(spec)
    added = _added_workers(spec, state) if spec.kind is EventKind.GPUS_ADDED else ()
    workers = tuple(worker.id for worker in added) or _named_workers(spec, state)
    return Event(kind=spec.kind, workers=workers, within_s=spec.within, at_s=spec.at, added=added)


def _read(text: str) -> EventSpec:
    head, *options = (part.strip() for part in text.split(";"))
    name, _, targets = (part.strip() for part in head.partition(":"))
    kinds = [kind.value for kind in EventKind]
    if name not in kinds:
        raise ValueError(f"unknown kind {name!r}{_near(name, kinds)}")
    kind = EventKind(name)
    values = _read_options([option for option in options if option])
    listed = tuple(target.strip() for target in targets.split(",") if target.strip())
    return EventSpec.model_construct(
        kind=kind,
        workers=() if kind is EventKind.GPUS_ADDED else listed,
        gpus=_read_gpus(targets) if kind is EventKind.GPUS_ADDED else None,
        node=values.get("node"),
        within=_seconds(values["within"]) if "within" in values else None,
        at=_seconds(values.get("at", "0s")),
    )


def _read_options(options: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or not value:
            raise ValueError(f"{option!r} is not KEY=VALUE")
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r}{_near(key, _KEYS)}")
        if key in values:
            raise ValueError(f"key {key!r} is given twice")
        values[key] = value
    return values


def _near(name: str, known: Collection[str]) -> str:
    hint = nearest(name, known) if len(known) <= MAX_COMPARED else None
    return f" ({hint})" if hint else ""


def _read_gpus(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_WORKERS):
        raise ValueError(f"gpus_added needs a number of GPUs, 1 to {MAX_WORKERS}, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    seconds = parse_quantity(text, Dimension.TIME)
    if seconds < 0:
        raise ValueError(f"a time must not be negative: {text!r}")
    return seconds


def _check_fields(spec: EventSpec) -> None:
    kind = spec.kind
    if spec.workers and kind not in _NAMES_WORKERS:
        raise ValueError(f"{kind} names no workers")
    if kind in _NEEDS_WORKERS and not spec.workers:
        raise ValueError(f"{kind} needs the workers that it touches")
    if spec.within is not None and kind not in _HAS_DEADLINE:
        raise ValueError(f"{kind} has no deadline; within belongs to {' and '.join(sorted(_HAS_DEADLINE))}")
    if kind is EventKind.GPUS_ADDED and (spec.gpus is None or spec.node is None):
        raise ValueError("gpus_added needs gpus and node, as in gpus_added:4;node=spot-9")
    if kind is not EventKind.GPUS_ADDED and (spec.gpus is not None or spec.node is not None):
        raise ValueError(f"gpus and node belong to gpus_added, not to {kind}")


def _named_workers(spec: EventSpec, state: ClusterState) -> tuple[str, ...]:
    by_node: dict[str, list[str]] = {}
    for worker in state.workers:
        by_node.setdefault(worker.node, []).append(worker.id)
    named: dict[str, None] = {}
    for target in spec.workers:
        found = [target] if target in state.by_id else by_node.get(target, [])
        if not found:
            raise ValueError(f"no worker or node {target!r}{_near(target, [*state.by_id, *by_node])}")
        named |= dict.fromkeys(found)
    outside = [i for i in named if state.by_id[i].zone is not Zone.OVERLAP]
    if outside and spec.kind in (EventKind.TRAINING_STARTED, EventKind.TRAINING_FINISHED):
        raise ValueError(f"{spec.kind} touches the overlap zone alone; {outside[0]!r} is not in it")
    return tuple(named)


def _added_workers(spec: EventSpec, state: ClusterState) -> tuple[Worker, ...]:
    """Inactive preemptible workers, of the tensor-parallel size and GPU type of those that are here."""
    if spec.gpus is None or spec.node is None:
        raise ValueError("gpus_added needs gpus and node")
    like = state.workers[0] if state.workers else None
    size = like.gpus if like else 1
    if spec.gpus % size:
        raise ValueError(f"{spec.gpus} GPUs leave {spec.gpus % size} over: each worker holds {size} of one node")
    if len(state.workers) + spec.gpus // size > MAX_WORKERS:
        raise ValueError(f"the cluster would exceed {MAX_WORKERS} workers")
    on_node = [worker for worker in state.workers if worker.node == spec.node]
    if any(worker.zone is not Zone.PREEMPTIBLE for worker in on_node):
        raise ValueError(f"node {spec.node!r} is not preemptible, so no GPUs join it")
    free = (i for i in range(len(state.workers) + MAX_WORKERS) if f"{spec.node}/{i}" not in state.by_id)
    return tuple(
        Worker(
            id=f"{spec.node}/{index}",
            node=spec.node,
            zone=Zone.PREEMPTIBLE,
            role=Role.INACTIVE,
            status=Status.INACTIVE,
            gpus=size,
            gpu_type=like.gpu_type if like else "",
            started=False,
            reclaim_probability=max((worker.reclaim_probability for worker in on_node), default=0.0),
        )
        for index, _ in zip(free, range(spec.gpus // size), strict=False)
    )
