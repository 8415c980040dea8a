"""What a policy may read in one decision, resolved and in base units; and what a policy bound to it says.

Base units: seconds, tokens, usd, watts, bytes; counts and shares are plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import assert_never

from pearl.core.cluster import Mode
from pearl.core.problem import Axis, Change, Group, Linear, Rule, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSamples:
    """Observations of one forecast source: newest last, with the age of the newest; base units."""

    values: tuple[float, ...]
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTable:
    """A fact that varies with one count: for each axis, values for counts 0 … N in base units (floats)."""

    columns: Mapping[Axis, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The values of every name of the policy language for one decision.

    scalars: B, K_seq, H_max, … (see `pearl.policy.vocabulary`), base units.
    tables:  T_prefill, T_decode, demand_rate, …: each given over the counts that it depends on.
    maps:    price['reserved'], power['decode'], …: {map name: {key: value}}.
    samples: forecast sources, {source: samples}.
    """

    groups: tuple[Group, ...]
    scalars: Mapping[str, float]
    tables: Mapping[str, ColumnTable]
    maps: Mapping[str, Mapping[str, float]]
    samples: Mapping[str, ForecastSamples] = field(default_factory=dict)


LONGEST_TIME_LIMIT_S = 1e6
"""Longest time limit of a solver that may be asked for (11 days): libraries keep theirs in as little as 32 bits."""


class HysteresisSemantics(StrEnum):
    """What a threshold does."""

    VETO = "veto"
    """The best configuration is found first, then refused if its gain is too small (the paper's text)."""
    GATE = "gate"
    """Only configurations whose gain is large enough compete."""
    CHARGE = "charge"
    """The threshold is added to the objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooldown:
    """Shortest distance between two changes of one kind; both limits hold, and either may be absent (0)."""

    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundHysteresis:
    """Thresholds in seconds for this decision."""

    semantics: HysteresisSemantics = HysteresisSemantics.GATE
    mode_s: float = 0.0
    ratio_s: float = 0.0
    resize_s: float | None = 0.0
    """None: a resize meets no threshold, not even that of being no worse than staying."""
    cooldown_mode: Cooldown = Cooldown()
    cooldown_ratio: Cooldown = Cooldown()
    cooldown_resize: Cooldown = Cooldown()
    when_stay_infeasible: HysteresisSemantics | None = HysteresisSemantics.CHARGE
    """CHARGE, or None: thresholds are dropped when the change is forced."""

    def cooldown(self, kind: Change) -> Cooldown:
        """The cooldown of one kind of change."""
        match kind:
            case Change.MODE:
                return self.cooldown_mode
            case Change.RATIO:
                return self.cooldown_ratio
            case Change.RESIZE:
                return self.cooldown_resize
        assert_never(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundBorrow:
    """The borrow gate for this decision."""

    enabled: bool = False
    window_s: float | None = None
    """None: no limit on the window."""
    min_saving_s: float = 0.0
    max_workers: int | None = None
    gated: bool = True
    """False admits a borrow without asking for a saving (an ablation of the paper)."""
    stale: str = ""
    """Why borrowing is off, if a stale forecast switched it off; else empty."""


class OnLimit(StrEnum):
    """What to do when the time limit passes."""

    KEEP_CURRENT = "keep_current"
    BEST_SO_FAR = "best_so_far"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverChoice:
    """Solvers in order of preference, and the limit."""

    prefer: tuple[str, ...] = ("cpsat",)
    time_limit_s: float = 10.0
    on_limit: OnLimit = OnLimit.KEEP_CURRENT
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastValue:
    """A forecast as it was resolved: its value, what it came from, and how old that is."""

    name: str
    source: str
    value: float
    age_s: float
    stale: bool
    samples: int


@dataclass(frozen=True, kw_only=True)
class BoundPolicy:
    """A policy resolved against the facts of one decision: rows, tiers and thresholds, nothing left to evaluate."""

    name: str
    sha256: str
    modes: tuple[Mode, ...]
    rules: tuple[Rule, ...]
    tiers: tuple[Tier, ...]
    hysteresis: BoundHysteresis
    borrow: BoundBorrow
    solver: SolverChoice
    predictor: str | None = None
    metrics: Mapping[str, Linear] = field(default_factory=dict)
    """The `let` metrics, as expressions of the counts, to report at the chosen configuration."""
    constants: Mapping[str, Fraction] = field(default_factory=dict)
    """Resolved params and constant lets, base units."""
    forecasts: tuple[ForecastValue, ...] = ()
