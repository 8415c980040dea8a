"""Everything that one decision is taken on: state, profiles, costs, forecasts and the history of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pearl.core.cluster import ClusterState, Mode, Role, Zone
from pearl.core.engine import EngineProfile, TransitionCosts
from pearl.core.facts import ForecastSamples
from pearl.core.problem import Change
from pearl.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAge:
    """How long ago the last change of a kind was: rollout steps finished, and seconds."""

    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What is known when a decision is due.

    `workload` is None while nothing has been measured: the only decision then is to keep. `calibration_error` is the
    live relative error of predicted against measured makespans, None where nothing was measured. A kind of change that
    never happened is absent from `changes`.
    """

    state: ClusterState
    workload: Workload | None
    engine: EngineProfile
    costs: TransitionCosts = field(default_factory=TransitionCosts)
    prices_usd_per_h: Mapping[Zone, float] = field(default_factory=dict)
    power_w: Mapping[Role, float] = field(default_factory=dict)
    job_priority: int = 1
    overlap_window_s: float | None = None
    """Seconds for which overlap GPUs stay free; None: no known end."""
    samples: Mapping[str, ForecastSamples] = field(default_factory=dict)
    changes: Mapping[Change, ChangeAge] = field(default_factory=dict)
    calibration_error: float | None = None
    corrections: Mapping[Mode, float] = field(default_factory=dict)
    """Measured over predicted makespan by mode, to multiply predictions by; a mode left out stands as predicted."""
