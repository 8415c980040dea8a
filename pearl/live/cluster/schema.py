"""Schema of a Cluster document; what it checks is what one part can say about itself."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pearl.core.cluster import Role, Zone
from pearl.core.workload import Training
from pearl.live.cluster.arguments import check_argument
from pearl.live.control.limits import ControlLimits
from pearl.live.engine.config import MIN_LEASE_S
from pearl.live.router.config import RouterConfig
from pearl.scenario.engine_schema import EngineSpec
from pearl.scenario.fields import Flag, Name, Number, PositiveBytes, Quantity, Seconds, Spec, UsdPerHour, Watts, Whole
from pearl.scenario.json_schema import tidy_schema
from pearl.scenario.schema import MAX_TENSOR_PARALLEL, MAX_WORKERS, CostsSpec, MetadataSpec, WorkloadSpec
from pearl.scenario.units import Dimension

PositiveSeconds = Annotated[float, Quantity(dimension=Dimension.TIME, positive=True)]
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
Port = Annotated[Whole, Field(ge=1, le=65_535)]
LOCAL, AUTO = "local", "auto"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*=[A-Za-z0-9][A-Za-z0-9._-]*")
_LIMITS = ControlLimits()
_ROUTER = RouterConfig(model="m")


class LocalNodeSpec(Spec):
    """A node of the Ray cluster that PEARL starts itself, on this machine."""

    name: Name
    """Its name; workers are named `name/0`, `name/1`, …"""
    zone: Zone
    """`reserved`, `preemptible`, or `overlap`."""
    workers: Annotated[Whole, Field(ge=1, le=256)] = 1
    """Workers that it offers."""


class RaySpec(Spec):
    """The Ray cluster that holds the workers."""

    address: str = AUTO
    """`local`: start one on this machine, and end it with `pearl serve`; `auto`: join the one that runs here;
    `HOST:PORT`: join that one."""
    nodes: tuple[LocalNodeSpec, ...] = ()
    """Nodes to start; only with address local."""

    @field_validator("address")
    @classmethod
    def _known(cls, address: str) -> str:
        match = _ADDRESS.fullmatch(address)
        if address not in (LOCAL, AUTO) and not (match and 0 < int(match[2]) < 1 << 16):
            raise ValueError("expected local, auto or HOST:PORT")
        return address

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.address == LOCAL) != bool(self.nodes):
            raise ValueError("address local needs nodes, and any other address takes none")
        names = [node.name for node in self.nodes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"nodes are named twice: {', '.join(twice)}")
        return self


class TinyModelSpec(Spec):
    """A tiny Qwen3 with random weights, written into the state directory: real engines without a download."""

    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    """Seed of the weights."""


class ModelSpec(Spec):
    """What the engines serve."""

    path: PathText | None = None
    """Directory of the model on every node, in one of `roots`; relative to this file."""
    tiny: TinyModelSpec | None = None
    """In place of `path`: a tiny random model."""
    served_name: Annotated[str, Field(min_length=1, max_length=256)]
    """Name under which the router serves it."""
    eos_token_ids: tuple[Annotated[Whole, Field(ge=0, lt=2**31)], ...] | None = None
    """End tokens; by default those of the model's `generation_config.json`."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.path is None) == (self.tiny is None):
            raise ValueError("a model needs either path or tiny")
        return self


class EngineArgumentsSpec(Spec):
    """What each vLLM engine is told; `tensor_parallel` GPUs of one node make a worker."""

    tensor_parallel: Annotated[Whole, Field(ge=1, le=MAX_TENSOR_PARALLEL)] = 1
    """GPUs of a worker; equal to that of the profile."""
    kv_cache: PositiveBytes | None = None
    """Size of a worker's KV cache; required on cpu. Absent: vLLM measures what is free."""
    max_model_tokens: Annotated[Whole, Field(ge=2, le=10_000_000)]
    """Longest prompt and output together."""
    max_sequences: Annotated[Whole, Field(ge=1, le=65_536)] = 256
    """Sequences in one step; the profile's is replaced by it."""
    max_batched_tokens: Annotated[Whole, Field(ge=1, le=10_000_000)] = 8192
    """Tokens in one step; the profile's `chunk_tokens` is replaced by it."""
    kv_lease: Seconds = 30.0
    """How long a prefilled KV cache is kept for its decode worker, in whole seconds."""
    kv_margin: PositiveSeconds = 1.0
    """Engines refuse a KV cache this long before its lease ends."""
    arguments: Mapping[Name, Flag | int | float | str] = Field(default_factory=dict)
    """More of vLLM's engine arguments, by their Python names, out of a checked list."""

    @field_validator("kv_lease")
    @classmethod
    def _whole(cls, lease_s: float) -> float:
        if lease_s < MIN_LEASE_S or lease_s != int(lease_s):
            raise ValueError(f"vLLM counts leases in whole seconds; expected {MIN_LEASE_S}s or more")
        return lease_s

    @field_validator("arguments")
    @classmethod
    def _allowed(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in arguments:
            check_argument(name)
        return arguments

    @model_validator(mode="after")
    def _lease(self) -> Self:
        if self.kv_margin >= self.kv_lease:
            raise ValueError("kv_margin must be shorter than kv_lease")
        return self


class ZoneSpec(Spec):
    """How the nodes of the Ray cluster offer workers to a zone: by a custom resource, or by a label."""

    resource: Name | None = None
    """Custom resource that counts a node's workers, of which each worker takes one; `pearl_ZONE` by default."""
    label: str | None = None
    """In place of a resource: nodes with this label, as `KEY=VALUE`, are of the zone."""
    workers_per_node: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """Workers of a node that is named by its label."""
    min_workers: Annotated[Whole, Field(ge=0, le=MAX_WORKERS)] = 0
    """`pearl serve` begins only when the zone offers so many."""
    max_workers: Annotated[Whole, Field(ge=0, le=MAX_WORKERS)] | None = None
    """What the nodes offer beyond it is not used; absent: no limit."""
    cpus: Number = 1.0
    """CPUs that Ray sets aside for a worker."""
    gpus: Number | None = None
    """GPUs that Ray sets aside for a worker; by default `tensor_parallel` on cuda, and 0 on cpu. A share, such as 0.5,
    in zone overlap, where the trainer's processes take the rest of the same GPU."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.label is not None and self.resource is not None:
            raise ValueError("a zone has either a resource or a label")
        if (self.label is None) != (self.workers_per_node is None):
            raise ValueError("label and workers_per_node belong together: a label does not say how many workers")
        if self.label is not None and not _LABEL.fullmatch(self.label):
            raise ValueError(f"expected KEY=VALUE, not {self.label!r}")
        if self.max_workers is not None and self.min_workers > self.max_workers:
            raise ValueError("min_workers must not exceed max_workers")
        return self


class WeightsSpec(Spec):
    """The store that the trainer publishes weights into."""

    root: PathText | None = None
    """Directory that every node reads, in one of `roots`; by default `weights` in the state directory."""
    keep: Annotated[Whole, Field(ge=2, le=1000)] = 3
    """Versions that stay; more than `training.max_staleness` + 1."""


class TrainingModeSpec(Spec):
    """How rollout and training interleave."""

    mode: Training = Training.ASYNCHRONOUS
    """Whether rollout waits for each update (`synchronous`) or not (`asynchronous`)."""
    max_staleness: Annotated[Whole, Field(ge=0, le=1_000)] = 1
    """Weight versions that a trajectory may lag behind the trainer."""


class HttpSpec(Spec):
    """Where router and admin interface listen."""

    host: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[0-9A-Za-z_.:%-]+$")] = "127.0.0.1"
    """Address to listen on; one that other machines reach needs `expose`."""
    port: Annotated[Whole, Field(ge=0, le=65_535)] = 8000
    """Port; 0 lets the system choose."""
    expose: Flag = False
    """That other machines may reach it is meant."""

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if not self.expose and not is_loopback(self.host):
            raise ValueError(f"other machines reach {self.host}; expected expose: true if that is meant")
        return self


class KvPortsSpec(Spec):
    """Ports of the KV transfer's side channel; each worker takes the first that is free on its machine."""

    first: Port = 15_600
    """The first."""
    count: Annotated[Whole, Field(ge=1, le=65_535)] = 1024
    """How many there are to choose from."""

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if self.first + self.count > 1 << 16:
            raise ValueError("the ports must end at 65535")
        return self


class PortsSpec(Spec):
    """Addresses and ports."""

    http: HttpSpec = Field(default_factory=HttpSpec)
    """Router and admin interface."""
    kv: KvPortsSpec = Field(default_factory=KvPortsSpec)
    """KV transfer."""


class LimitsSpec(Spec):
    """How long the control plane waits for what it asks of workers."""

    drain: PositiveSeconds = _LIMITS.drain_s
    """Open legs of a drained worker may finish for this long; then they move elsewhere."""
    start: PositiveSeconds = _LIMITS.start_s
    """A worker is up by then, or its group is rolled back."""
    canary: PositiveSeconds = _LIMITS.canary_s
    """A canary passes by then."""
    transition: PositiveSeconds = _LIMITS.transition_s
    """A weight update, a sleep or a waking; past this the worker leaves the pool."""
    kept: PositiveSeconds = _LIMITS.kept_s
    """KV caches kept for other workers may be pulled for this long before an update or a sleep; at least
    `router.kv_margin`."""
    release: PositiveSeconds = _LIMITS.release_s
    """How long a trainer waits for its GPUs where it names no deadline."""
    health_every: PositiveSeconds = _LIMITS.health_every_s
    """Between two looks at workers and nodes."""
    restart_after: PositiveSeconds = _LIMITS.restart_after_s
    """First pause before a dead engine is started again; it doubles."""
    restart_within: PositiveSeconds = _LIMITS.restart_within_s
    """Longest such pause."""

    def build(self) -> ControlLimits:
        """The limits."""
        return ControlLimits(**{f"{name}_s": value for name, value in self})


class RouterSpec(Spec):
    """Limits of the router."""

    slots_per_worker: Annotated[Whole, Field(ge=1, le=65_536)] = _ROUTER.slots_per_worker
    """Legs that run on a worker at once."""
    max_queued: Annotated[Whole, Field(ge=0, le=10_000_000)] = _ROUTER.max_queued
    """Requests accepted beyond the slots of the pool; past them, 429."""
    call_deadline: PositiveSeconds = _ROUTER.call_deadline_s
    """How long a call waits where its client names no deadline."""
    max_call_deadline: PositiveSeconds = _ROUTER.max_call_deadline_s
    """The longest deadline that a client may name."""
    request_lifetime: PositiveSeconds = _ROUTER.request_lifetime_s
    """After this an accepted request fails."""
    stall: PositiveSeconds = _ROUTER.stall_s
    """A leg without a token for this long is interrupted."""
    kv_margin: PositiveSeconds = _ROUTER.kv_margin_s
    """A kept KV cache is not dispatched in its lease's last seconds; longer than `engine.kv_margin`."""


class ClusterFileSpec(Spec):
    """A live cluster: who offers workers, what they serve, and what is known of them before anything is measured."""

    ray: RaySpec = Field(default_factory=RaySpec)
    """The Ray cluster."""
    device: Literal["cuda", "cpu"]
    """What the workers compute on."""
    model: ModelSpec
    """What they serve."""
    engine: EngineArgumentsSpec
    """How vLLM is told to."""
    profile: EngineSpec
    """Engine profile to begin with, as in a scenario: a name, one with overrides, or in full."""
    zones: Mapping[Zone, ZoneSpec] = Field(default_factory=dict)
    """How nodes offer workers; zones that are left out go by their resource `pearl_ZONE`."""
    workload: WorkloadSpec | None = None
    """Workload to begin with, as in a scenario; absent: decisions begin when one has been measured."""
    costs: CostsSpec = Field(default_factory=lambda: CostsSpec.model_validate({}))
    """Transition costs to begin with, as in a scenario."""
    prices: Mapping[Zone, UsdPerHour] = Field(default_factory=dict)
    """Price of a worker by zone, `3.5 usd/h`."""
    power: Mapping[Role, Watts] = Field(default_factory=dict)
    """Power of a worker by role, `650 W`."""
    job_priority: Annotated[Whole, Field(ge=0, le=1_000_000)] = 0
    """Priority of the job, for policies that weigh jobs; larger matters more."""
    overlap_window: Seconds | None = None
    """How long overlap GPUs stay free after a training step; absent: no limit is known."""
    training: TrainingModeSpec = Field(default_factory=TrainingModeSpec)
    """Training beside the rollout."""
    weights: WeightsSpec = Field(default_factory=WeightsSpec)
    """The weight store."""
    roots: tuple[PathText, ...] = ()
    """Directories that model and weights must lie in, relative to this file; its own folder and the state directory
    always count."""
    ports: PortsSpec = Field(default_factory=PortsSpec)
    """Where router, admin interface and workers listen."""
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    """Waits of the control plane."""
    router: RouterSpec = Field(default_factory=RouterSpec)
    """What the router accepts, and how long it waits."""
    state_dir: PathText = "pearl-state"
    """Directory of journal, records and token, relative to where `pearl serve` runs; `--state` overrides it."""


class ClusterDocument(Spec):
    """A cluster file."""

    apiVersion: Literal["pearl.dev/v1alpha1"]  # noqa: N815 - the field's name in the document
    """`pearl.dev/v1alpha1`."""
    kind: Literal["Cluster"]
    """`Cluster`."""
    metadata: MetadataSpec
    """Name and remarks; workers of clusters with different names may share one Ray cluster."""
    spec: ClusterFileSpec
    """The cluster itself."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def cluster_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a cluster document, for editors."""
    return tidy_schema(ClusterDocument, title="PEARL cluster")
