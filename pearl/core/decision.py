"""The decision: a chosen configuration, or keep, each with its reasons, predictions and margins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pearl.core.cluster import Counts, Mode, Role
from pearl.core.source import Span


class Outcome(StrEnum):
    """What kind of answer a decision is."""

    KEEP = "keep"
    SWITCH = "switch"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"
    """The time limit passed without an answer: not infeasible, and never zeros."""


class ReasonCode(StrEnum):
    """Why; append only, since users match on these."""

    BEST = "best"
    NO_BETTER = "no_better"
    HYSTERESIS = "hysteresis"
    COOLDOWN = "cooldown"
    FORCED = "forced"
    BORROW_GAIN = "borrow_gain"
    BORROW_DISABLED = "borrow_disabled"
    BORROW_GATE = "borrow_gate"
    BORROW_STALE = "borrow_stale"
    MANDATORY_RETURN = "mandatory_return"
    RECLAIMED = "reclaimed"
    IN_TRANSITION = "in_transition"
    NO_DATA = "no_data"
    CALIBRATION = "calibration"
    INFEASIBLE = "infeasible"
    LIMIT_KEEP = "limit_keep"
    LIMIT_BEST_SO_FAR = "limit_best_so_far"
    SOFT_BROKEN = "soft_broken"
    PREDICTED_ONLY = "predicted_only"
    TIER = "tier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason: a stable code, a sentence for people, and the numbers behind it."""

    code: ReasonCode
    text: str
    data: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTimes:
    """Predicted parts of the makespan, in seconds per batch; `makespan_s` need not be their sum (paths overlap)."""

    makespan_s: float
    prefill_s: float
    transfer_s: float
    decode_s: float
    environment_s: float
    prefix_hit_rate: float
    prefill_utilisation: float
    decode_utilisation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration and what is predicted of it."""

    counts: Counts
    makespan_s: float
    role_changes: int
    adds: int = 0
    removes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReport:
    """How far a rule is from binding at the chosen configuration; slack in the rule's own unit, negative if broken."""

    name: str
    span: Span | None
    text: str
    slack: float
    unit: str
    active: bool
    binding: bool
    violation: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverReport:
    """Who answered, how, and how long it took."""

    id: str
    library_version: str
    status: str
    build_s: float
    solve_s: float
    tier_values: tuple[float, ...] = ()
    bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the PD Decision Engine decided, and why."""

    outcome: Outcome
    mode: Mode | None
    counts: Counts
    reasons: tuple[Reason, ...]
    forced_by: tuple[str, ...] = ()
    chosen: Candidate | None = None
    stay: Candidate | None = None
    runner_up: Candidate | None = None
    rules: tuple[RuleReport, ...] = ()
    solver: SolverReport | None = None
    targets: tuple[tuple[str, Role, int], ...] = ()
    """(group id, role, workers): the assignment that the plan carries out."""
