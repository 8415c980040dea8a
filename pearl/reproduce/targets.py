"""The paper's figures as data, each with the simulation that stands beside it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pearl.core.workload import Training
from pearl.documents import read_document
from pearl.errors import ScenarioError
from pearl.reproduce.measures import Batch, Measure, Pool, Workers
from pearl.reproduce.segments import Segment
from pearl.scenario.checked import validate_filled
from pearl.scenario.fields import Name, Spec, Whole

TARGETS = Path(__file__).parent / "targets.yaml"
DEFAULT_BATCH = 64
"""Trajectories of a batch where the paper does not say."""
CONTEXT_LIMIT = 32_768
"""Longest context, by the paper's setup."""
OVERLAP_GPUS = 16
"""Training GPUs, by the paper's setup."""

Gpus = Annotated[Whole, Field(ge=1, le=4096)]
Policy = Annotated[str, Field(min_length=1)]


class Role(StrEnum):
    """Whether a row was fitted to."""

    CALIBRATED = "calibrated"
    HELD_OUT = "held_out"


class Unit(StrEnum):
    """What a figure is, and so how an error in it is measured."""

    SHARE = "share"
    CHANGE = "change"
    GAIN = "gain"
    SPEEDUP = "speedup"
    SECONDS = "seconds"
    RATIO = "ratio"
    BATCH = "batch"
    MATCHES = "matches"
    REGRET = "regret"
    ORDER = "order"


class MeasureSource(Spec):
    """A figure of batches on a fixed pool."""

    kind: Literal["measure"]
    measure: Measure


class BestRatioSource(Spec):
    """The fastest split of a pool."""

    kind: Literal["best_ratio"]
    workers: Workers
    batch: Batch


class GainSource(Spec):
    """Throughput of `policy` over that of `over`, less 1, once for each combination of the settings."""

    kind: Literal["gain"]
    policy: Policy
    over: Policy
    rollout_gpus: tuple[Gpus, ...]
    """Reserved rollout GPUs."""
    overlap_gpus: Annotated[Whole, Field(ge=0)] = OVERLAP_GPUS
    segments: tuple[Segment | None, ...] = (None,)
    """Traces of the preemptible zone."""
    batches: tuple[Batch, ...] = (DEFAULT_BATCH,)
    context_limits: tuple[Whole, ...] = (CONTEXT_LIMIT,)
    training: tuple[Training, ...] = (Training.ASYNCHRONOUS,)
    figure: Literal["throughput", "makespan"] = "throughput"
    """`makespan`: the mean makespan of `over` over that of `policy`, less 1: rollout alone, whatever training takes."""
    mean: bool = False
    """Whether the paper gives the mean over the settings."""


class OrderSource(Spec):
    """Policies in the published order of their throughput, lowest first."""

    kind: Literal["order"]
    policies: tuple[Policy, ...]
    rollout_gpus: Gpus


class PeakBatchSource(Spec):
    """The batch size with the highest throughput."""

    kind: Literal["peak_batch"]
    policy: Policy
    rollout_gpus: Gpus
    segment: Segment
    batches: tuple[Batch, ...]


class SelectionSource(Spec):
    """The predicted best configuration against the best of all simulated ones."""

    kind: Literal["selection"]
    dedicated_gpus: tuple[Gpus, ...]
    overlap_gpus: Annotated[Whole, Field(ge=0)] = 0
    figure: Literal["matches", "regret"]


class CostSource(Spec):
    """A transition cost: an input of every simulation."""

    kind: Literal["cost"]
    cost: Literal["start_s", "admit_s", "borrow_s", "return_s"]


class ReprefillSource(Spec):
    """Prefill of an interrupted trajectory's whole context, over the time that its trajectory takes."""

    kind: Literal["reprefill"]
    pool: Pool
    batch: Batch


Source = Annotated[
    MeasureSource
    | BestRatioSource
    | GainSource
    | OrderSource
    | PeakBatchSource
    | SelectionSource
    | CostSource
    | ReprefillSource,
    Field(discriminator="kind"),
]

Range = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]


class Target(Spec):
    """One figure of the paper."""

    id: Name
    section: str
    model: Name
    setting: str
    published: float | Range | str
    """A value, the [low, high] of several settings, or a label."""
    role: Role
    unit: Unit
    simulate: Source

    @property
    def low(self) -> float:
        """Lower end of the published figure; only for numbers."""
        return self.published[0] if isinstance(self.published, tuple) else float(self.published)

    @property
    def high(self) -> float:
        """Upper end of the published figure; only for numbers."""
        return self.published[1] if isinstance(self.published, tuple) else float(self.published)


class _Targets(Spec):
    rows: tuple[Target, ...]


def load_targets(path: Path = TARGETS) -> tuple[Target, ...]:
    """The figures, in the order of the paper; raises ScenarioError where the file does not hold."""
    return validate_filled(_Targets, read_document(path, error=ScenarioError)).rows
