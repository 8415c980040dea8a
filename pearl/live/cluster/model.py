"""What a cluster file says, as facts: paths resolved, quantities in base units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.core.cluster import ClusterState, Role, Zone
from pearl.core.engine import EngineProfile, TransitionCosts
from pearl.core.situation import Situation
from pearl.core.workload import Training, Workload
from pearl.live.control.limits import ControlLimits
from pearl.live.devices import DeviceProfile
from pearl.live.router.config import RouterConfig
from pearl.live.tiny_model import TinyModel


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A node that PEARL starts itself."""

    name: str
    zone: Zone
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """The Ray cluster: one to start (`nodes`), or one to join at `address`."""

    address: str
    """`local`, `auto` or HOST:PORT."""
    nodes: tuple[LocalNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What the engines serve."""

    path: Path
    served_name: str
    tiny: TinyModel | None = None
    """The model to write to `path` where it is not there yet; None: it is there."""
    eos_token_ids: frozenset[int] | None = None
    """None: those that the model's own files name."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What each vLLM engine is told."""

    tensor_parallel: int
    kv_cache_bytes: int | None
    max_model_tokens: int
    max_sequences: int
    max_batched_tokens: int
    kv_lease_s: int
    kv_margin_s: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """More of vLLM's, checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A label of a Ray node."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneSettings:
    """How nodes offer workers to one zone: by `resource` or by `label`; the other is None."""

    resource: str | None
    label: Label | None = None
    workers_per_node: int = 0
    """With a label."""
    min_workers: int = 0
    max_workers: int | None = None
    cpus: float = 1.0
    """That Ray sets aside for a worker."""
    gpus: float = 0.0
    """That Ray sets aside for a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where router and admin interface listen."""

    host: str
    port: int
    """0 lets the system choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSettings:
    """The store of published weights."""

    root: Path
    keep: int
    """Versions that stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Limits of the router that a cluster file may set."""

    slots_per_worker: int
    max_queued: int
    call_deadline_s: float
    max_call_deadline_s: float
    request_lifetime_s: float
    stall_s: float
    kv_margin_s: float


@dataclass(frozen=True, kw_only=True)
class LiveCluster:
    """A live cluster as its file describes it. All paths are absolute."""

    name: str
    file: str
    sha256: str
    """Of the file's bytes and of the sets."""
    ray: RaySettings
    device: DeviceProfile
    """With the extra engine arguments merged in."""
    model: ModelSettings
    engine: EngineSettings
    profile: EngineProfile
    """To begin with; its limits per step are those of `engine`."""
    zones: Mapping[Zone, ZoneSettings]
    """Every zone."""
    workload: Workload | None
    """To begin with; None: nothing is known before it is measured."""
    costs: TransitionCosts
    prices: Mapping[Zone, float]
    """Usd per worker-hour."""
    power_w: Mapping[Role, float]
    """Watts per worker."""
    job_priority: int
    overlap_window_s: float | None
    training: Training
    max_staleness: int
    weights: WeightSettings
    roots: tuple[Path, ...]
    """Model and weights lie in one of these."""
    http: HttpSettings
    kv_ports: range
    """To choose a worker's side channel from."""
    limits: ControlLimits
    router: RouterSettings
    state_dir: Path
    description: str = ""

    @property
    def namespace(self) -> str:
        """The Ray namespace of its workers: clusters with different names can share one Ray cluster."""
        return f"pearl.{self.name}"

    def situation(self, state: ClusterState) -> Situation:
        """What is known of `state` before anything is measured."""
        return Situation(
            state=state,
            workload=self.workload,
            engine=self.profile,
            costs=self.costs,
            prices_usd_per_h=self.prices,
            power_w=self.power_w,
            job_priority=self.job_priority,
            overlap_window_s=self.overlap_window_s,
        )

    def router_config(
        self, *, journal: Path | None, admin_token: str | None, eos_token_ids: frozenset[int] = frozenset()
    ) -> RouterConfig:
        """What the router is told; raises `UsageError` where the limits contradict each other."""
        limits = self.router
        return RouterConfig(
            model=self.model.served_name,
            journal=journal,
            host=self.http.host,
            port=self.http.port,
            admin_token=admin_token,
            eos_token_ids=self.model.eos_token_ids if self.model.eos_token_ids is not None else eos_token_ids,
            max_tokens=self.engine.max_model_tokens,
            kv_lease_s=float(self.engine.kv_lease_s),
            slots_per_worker=limits.slots_per_worker,
            max_queued=limits.max_queued,
            call_deadline_s=limits.call_deadline_s,
            max_call_deadline_s=limits.max_call_deadline_s,
            request_lifetime_s=limits.request_lifetime_s,
            stall_s=limits.stall_s,
            kv_margin_s=limits.kv_margin_s,
        )
