"""While nothing is known of the workload: all reserved workers serve, colocated. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pearl.core.cluster import ClusterState, Mode, Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.plan import AdmitGroup, Plan, Start
from pearl.live.control.ledger import Record
from pearl.live.weights import WeightRef


def first_record(offered: Iterable[Worker], weights: WeightRef | None = None) -> Record:
    """The record before anything was started: the workers for which the nodes have room."""
    version = weights.version if weights else 0
    return Record(state=ClusterState(workers=tuple(offered)), latest=version, oldest=version)


def bootstrap_plan(state: ClusterState, costs: TransitionCosts) -> Plan:
    """Start the reserved workers that are not started as one group; empty where there are none, or they must leave.

    They serve colocated, the one mode that works on any number of workers and needs to know nothing; in a pool that is
    disaggregated already, they decode.
    """
    names = tuple(worker.id for worker in state.workers if _waits(worker))
    if not names:
        return Plan(from_epoch=state.epoch)
    role = Role.DECODE if state.counts.mode is Mode.DISAGGREGATED else Role.COLOCATED
    starts = (Start(worker=name, role=role, estimated_s=costs.start_s) for name in names)
    return Plan(from_epoch=state.epoch, steps=(*starts, AdmitGroup(workers=names, estimated_s=costs.admit_s)))


def _waits(worker: Worker) -> bool:
    idle = worker.status is Status.INACTIVE and not worker.started
    return worker.zone is Zone.RESERVED and idle and not worker.must_leave
