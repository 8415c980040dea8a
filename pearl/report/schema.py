"""The published form of a result: what `pearl solve --format json` prints, as pydantic models with a JSON Schema."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pearl.documents import Part

API_VERSION = "pearl.dev/v1alpha1"


class CountsDocument(Part):
    """Workers by role."""

    prefill: int
    decode: int
    colocated: int
    inactive: int
    borrowed: int
    """Overlap workers that serve, whatever their role."""


class ReasonDocument(Part):
    """One reason of the decision."""

    code: str
    """Stable; match on this."""
    text: str
    data: dict[str, float | int | str]


class DecisionDocument(Part):
    """What was decided."""

    outcome: str
    """keep, switch, infeasible or limit."""
    mode: str | None
    """colocated or disaggregated; null while nothing serves."""
    configuration: str
    """Short form, e.g. 12C or 5P3D."""
    counts: CountsDocument
    forced_by: list[str]
    """Rules that staying breaks; empty for a change by choice."""
    reasons: list[ReasonDocument]


class CandidateDocument(Part):
    """A configuration and its prediction."""

    configuration: str
    counts: CountsDocument
    makespan_s: float
    role_changes: int


class PathsDocument(Part):
    """Predicted parts of the makespan; paths overlap, so that they need not add up to it."""

    prefill_s: float
    transfer_s: float
    decode_s: float
    environment_s: float
    prefix_hit_rate: float
    prefill_utilisation: float
    decode_utilisation: float


class PredictedDocument(Part):
    """Predictions, all of them by the predictor named and none measured."""

    predictor: str
    makespan_s: float | None
    """Of the chosen configuration; null where nothing can serve."""
    stay_s: float | None
    """Of the surviving workers in today's roles; null where they cannot serve."""
    runner_up: CandidateDocument | None
    margin_s: float | None
    """Runner-up's makespan less the chosen one's. Negative where a later tier or a rule made the choice."""
    paths: PathsDocument | None


class StepsDocument(Part):
    """The plan."""

    from_epoch: int
    estimated_s: float
    steps: list[dict[str, Any]]
    """In order; `kind` says which."""


class RuleDocument(Part):
    """A rule at the chosen configuration."""

    name: str
    file: str | None
    line: int | None
    text: str
    slack: float
    """Distance to the rule's limit in its unit; negative where it is broken."""
    unit: str
    active: bool
    """False while the rule's mode is not the one that runs."""
    binding: bool
    """One more worker moved the wrong way would break it."""
    violation: float
    """Whole units by which a soft rule is broken."""


class TierDocument(Part):
    """An objective tier and its optimum."""

    name: str
    value: float | None
    unit: str


class ForecastDocument(Part):
    """A forecast as it was read."""

    name: str
    source: str
    value: float
    unit: str
    age_s: float
    """Of the newest sample; means nothing without samples."""
    stale: bool
    samples: int
    """0: the value is the policy's default."""
    text: str
    """The forecast in words: without samples, that it is a default, or that there is no known limit."""


class SolverDocument(Part):
    """Who answered. `build_s` and `solve_s` are the only fields of a result that vary between runs."""

    id: str
    library_version: str
    status: str
    build_s: float
    solve_s: float


class InputsDocument(Part):
    """What the result was made from."""

    scenario: str
    scenario_sha256: str
    policy: str
    policy_sha256: str
    sets: dict[str, str]
    event: str | None
    seed: int


class BlockDocument(Part):
    """What keeps a configuration from being taken."""

    name: str
    text: str
    amount: float
    unit: str
    file: str | None
    line: int | None


class TierPairDocument(Part):
    """One tier of a configuration and of the chosen one; both contain penalties and charged thresholds."""

    number: int
    """From 1, in the order of solving."""
    name: str
    unit: str
    value: float
    chosen: float
    tolerance: float
    """Share of the tier's optimum by which later tiers may worsen it."""


class LossDocument(Part):
    """The tier that decided against a configuration which nothing blocks."""

    number: int
    tier: str
    unit: str
    value: float
    against: float
    """The same tier at `lost_to`."""
    lost_to: str
    """The solver's answer: the chosen configuration, or one that a gate then turned down."""
    tolerated: list[str]
    """Earlier tiers in which the two differ, within the tolerance."""
    text: str


class AlternativeDocument(Part):
    """A configuration beside the chosen one."""

    configuration: str
    counts: CountsDocument
    makespan_s: float | None
    delta_s: float | None
    role_changes: int
    delta_changes: int
    blocks: list[BlockDocument]
    """Empty: allowed, and only the objective speaks against it."""
    tiers: list[TierPairDocument]
    """Empty where a rule forbids the configuration, or where the chosen one cannot run."""
    charged_s: float
    """Thresholds charged for its changes (`semantics: charge`); they are part of its tiers."""
    loss: LossDocument | None
    """Null where something blocks it, where it is chosen or as good, and where no optimum was proved."""


class FlipDocument(Part):
    """The error of one profile number that flips the decision."""

    number: str
    error: float | None
    """Signed relative error; null: no flip within ±50 %."""
    to: str | None
    regret: float | None


class RelaxationDocument(Part):
    """One rule, loosened."""

    rule: str
    amount: float
    unit: str
    text: str
    file: str | None
    line: int | None


class CorrectionDocument(Part):
    """Rules to loosen together; verified by solving again."""

    relax: list[RelaxationDocument]
    configuration: str
    makespan_s: float


class ResourceDocument(Part):
    """A change of the world that makes the problem feasible; verified by solving again."""

    kind: str
    """add_workers, or trajectories (the batch that today's workers can serve)."""
    zone: str | None
    amount: int
    configuration: str
    makespan_s: float


class ConflictRuleDocument(Part):
    """A rule of the minimal conflict."""

    name: str
    file: str | None
    line: int | None
    text: str
    relaxable: bool
    """False for a physical rule, which no correction offers to loosen."""


class DiagnosisDocument(Part):
    """Why nothing is feasible, and ways out."""

    conflict: list[ConflictRuleDocument]
    structural: str
    corrections: list[CorrectionDocument]
    resources: list[ResourceDocument]


class ResultDocument(Part):
    """A result of `pearl solve`."""

    api_version: str = Field(default=API_VERSION, alias="apiVersion")
    kind: str = "Decision"
    decision: DecisionDocument
    predicted: PredictedDocument
    plan: StepsDocument
    rules: list[RuleDocument]
    tiers: list[TierDocument]
    metrics: dict[str, float]
    """The policy's `let` metrics at the chosen configuration, base units."""
    forecasts: list[ForecastDocument]
    solver: SolverDocument
    inputs: InputsDocument
    diagnosis: DiagnosisDocument | None = Field(default=None)
    """Only of an infeasible result."""
    why: list[AlternativeDocument] | None = Field(default=None)
    """Only with --why."""
    alternatives: list[AlternativeDocument] | None = Field(default=None)
    """Only with --alternatives."""
    sensitivity: list[FlipDocument] | None = Field(default=None)
    """Only with --sensitivity."""


def result_schema() -> dict[str, Any]:
    """JSON Schema of a result."""
    return ResultDocument.model_json_schema(by_alias=True, mode="serialization")
