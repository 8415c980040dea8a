"""What a scenario file says, as facts in base units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pearl.core.cluster import ClusterState, Role, Zone
from pearl.core.engine import EngineProfile, TransitionCosts
from pearl.core.event import Event, apply_event
from pearl.core.facts import ForecastSamples
from pearl.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The trainer beside the rollout: time of a step, and how long overlap workers have to give its GPUs back."""

    step_s: float = 160.0
    per_token_s: float = 0.0
    return_within_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """What a simulation adds to a scenario."""

    horizon_s: float = 7200.0
    batches: int | None = None
    training: TrainingSettings = TrainingSettings()
    trace: str | None = None
    """Availability trace of the preemptible zone, relative to the scenario's folder."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A cluster, what runs on it, and what it costs.

    `state` is the cluster before `event`; `state_after_event` is the one that a decision is due for.
    """

    name: str
    file: str
    sha256: str
    """Of the file's bytes."""
    state: ClusterState
    workload: Workload
    engine: EngineProfile
    costs: TransitionCosts = field(default_factory=TransitionCosts)
    prices: Mapping[Zone, float] = field(default_factory=dict)
    """Usd per worker-hour."""
    power_w: Mapping[Role, float] = field(default_factory=dict)
    """Watts per worker."""
    job_priority: int = 0
    overlap_window_s: float | None = None
    """How long overlap GPUs stay free; None: no limit is known."""
    policy: str | None = None
    """Built-in name, or a path relative to the scenario's folder."""
    max_gpus: int | None = None
    """GPUs that the cluster may hold; None: no limit is set."""
    event: Event | None = None
    forecasts: Mapping[str, ForecastSamples] = field(default_factory=dict)
    seed: int = 0
    simulation: SimulationSettings = SimulationSettings()
    description: str = ""

    @property
    def state_after_event(self) -> ClusterState:
        """The state with the scenario's event applied."""
        return apply_event(self.state, self.event) if self.event else self.state
