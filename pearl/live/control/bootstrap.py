"""The first start: all reserved workers serve, colocated, whatever is known of the workload. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.plan import AdmitGroup, Plan, Start
from pearl.live.control.ledger import Record
from pearl.live.weights import WeightRef


def first_record(offered: Iterable[Worker], weights: WeightRef | None = None) -> Record:
    """The record before anything was started: the workers for which the nodes have room."""
    version = weights.version if weights else 0
    return Record(state=ClusterState(workers=tuple(offered)), latest=version, oldest=version)


def bootstrap_plan(state: ClusterState, costs: TransitionCosts) -> Plan:
    """Start the reserved workers as one group, colocated; empty where they have been started, or must leave.

    Colocated is the one mode that serves on any number of workers, and needs to know nothing.
    """
    names = tuple(worker.id for worker in state.workers if _idle(worker))
    if not names:
        return Plan(from_epoch=state.epoch)
    starts = (Start(worker=name, role=Role.COLOCATED, estimated_s=costs.start_s) for name in names)
    return Plan(from_epoch=state.epoch, steps=(*starts, AdmitGroup(workers=names, estimated_s=costs.admit_s)))


def _idle(worker: Worker) -> bool:
    waits = worker.status is Status.INACTIVE and not worker.started
    return worker.zone is Zone.RESERVED and waits and not worker.must_leave
