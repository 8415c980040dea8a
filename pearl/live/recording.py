"""What a controller recorded, read back while it does not run: telemetry and events, and the pool it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.core.telemetry import Telemetry
from pearl.errors import Fault, InputError
from pearl.live.cluster.model import LiveCluster
from pearl.live.control.store import AddEvent, ControlStore, understood
from pearl.live.preview import file_nodes, opening
from pearl.planning import apply_plan
from pearl.tracking.jsonl import parse_telemetry

STORE_FILE = "controller.db"
PAGE = 1000


def read_store(path: Path) -> tuple[tuple[Telemetry, ...], tuple[Event, ...]]:
    """Telemetry and events of a store, or of the store in a state folder, in order.

    Raises `InputError` where there is none, and `StoreError` while a controller uses it.
    """
    file = path / STORE_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            Fault(message=f"no store {file}", expected=f"the state folder of a controller, or {STORE_FILE}")
        )
    store = ControlStore(file, create=False)
    try:
        telemetry = parse_telemetry("\n".join(store.telemetry()), file=str(file))
        return telemetry, tuple(event_of(row) for row in _rows(store))
    finally:
        store.close()


def opening_state(cluster: LiveCluster) -> ClusterState:
    """The pool of a cluster file that names its nodes, once its reserved workers serve.

    Raises `InputError` where the nodes are Ray's to name.
    """
    nodes = file_nodes(cluster)
    if not nodes:
        message = f"cluster {cluster.name!r} joins a Ray cluster: its nodes are not known"
        hint = "use --scenario, or a cluster with `ray.address: local` and its nodes"
        raise InputError(Fault(message=message, hint=hint))
    state, plan = opening(cluster, nodes)
    return apply_plan(state, plan)


def _rows(store: ControlStore) -> list[AddEvent]:
    rows: list[AddEvent] = []
    while page := store.events(after=rows[-1].number if rows else 0, limit=PAGE):
        rows += page
    return rows


def event_of(row: AddEvent) -> Event:
    """The event as it was raised. Raises `StoreError` where the row was damaged."""
    with understood(f"event {row.number}"):
        within_s = row.data.get("within_s")
        return Event(
            kind=EventKind(row.kind),
            workers=row.workers,
            within_s=None if within_s is None else float(within_s),
            at_s=row.at_unix_s,
            added=tuple(_worker(fields) for fields in row.data.get("added") or ()),
        )


def _worker(fields: dict[str, Any]) -> Worker:
    zone, role, status = Zone(fields["zone"]), Role(fields["role"]), Status(fields["status"])
    return Worker(**{**fields, "zone": zone, "role": role, "status": status})
