"""A policy after loading: merged, parsed and checked, with nothing evaluated that depends on a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pearl.core.cluster import Mode
from pearl.core.facts import Cooldown, HysteresisSemantics, SolverChoice
from pearl.core.source import Span
from pearl.policy.formula import Formula
from pearl.policy.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A constant of the policy, in base units."""

    name: str
    value: Fraction
    unit: Unit
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSpec:
    """How a forecast is resolved; times in seconds."""

    name: str
    source: str
    unit: Unit
    quantile: float
    on_stale: str
    span: Span
    horizon_s: float | None = None
    max_age_s: float | None = None
    default: Formula | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Let:
    """A named metric; `parts` are the arguments of a top-level max or min that is not constant, else empty."""

    name: str
    formula: Formula
    unit: Unit
    constant: bool
    """Whether it is a number that no decision changes."""
    boolean: bool = False
    """Whether it is a constant condition."""
    parts: tuple[Formula, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inequality:
    """less <= more."""

    less: Formula
    more: Formula
    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """While a rule applies: in a mode (any, if None) and under constant conditions."""

    mode: Mode | None = None
    never: bool = False
    conditions: tuple[Formula, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftSpec:
    """Price of a violation, and its limit."""

    penalty: Formula
    max_violation: Formula | None = None
    per: Formula | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSpec:
    """A rule: one or more inequalities."""

    name: str
    require: Formula
    rows: tuple[Inequality, ...]
    when: When
    foreach: str | None
    soft: SoftSpec | None
    relaxable: bool
    message: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """An objective: the maximum of `parts` is minimised, or the minimum maximised."""

    name: str
    parts: tuple[Formula, ...]
    unit: Unit
    maximize: bool
    tolerance: Fraction
    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class HysteresisSpec:
    """Thresholds not yet evaluated."""

    semantics: HysteresisSemantics
    mode: Formula
    ratio: Formula
    resize: Formula | None
    cooldowns: Mapping[str, Cooldown]
    when_stay_infeasible: HysteresisSemantics | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowSpec:
    """The borrow gate, not yet evaluated."""

    enabled: Formula
    gated: Formula
    min_saving: Formula
    window: Formula | None = None
    max_workers: Formula | None = None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A checked policy.

    `sha256` covers the text of the file, of all that it extends, and the sets. `dimensions` tells by what its rules
    tell workers apart: `node`, `risk`. `document` is the merged policy as plain data, after sets.
    """

    name: str
    file: str
    sha256: str
    dimensions: frozenset[str]
    modes: tuple[Mode, ...]
    params: tuple[Param, ...]
    forecasts: tuple[ForecastSpec, ...]
    lets: tuple[Let, ...]
    """In an order in which each reads only earlier ones."""
    rules: tuple[RuleSpec, ...]
    tiers: tuple[TierSpec, ...]
    hysteresis: HysteresisSpec
    borrow: BorrowSpec
    solver: SolverChoice
    predictor: str | None = None
    files: tuple[str, ...] = ()
    """The files read: parents first, the policy's own last."""
    names: frozenset[str] = frozenset()
    """Names of the vocabulary that it reads."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def sources(self) -> frozenset[str]:
        """Forecast sources that it asks for."""
        return frozenset(forecast.source for forecast in self.forecasts)
