"""The published form of a study: what `pearl simulate --format json` prints, as pydantic models with a JSON Schema."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pearl.documents import Part
from pearl.report.schema import API_VERSION


class MakespansDocument(Part):
    """Makespans of the batches that ended, in seconds; null where none did."""

    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


class SwitchesDocument(Part):
    """Decisions that changed each; one decision may change several."""

    mode: int
    ratio: int
    resize: int


class OutcomesDocument(Part):
    """Decisions by what they came to."""

    keep: int
    switch: int
    infeasible: int
    limit: int
    """The solver's time limit passed without an answer."""


class RunDocument(Part):
    """What one run came to."""

    policy: str
    """Its name, or that of its file where two policies share a name."""
    seed: int
    predictor: str
    solver: str
    horizon_s: float
    """Time simulated, which rates and totals are over."""
    throughput_traj_per_h: float
    trajectories: int
    """Trajectories that ended."""
    batches: int
    """Batches that ended."""
    makespan_s: MakespansDocument
    gpu_s: dict[str, dict[str, float]]
    """GPU-seconds held, by zone and role; `transitioning` counts apart from the role."""
    idle_s: float
    """GPU-seconds of serving workers that computed nothing."""
    switches: SwitchesDocument
    decisions: int
    outcomes: OutcomesDocument
    borrowed_s: float
    """GPU-seconds for which overlap GPUs served rollout."""
    interrupted: int
    """Turns that lost their engine under way and went on elsewhere."""
    lost: int
    """Found by an audit at the end; always 0."""
    cost: float
    """In usd: GPUs held, whether they serve or not; overlap ones only while they are lent."""
    energy_kwh: dict[str, dict[str, float]]
    """By zone and role, of the roles whose power the scenario gives."""


class PolicyInForceDocument(Part):
    """A policy as it was in force."""

    label: str
    """What the results call it."""
    policy: str
    policy_file: str
    policy_sha256: str
    tick_s: float | None
    """Period of decisions beside the events; null: on events only."""


class StudyInputsDocument(Part):
    """What the runs were made from."""

    scenario: str
    scenario_sha256: str
    trace_from_s: float
    """Start in the trace."""
    horizon_s: float
    """Longest time to simulate."""
    batches: int | None
    """Batches after which a run stops before the horizon; null: no limit."""
    sets: dict[str, str]
    forecaster: str
    policies: list[PolicyInForceDocument]


class SpreadDocument(Part):
    """A figure over the seeds that have it, in the figure's own unit; null where none has."""

    seeds: int
    mean: float | None
    standard_deviation: float | None
    """Of a sample, with n - 1; null for fewer than two seeds."""
    least: float | None
    largest: float | None


class DifferenceDocument(Part):
    """A policy's figure less the first policy's, by pairs of runs of one seed."""

    seeds: int
    mean: float | None
    standard_deviation: float | None


class DifferencesDocument(Part):
    """How a policy differs from the first one."""

    to: str
    throughput_traj_per_h: DifferenceDocument
    makespan_s: DifferenceDocument


class SummaryDocument(Part):
    """One policy over its seeds."""

    policy: str
    throughput_traj_per_h: SpreadDocument
    makespan_s: SpreadDocument
    """Of the runs' mean makespans."""
    difference: DifferencesDocument | None
    """Null for the first policy."""


class StudyDocument(Part):
    """A result of `pearl simulate`; every figure in it is simulated."""

    api_version: str = Field(default=API_VERSION, alias="apiVersion")
    kind: str = "SimulationReport"
    simulated: bool
    scenario: str
    """As it was given."""
    trace: str | None
    """Availability trace in force, the scenario's own included."""
    horizon_s: float
    """Longest time simulated in a run."""
    inputs: StudyInputsDocument
    results: list[RunDocument]
    summary: list[SummaryDocument]


def study_schema() -> dict[str, Any]:
    """JSON Schema of a study."""
    return StudyDocument.model_json_schema(by_alias=True, mode="serialization")
