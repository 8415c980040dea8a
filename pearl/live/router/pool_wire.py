"""The pool as JSON: what `PUT /pearl/v1/pool` takes, `GET` gives, and the journal keeps."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.errors import Fault, UsageError
from pearl.live.router.pool import Endpoint, Pool

MAX_VERSION = (1 << 53) - 1
"""Largest integer that every JSON reader keeps exact."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class WorkerBody(_Wire):
    """A worker, its place in the GPU–worker–role state, and its engine."""

    id: str = Field(min_length=1, max_length=128)
    url: str = Field(min_length=1, max_length=2048)
    """Where its engine listens."""
    weight_version: int = Field(ge=0, le=MAX_VERSION)
    role: Role
    status: Status
    node: str = Field(min_length=1, max_length=256)
    zone: Zone
    gpus: int = Field(1, ge=1, le=1024)
    gpu_type: str = Field("", max_length=128)
    must_leave: bool = False
    leave_within_s: float | None = Field(None, ge=0, allow_inf_nan=False)


class PoolBody(_Wire):
    """A whole pool state."""

    epoch: int = Field(ge=0, le=MAX_VERSION)
    workers: list[WorkerBody] = Field(max_length=65536)
    oldest_weight_version: int = Field(0, ge=0, le=MAX_VERSION)


def pool_from_json(data: Any) -> Pool:
    """The pool that JSON data describes. Raises `UsageError` with every fault."""
    try:
        body = PoolBody.model_validate(data)
    except ValidationError as e:
        raise UsageError(
            [Fault(message=f"pool: {'.'.join(map(str, f['loc']))}: {f['msg']}") for f in e.errors()]
        ) from None
    ids = [worker.id for worker in body.workers]
    if twice := sorted({worker for worker in ids if ids.count(worker) > 1}):
        raise UsageError(f"pool: worker ids must be unique; twice: {', '.join(twice)}")
    return Pool(
        state=ClusterState(workers=tuple(_worker(worker) for worker in body.workers), epoch=body.epoch),
        endpoints={w.id: Endpoint(url=w.url, weight_version=w.weight_version) for w in body.workers},
        oldest_weight_version=body.oldest_weight_version,
    )


def pool_to_json(pool: Pool) -> dict[str, Any]:
    """JSON data that `pool_from_json` reads back to the same pool."""
    body = PoolBody(
        epoch=pool.epoch,
        workers=[
            WorkerBody(
                id=worker.id,
                url=pool.endpoints[worker.id].url,
                weight_version=pool.endpoints[worker.id].weight_version,
                role=worker.role,
                status=worker.status,
                node=worker.node,
                zone=worker.zone,
                gpus=worker.gpus,
                gpu_type=worker.gpu_type,
                must_leave=worker.must_leave,
                leave_within_s=worker.leave_within_s,
            )
            for worker in pool.state.workers
        ],
        oldest_weight_version=pool.oldest_weight_version,
    )
    return body.model_dump(mode="json")


def pool_to_text(pool: Pool) -> str:
    """The pool in one line of JSON."""
    return json.dumps(pool_to_json(pool), separators=(",", ":"))


def _worker(body: WorkerBody) -> Worker:
    return Worker(
        id=body.id,
        node=body.node,
        zone=body.zone,
        role=body.role,
        status=body.status,
        gpus=body.gpus,
        gpu_type=body.gpu_type,
        must_leave=body.must_leave,
        leave_within_s=body.leave_within_s,
    )
