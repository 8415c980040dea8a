"""Schema of a scenario document; what it checks is what one part can say about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from pearl.core.cluster import Role, Status, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.event import EventKind
from pearl.core.workload import Routing, Training
from pearl.scenario.distributions import NumberDistribution, SecondsDistribution
from pearl.scenario.engine_schema import EngineSpec
from pearl.scenario.fields import (
    AnyQuantity,
    Flag,
    Name,
    Seconds,
    Share,
    Spec,
    UsdPerHour,
    Watts,
    Whole,
    WorkerId,
)
from pearl.scenario.json_schema import tidy_schema
from pearl.scenario.model import SimulationSettings, TrainingSettings

MAX_HORIZON_S = 31 * 86_400
"""Longest simulated time: longer ones are a slip in the unit."""
MAX_WORKERS = 65_536
"""Largest pool: sixteen times the largest that the benchmarks cover; what exceeds it is a slip of the pen."""
MAX_GPUS_PER_NODE = 1_024
MAX_TENSOR_PARALLEL = 64
_COSTS = TransitionCosts()


class _Placed(Spec):
    """What a pool and a single worker have in common."""

    zone: Zone
    """`reserved`, `preemptible`, or `overlap` (training GPUs that rollout may borrow)."""
    role: Role = Role.INACTIVE
    """What the worker does today: `colocated`, `prefill`, `decode` or `inactive`."""
    status: Status | None = None
    """`active`, `inactive` or `transitioning`; by default active if it has a serving role, else inactive."""
    started: Flag = True
    """Whether an engine runs; false for GPUs that are here and still need one."""
    must_leave: Flag = False
    """GPUs under a reclaim notice, or that training holds: the worker serves nothing, and hands them back first."""
    leave_within: Seconds | None = None
    """How long until they are taken; only with `must_leave`."""
    reclaim_probability: Share = 0.0
    """Chance that the GPUs are taken within the policy's horizon."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        serving = self.role is not Role.INACTIVE
        if self.status is Status.ACTIVE and not serving:
            raise ValueError("status active contradicts role inactive; expected a serving role")
        if self.status is Status.INACTIVE and serving:
            raise ValueError(f"status inactive contradicts role {self.role}; expected role inactive")
        if not self.started and serving and self.status is not Status.TRANSITIONING:
            raise ValueError("a worker that is not started cannot serve; expected role inactive")
        if self.leave_within is not None and not self.must_leave:
            raise ValueError("leave_within has no meaning without must_leave: true")
        return self


def _nodes_shape(value: object) -> str:
    return "names" if isinstance(value, (list, tuple)) else "number"


Nodes = Annotated[
    Annotated[Annotated[Whole, Field(ge=1, le=MAX_WORKERS)], Tag("number")]
    | Annotated[Annotated[tuple[Name, ...], Field(min_length=1)], Tag("names")],
    Discriminator(_nodes_shape),
]
"""A number of nodes, or their names; told apart first, so that a fault is that of the one that was meant."""


class PoolSpec(_Placed):
    """Like workers on like nodes; worker ids are `node/index`."""

    nodes: Nodes
    """How many nodes, named `name-0`, `name-1`, …; or their names."""
    name: Name | None = None
    """Prefix of the names of counted nodes; the zone by default."""
    gpus_per_node: Annotated[Whole, Field(ge=1, le=MAX_GPUS_PER_NODE)]
    """GPUs of each node that belong to this pool: a multiple of `tensor_parallel`."""


class WorkerSpec(_Placed):
    """One worker, given by itself."""

    id: WorkerId
    """Unique; by custom `node/index`."""
    node: Name
    """The node that holds its GPUs: a worker never spans two."""


class ClusterSpec(Spec):
    """Who is bound to which GPUs, in which role, now."""

    gpu: Name | None = None
    """GPU type; by default, and always equal to, that of the engine profile."""
    tensor_parallel: Annotated[Whole, Field(ge=1, le=MAX_TENSOR_PARALLEL)] = 1
    """GPUs of each worker, all of one node; equal to that of the engine profile."""
    max_gpus: Annotated[Whole, Field(ge=1, le=MAX_WORKERS * MAX_TENSOR_PARALLEL)] | None = None
    """GPU budget: more than this in pools and workers together is a fault."""
    pools: tuple[PoolSpec, ...] = ()
    """Groups of like workers."""
    workers: tuple[WorkerSpec, ...] = ()
    """Single workers, besides those of the pools."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.pools and not self.workers:
            raise ValueError("a cluster needs pools or workers; both are empty")
        return self


class WorkloadSpec(Spec):
    """The batch: B multi-turn trajectories."""

    trajectories: Annotated[Whole, Field(ge=1, le=1_000_000)]
    """Batch size B."""
    turns: NumberDistribution
    """Turns of a trajectory, at least 1."""
    first_prompt_tokens: NumberDistribution
    """Prompt tokens of the first turn: system prompt, tools and task."""
    new_prompt_tokens: NumberDistribution
    """New (uncached) prompt tokens of each later turn: the environment's answer."""
    output_tokens: NumberDistribution
    """Tokens generated in a turn."""
    environment: SecondsDistribution
    """Time that the environment takes between two turns."""
    max_context_tokens: Annotated[Whole, Field(ge=1, le=10_000_000)]
    """A trajectory ends when its context reaches this."""
    routing: Routing = Routing.AFFINITY
    """`affinity`: the next turn goes where its prefix is cached; `round_robin`: anywhere."""
    training: Training = Training.ASYNCHRONOUS
    """Whether rollout waits for each update (`synchronous`) or not (`asynchronous`)."""
    max_staleness: Annotated[Whole, Field(ge=0, le=1_000)] = 1
    """Weight versions that a trajectory may lag behind the trainer."""


class CostsSpec(Spec):
    """How long each change takes; by default the paper's figures where it has them (section 6.5.2)."""

    drain: Seconds = _COSTS.drain_s
    """Stop dispatch to a worker and finish or park what it runs."""
    change_role: Seconds = _COSTS.change_role_s
    """A serving worker takes another serving role."""
    start: Seconds = _COSTS.start_s
    """Background part of an expansion: engine start and weights, while the others serve."""
    admit: Seconds = _COSTS.admit_s
    """Finalising part of an expansion: the group joins the pool."""
    borrow: Seconds = _COSTS.borrow_s
    """An overlap worker wakes, takes the newest weights and serves."""
    return_: Annotated[Seconds, Field(alias="return")] = _COSTS.return_s
    """A drained overlap worker frees its memory for the trainer."""
    activate: Seconds = _COSTS.activate_s
    """An idle, running worker begins to serve."""
    deactivate: Seconds = _COSTS.deactivate_s
    """A drained worker ceases to serve."""
    stop: Seconds = _COSTS.stop_s
    """A drained worker's engine ends."""
    sync_weights: Seconds = _COSTS.sync_weights_s
    """The newest weights reach the workers."""

    def build(self) -> TransitionCosts:
        """The transition costs."""
        return TransitionCosts(**{f"{name.removesuffix('_')}_s": value for name, value in self})


class ForecastSpec(Spec):
    """Observations of one forecast source, newest last."""

    values: Annotated[tuple[AnyQuantity, ...], Field(min_length=1, max_length=100_000)]
    """Numbers, or quantities with units: `[150s, 170s]`, `[0, 1, 0]`."""
    age: Seconds = 0.0
    """Age of the newest."""


class EventSpec(Spec):
    """Why a decision is due, beyond the state itself."""

    kind: EventKind
    """`gpus_added`, `reclaim_notice`, `gpus_lost`, `training_started`, `training_finished`, `profile_updated`,
    `batch_started` or `operator`."""
    workers: tuple[WorkerId, ...] = ()
    """Worker ids; a node's name stands for all its workers. Not for gpus_added."""
    within: Seconds | None = None
    """Grace of a reclaim notice; time until training needs the GPUs."""
    gpus: Annotated[Whole, Field(ge=1, le=MAX_WORKERS)] | None = None
    """How many GPUs gpus_added brings."""
    node: Name | None = None
    """The node that they come on."""
    at: Seconds = 0.0
    """When, on the clock of the run."""


class TrainingSpec(Spec):
    """The trainer beside the rollout."""

    step: Seconds = 160.0
    """Time of one training step."""
    per_token: Seconds = 0.0
    """Added for every token of the batch's contexts."""
    return_within: Seconds = 10.0
    """Overlap workers that have not returned by then are made to."""

    def build(self) -> TrainingSettings:
        """The settings as facts."""
        return TrainingSettings(step_s=self.step, per_token_s=self.per_token, return_within_s=self.return_within)


class SimulationSpec(Spec):
    """What `pearl simulate` adds to a scenario."""

    horizon: Annotated[Seconds, Field(gt=0, le=MAX_HORIZON_S)] = 7200.0
    """Simulated time, at most 31 days."""
    batches: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    """Stop after so many batches, if the horizon is not over first; absent: no limit."""
    training: TrainingSpec = TrainingSpec.model_construct()
    """The trainer."""
    trace: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Availability trace of the preemptible zone, relative to this file; `--trace` overrides it. Absent: none."""

    def build(self) -> SimulationSettings:
        """The settings as facts."""
        return SimulationSettings(
            horizon_s=self.horizon, batches=self.batches, training=self.training.build(), trace=self.trace
        )


class ScenarioSpec(Spec):
    """A cluster, what runs on it, and what it costs."""

    cluster: ClusterSpec
    """Nodes, GPUs, zones, and current roles."""
    workload: WorkloadSpec
    """The batch."""
    engine: EngineSpec
    """A built-in engine profile by name, a profile with overrides, or a profile in full."""
    costs: CostsSpec = Field(default_factory=lambda: CostsSpec.model_validate({}))
    """Transition costs."""
    prices: Mapping[Zone, UsdPerHour] = Field(default_factory=dict)
    """Price of a worker by zone, `3.5 usd/h`."""
    power: Mapping[Role, Watts] = Field(default_factory=dict)
    """Power of a worker by role, `650 W`."""
    job_priority: Annotated[Whole, Field(ge=0, le=1_000_000)] = 0
    """Priority of the job, for policies that weigh jobs; larger matters more."""
    overlap_window: Seconds | None = None
    """How long the overlap GPUs stay free; absent: no limit is known."""
    policy: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Policy to use unless another is given: the name of a built-in one, or a path relative to this file."""
    event: EventSpec | None = None
    """The event that makes a decision due."""
    forecasts: Mapping[Name, ForecastSpec] = Field(default_factory=dict)
    """Observations of the policy's forecast sources, by source."""
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] = 0
    """Seed of everything drawn at random."""
    simulation: SimulationSpec = Field(default_factory=SimulationSpec)
    """What `pearl simulate` adds."""


class MetadataSpec(Spec):
    """Name and remarks."""

    name: Name
    """Name of the scenario or profile."""
    description: str = ""
    """What it shows."""
    labels: Mapping[Name, str] = Field(default_factory=dict)
    """Free labels."""


class ScenarioDocument(Spec):
    """A scenario file."""

    apiVersion: Literal["pearl.dev/v1alpha1"]  # noqa: N815 - the field's name in the document
    """`pearl.dev/v1alpha1`."""
    kind: Literal["Scenario"]
    """`Scenario`."""
    metadata: MetadataSpec
    """Name and remarks."""
    spec: ScenarioSpec
    """The scenario itself."""


def scenario_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a scenario document, for editors."""
    return tidy_schema(ScenarioDocument, title="PEARL scenario")
