"""Bodies of the admin plane's calls: strict, and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.documents import MAX_BYTES

LONGEST_S = 86_400.0
"""No wait and no window is longer than a day."""
MAX_STEP = (1 << 53) - 1
"""Largest integer that every JSON reader keeps exact."""
MAX_WORKERS = 65_536

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
Wait = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]


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
    directory: Annotated[Path, Field(strict=False)]


class PolicyBody(Body):
    """`PUT /pearl/v1/policy`: the text of a policy file, and the name that its faults are reported under."""

    text: str = Field(max_length=MAX_BYTES)
    name: str = Field("policy.yaml", min_length=1, max_length=1024)


class StopBody(Body):
    """`POST /pearl/v1/stop`."""

    workers: bool = False
