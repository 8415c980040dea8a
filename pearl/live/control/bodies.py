"""Bodies of the admin plane's calls: strict, and bounded."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.documents import MAX_BYTES
from pearl.live.router.call import RefusedError, read_json, refuse_faults

LONGEST_S = 86_400.0
"""No wait and no window is longer than a day."""
MAX_STEP = (1 << 53) - 1
"""Largest integer that every JSON reader keeps exact."""
MAX_WORKERS = 65_536
LONGEST_PATH = 4096
"""PATH_MAX: to resolve what is longer takes time that grows with its square."""

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
Wait = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]


BodyT = TypeVar("BodyT", bound="Body")


def read_body(model: type[BodyT], raw: bytes) -> BodyT:
    """The body of a call. Raises `RefusedError` (400) with every fault."""
    data = read_json(raw)
    if twice := _key_given_twice(raw):
        raise RefusedError(400, "bad_json", f"the body is not valid JSON: key {twice!r} is given twice")
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise refuse_faults(e) from None


def _key_given_twice(raw: bytes) -> str | None:
    """Of two values one reader takes the first and another the last: neither may be what was meant."""
    twice: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        twice.extend(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)

    if raw.count(b":") > 1:
        json.loads(raw, object_pairs_hook=look)
    return min(twice, default=None)


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WorkerBody(Body):
    """A worker whose GPUs joined."""

    id: Name
    node: Name
    zone: Annotated[Zone, Field(strict=False)]
    gpus: int = Field(1, ge=1, le=1024)

    def worker(self) -> Worker:
        """Inactive, and not started."""
        return Worker(
            id=self.id,
            node=self.node,
            zone=self.zone,
            gpus=self.gpus,
            role=Role.INACTIVE,
            status=Status.INACTIVE,
            started=False,
        )


class AddBody(Body):
    """`POST /pearl/v1/workers`."""

    workers: list[WorkerBody] = Field(min_length=1, max_length=MAX_WORKERS)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        ids = [worker.id for worker in self.workers]
        if len(set(ids)) != len(ids):
            raise ValueError("worker ids must be unique")
        return self


class ReclaimBody(Body):
    """`POST /pearl/v1/workers/reclaim`: workers, or a node."""

    workers: list[Name] | None = Field(None, min_length=1, max_length=MAX_WORKERS)
    node: Name | None = None
    grace_s: Seconds

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.workers is None) == (self.node is None):
            raise ValueError("give either workers or a node")
        return self


class DrainBody(Body):
    """`POST /pearl/v1/drain`."""

    worker: Name
    deadline_s: Wait | None = None
    undo: bool = False


class BeginTrainingBody(Body):
    """`POST /pearl/v1/training/begin`."""

    step: Step
    deadline_s: Wait | None = None
    force: bool = True


class FinishTrainingBody(Body):
    """`POST /pearl/v1/training/finish`."""

    step: Step
    window_s: Seconds | None = None


class BeginBatchBody(Body):
    """`POST /pearl/v1/batches`."""

    step: Step
    trajectories: int = Field(ge=1, le=MAX_STEP)
    deadline_s: Wait | None = None


class FinishBatchBody(Body):
    """`POST /pearl/v1/batches/finish`."""

    step: Step


class WeightsBody(Body):
    """`POST /pearl/v1/weights`."""

    version: int = Field(ge=1, le=MAX_STEP)
    """0 is the model's own."""
    directory: str = Field(min_length=1, max_length=LONGEST_PATH)


class PolicyBody(Body):
    """`PUT /pearl/v1/policy`: the text of a policy file, and the name that its faults are reported under."""

    text: str = Field(max_length=MAX_BYTES)
    name: str = Field("policy.yaml", min_length=1, max_length=1024)


class StopBody(Body):
    """`POST /pearl/v1/stop`."""

    workers: bool = False
