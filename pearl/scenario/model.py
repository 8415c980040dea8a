"""What a scenario file says, as facts in base units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pearl.core.cluster import ClusterState, Role, Zone
from pearl.core.engine import EngineProfile, TransitionCosts
from pearl.core.event import Event, apply_event
from pearl.core.facts import ForecastSamples
from pearl.core.workload import Workload


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
    event: Event | None = None
    forecasts: Mapping[str, ForecastSamples] = field(default_factory=dict)
    seed: int = 0
    simulation: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the simulator, as written."""
    description: str = ""

    @property
    def state_after_event(self) -> ClusterState:
        """The state with the scenario's event applied."""
        return apply_event(self.state, self.event) if self.event else self.state
