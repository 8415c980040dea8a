"""The schema of a policy file: strict, frozen, every field documented. `pearl policy schema` prints it for editors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, PlainValidator, WithJsonSchema

from pearl.core.cluster import Mode
from pearl.core.facts import HysteresisSemantics, OnLimit
from pearl.documents import Part

API_VERSION = "pearl.dev/v1alpha1"
KIND = "SchedulingPolicy"

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
LABEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _expression(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        raise ValueError("must be a number or an expression such as 25% * workers")
    return value


def _condition(value: Any) -> Any:
    return value if isinstance(value, bool) else _expression(value)


def _limits(value: Any) -> Any:
    for item in value if isinstance(value, list) and value else [value]:
        _expression(item)
    return tuple(value) if isinstance(value, list) else (value,)


def _some(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("must have at least one entry")
    return value


_AT_LEAST_ONE: dict[str, JsonValue] = {"minItems": 1}
_EXPRESSION_SCHEMA = {"type": ["string", "number"], "description": "a number, or an expression of the policy language"}
Expression = Annotated[Any, PlainValidator(_expression), WithJsonSchema(_EXPRESSION_SCHEMA)]
Condition = Annotated[
    Any, PlainValidator(_condition), WithJsonSchema({"type": ["boolean", "string"], "description": "true or false"})
]
Limits = Annotated[
    Any,
    PlainValidator(_limits),
    WithJsonSchema({"type": ["string", "number", "array"], "description": "`2 steps`, `30s`, or a list of both"}),
]
Identifier = Annotated[str, Field(pattern=NAME_PATTERN, max_length=64)]
SolverName = Annotated[str, Field(min_length=1, max_length=200)]
Label = Annotated[str, Field(pattern=LABEL_PATTERN, max_length=64)]


class Metadata(Part):
    """Who the policy is."""

    name: Label
    """Name of the policy, shown in every decision."""
    version: Label | None = None
    """Version of a policy that others extend: `builtin/feasibility@v1` asks for `v1`."""
    description: str | None = Field(default=None, max_length=2000)
    """What the policy is for, in a sentence or two."""
    labels: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Free labels; nothing reads them."""


class ParamSection(Part):
    """A typed constant; `--set name=value` overrides it."""

    value: Expression
    """Value with its unit, of literals only: `0.95`, `14500 usd * 1 s`."""
    min: Expression | None = None
    """Smallest value allowed."""
    max: Expression | None = None
    """Largest value allowed."""
    description: str | None = None
    """What the constant means."""


class ForecastSection(Part):
    """A forecast: a quantile of the observed samples of a source, resolved once per decision."""

    source: Identifier
    """Source of the samples, such as `overlap_window` or `spot_reclaims`."""
    quantile: Expression = 0.5
    """Quantile over the samples, 0 to 1, linearly interpolated."""
    horizon: Expression | None = None
    """Time ahead that the forecast is for, as a duration; sources that count events count over it."""
    max_age: Expression | None = None
    """Age, as a duration, past which the newest sample is stale; without it samples never are."""
    on_stale: Literal["no_borrow", "keep_last", "fail"] = "fail"
    """What a stale forecast does: no borrowing, the last value still counts, or an error. A source without any sample
    counts as stale unless `default` is given."""
    default: Expression | None = None
    """Value, a constant expression, while the source has no sample at all."""
    unit: Expression | None = None
    """Unit, such as `tokens/s`, of a source that the vocabulary does not know."""


class CooldownSection(Part):
    """Shortest distance between two changes of one kind: `2 steps`, `30s`, or a list of both."""

    mode: Limits | None = None
    """Between two mode changes."""
    ratio: Limits | None = None
    """Between two ratio changes."""
    resize: Limits | None = None
    """Between two changes of the pool's size by choice."""


class HysteresisSection(Part):
    """How much better a change must be than staying, predicted with `T_stay`."""

    semantics: HysteresisSemantics = HysteresisSemantics.GATE
    """veto: the best configuration is found, then refused if its gain is too small (the paper's text); gate: only
    configurations that gain enough compete; charge: the threshold is added to the objective."""
    mode: Expression = 0
    """Threshold of a mode change, as a duration."""
    ratio: Expression = 0
    """Threshold of a ratio change, as a duration."""
    resize: Expression | None = None
    """Threshold of a resize by choice, as a duration; absent: a resize meets no threshold at all."""
    cooldown: CooldownSection = CooldownSection.model_construct()
    """Shortest distance between changes."""
    when_stay_infeasible: Literal["charge", "drop"] | None = None
    """What thresholds do when staying breaks a hard rule, so that a change is forced: they become prices, or fall
    away. Absent: charge where the first tier is a time, else drop."""


class BorrowSection(Part):
    """When training GPUs that idle may be borrowed."""

    enabled: Condition = False
    """Whether to borrow at all."""
    gated: Condition = True
    """Whether a borrow must pay for itself; false is an ablation of the paper."""
    window: Expression | None = None
    """Time for which the GPUs stay free, as a duration; absent: no known end."""
    min_saving: Expression = 0
    """Makespan that a borrow must save, as a duration."""
    max_workers: Expression | None = None
    """Most workers to borrow, rounded down; absent: all."""


class DecisionSection(Part):
    """What may be decided, and how reluctantly."""

    modes: Annotated[tuple[Mode, ...], AfterValidator(_some)] = Field(
        default=(Mode.COLOCATED, Mode.DISAGGREGATED), json_schema_extra=_AT_LEAST_ONE
    )
    """Modes to choose from."""
    hysteresis: HysteresisSection = HysteresisSection.model_construct()
    """Thresholds and cooldowns."""
    borrow: BorrowSection = BorrowSection.model_construct()
    """Borrowing of overlap workers."""


class SoftSection(Part):
    """A rule that may be broken at a price."""

    penalty: Expression
    """Price, as a duration added to the makespan, of each whole or begun unit of violation."""
    max_violation: Expression | None = None
    """Largest violation, in the same units; absent: no limit."""
    per: Expression | None = None
    """What one unit of violation is, in the rule's own unit. Absent: 1 where the rule compares plain numbers, else one
    worker's worth (the amount of the rule's largest count coefficient)."""


class ConstraintSection(Part):
    """A rule, merged by name over `extends`."""

    name: Identifier
    """Name of the rule, in every message and report."""
    require: str | None = Field(default=None, min_length=1)
    """What must hold: comparisons with <=, >= or ==, joined by `and`."""
    when: Condition | None = None
    """`colocated`, `disaggregated`, a constant condition, or both joined by `and`; absent: always."""
    foreach: Literal["node", "zone"] | None = None
    """Repeats the rule for every node or zone; the word is a variable in `require`."""
    soft: SoftSection | None = None
    """Makes the rule soft; absent: it is hard."""
    relaxable: bool = True
    """Whether the rule may be offered as a fix when nothing is feasible; false for physical rules."""
    message: str | None = None
    """Shown when the rule stands in the way."""
    disabled: bool = False
    """Removes an inherited rule."""


class TierSection(Part):
    """One objective; tiers are optimised in order, each held while the next is optimised."""

    name: Identifier
    """Name of the tier."""
    minimize: Expression | None = None
    """Expression to minimise; `max(a, b)` is allowed."""
    maximize: Expression | None = None
    """Expression to maximise instead; `min(a, b)` is allowed."""
    tolerance: Expression = 0
    """Share of the optimum, such as `1%`, by which later tiers may worsen this one."""


class ObjectiveSection(Part):
    """What is optimised."""

    tiers: Annotated[tuple[TierSection, ...], AfterValidator(_some)] = Field(
        max_length=8, json_schema_extra=_AT_LEAST_ONE
    )
    """Objectives in order of importance."""


class SolverSection(Part):
    """Who solves, and for how long."""

    prefer: Annotated[tuple[SolverName, ...], AfterValidator(_some)] = Field(
        default=("cpsat",), json_schema_extra=_AT_LEAST_ONE
    )
    """Solvers in order of preference; the first that is available is used."""
    time_limit: Expression = "10s"
    """Time limit of a decision, as a duration of literals."""
    on_limit: OnLimit = OnLimit.KEEP_CURRENT
    """What happens when the limit passes: keep today's configuration, take the best found, or fail."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the solver."""


class Spec(Part):
    """The policy itself."""

    params: dict[Identifier, ParamSection] = Field(default_factory=dict, max_length=200)
    """Typed constants by name."""
    forecast: dict[Identifier, ForecastSection] = Field(default_factory=dict, max_length=50)
    """Forecasts by name, read as forecast['name']."""
    let: dict[Identifier, Expression] = Field(default_factory=dict, max_length=200)
    """Named metrics, in any order; reported in every decision."""
    decision: DecisionSection = DecisionSection.model_construct()
    """Modes, hysteresis and borrowing."""
    constraints: tuple[ConstraintSection, ...] = Field(default=(), max_length=500)
    """Rules."""
    objective: ObjectiveSection | None = None
    """Objectives; required unless inherited."""
    solver: SolverSection = SolverSection.model_construct()
    """Solver preferences."""
    predictor: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Makespan predictor: `bubble`, `network`, or the name of another; absent: the scenario's or the default."""


class PolicyFile(Part):
    """A scheduling policy."""

    api_version: Literal["pearl.dev/v1alpha1"] = Field(alias="apiVersion")
    """Version of the language."""
    kind: Literal["SchedulingPolicy"]
    """Kind of the document."""
    metadata: Metadata
    """Name and labels."""
    extends: tuple[Annotated[str, Field(min_length=1, max_length=300)], ...] = Field(default=(), max_length=8)
    """Policies to start from, merged in order: `builtin/feasibility@v1`, or a path relative to this file."""
    spec: Spec
    """The policy."""
