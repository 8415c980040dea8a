"""Telemetry: what engines, trajectories and transitions were seen to do. Times in seconds on the clock of the run.

`step` is the index of the rollout step (batch) that a record belongs to; trackers forget by it. A record belongs to the
step of its trajectory, also where steps overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pearl.core.cluster import Counts, Role


class StepKind(StrEnum):
    """What an engine step computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class TransitionKind(StrEnum):
    """A change whose duration is measured; the names are those of `TransitionCosts`, without `_s`."""

    DRAIN = "drain"
    CHANGE_ROLE = "change_role"
    START = "start"
    ADMIT = "admit"
    BORROW = "borrow"
    RETURN = "return"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    STOP = "stop"
    SYNC_WEIGHTS = "sync_weights"


class Stage(StrEnum):
    """Where a trajectory's current turn is."""

    QUEUED = "queued"
    """Waiting for an engine, for memory, or for KV to arrive."""
    PREFILL = "prefill"
    DECODE = "decode"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalRecord:
    """A turn was asked for: offered load, known before any engine has worked on it."""

    trajectory: str
    turn: int
    """Index, from 0."""
    new_prompt_tokens: int
    """Tokens that the turn adds to the trajectory's context before its output."""
    at_s: float
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A turn whose last token is out, at `at_s`."""

    trajectory: str
    turn: int
    """Index, from 0."""
    worker: str
    """The worker that decoded it."""
    role: Role
    """That worker's role."""
    new_prompt_tokens: int
    """As in the arrival: a property of the workload, whatever the cache held."""
    prompt_tokens: int
    """The whole prompt, earlier context included."""
    cached_tokens: int
    """Part of the prompt that the prefix cache held; `prompt_tokens - cached_tokens` were prefilled."""
    output_tokens: int
    prefill_s: float
    decode_s: float
    queue_s: float
    """Waiting for an engine or for memory, before prefill and before decode."""
    transfer_s: float
    """Hand-over of the KV cache; 0 where prefill and decode shared a worker."""
    at_s: float
    environment_s: float | None = None
    """Time in the environment before this turn; None for the first turn, or where it was not measured."""
    last: bool = False
    """Whether the trajectory ends with it."""
    weight_version: int = 0
    step: int = 0

    @property
    def context_tokens(self) -> int:
        """Context after the turn."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One engine step: `batch` sequences decode a token each, and chunks of `prompts` prompts are prefilled."""

    worker: str
    seconds: float
    at_s: float
    batch: int = 0
    context_tokens: int = 0
    """Summed over the decoding sequences."""
    prompts: int = 0
    new_tokens: int = 0
    """Prompt tokens computed in this step, summed over the prompts."""
    cached_tokens: int = 0
    """Tokens before those, summed over the prompts."""
    step: int = 0

    @property
    def kind(self) -> StepKind:
        """What the step computed."""
        if not self.prompts:
            return StepKind.DECODE
        return StepKind.MIXED if self.batch else StepKind.PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch that ended: its makespan as predicted for the counts it ran on, and as measured."""

    predicted_s: float
    measured_s: float
    at_s: float
    counts: Counts
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRecord:
    """A transition that ended at `at_s` after `seconds`."""

    kind: TransitionKind
    seconds: float
    at_s: float
    borrowing: bool = False
    """Whether the rollout step borrowed overlap workers: costs are kept apart by it."""
    workers: tuple[str, ...] = field(default=())
    """Those that changed; a started or borrowed worker warms up anew."""
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """What an engine says of itself when it starts: facts, for which nothing needs to be measured offline."""

    worker: str
    model: str
    gpu: str
    kv_tokens: int
    """KV capacity."""
    kv_bytes_per_token: float
    at_s: float
    tensor_parallel: int = 1
    chunk_tokens: int = 8192
    max_sequences: int = 256


Telemetry = ArrivalRecord | TurnRecord | StepRecord | BatchRecord | TransitionRecord | EngineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Where one live trajectory stands now: what a life-cycle forecast reads. What is still to come is not in it."""

    trajectory: str
    turn: int
    """Index of the current turn, or of the last one while in the environment."""
    stage: Stage
    context_tokens: int
    """Prompts, observations and output so far."""
    prompt_left_tokens: int = 0
    """New tokens of this turn that are still to be prefilled."""
    output_tokens: int = 0
    """Output of this turn so far."""
    stage_s: float = 0.0
    """Time in the present stage so far."""
