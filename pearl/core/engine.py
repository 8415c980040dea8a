"""The engine profile: step times, KV memory, KV transfer and transition costs of one worker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost:
    """Seconds to prefill n tokens after c cached ones: p0 + p1·n + p2·(n² + 2·n·c) (linear layers, then attention)."""

    p0_s: float
    p1_s: float
    p2_s: float

    def seconds(self, new_tokens: float, cached_tokens: float = 0.0) -> float:
        """Step time of one prefill."""
        n = new_tokens
        return self.p0_s + self.p1_s * n + self.p2_s * (n * n + 2 * n * cached_tokens)


class SaturationForm(StrEnum):
    """How the weights that a mixture-of-experts step reads grow with its batch."""

    EXPERTS = "experts"
    """1 - (1 - top_k/experts)^b: the expected share of experts that b tokens touch, drawn independently."""
    SQRT = "sqrt"
    """√b, for skewed expert popularity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Seconds that a decode step of b sequences adds for the experts it touches."""

    amplitude_s: float
    form: SaturationForm
    experts: int = 0
    top_k: int = 0

    def seconds(self, batch: float) -> float:
        """The added time at a batch of `batch` sequences."""
        match self.form:
            case SaturationForm.EXPERTS:
                return self.amplitude_s * (1 - math.pow(1 - self.top_k / self.experts, batch))
            case SaturationForm.SQRT:
                return self.amplitude_s * math.sqrt(batch)
        assert_never(self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """Seconds of one decode step of b sequences with C context tokens in all: c0 + c1·b + c2·C + experts(b)."""

    c0_s: float
    c1_s: float
    c2_s: float
    saturation: Saturation | None = None

    def seconds(self, batch: float, context_tokens: float) -> float:
        """Step time; `context_tokens` is summed over the batch."""
        extra = self.saturation.seconds(batch) if self.saturation else 0.0
        return self.c0_s + self.c1_s * batch + self.c2_s * context_tokens + extra


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """Hand-over of a KV cache from a prefill to a decode worker."""

    latency_s: float
    bandwidth_bytes_per_s: float
    bytes_per_token: float

    def seconds(self, tokens: float) -> float:
        """Time to move the KV of `tokens` tokens."""
        return self.latency_s + tokens * self.bytes_per_token / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """How far the fitted step times lie from the table they were fitted to (mean and maximum relative error)."""

    prefill_mean: float
    prefill_max: float
    decode_mean: float
    decode_max: float
    points: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """What one worker of a model on a GPU type can do; its tensor-parallel size is a property of the worker."""

    name: str
    model: str
    gpu: str
    tensor_parallel: int
    prefill: PrefillCost
    decode: DecodeCost
    transfer: KvTransfer
    kv_decode_tokens: int
    """KV capacity of a decode worker, H_max."""
    kv_colocated_tokens: int
    """KV capacity of a colocated worker, H_colo: activations of prefill take their share."""
    chunk_tokens: int = 8192
    """Largest number of tokens in one step (vLLM's max_num_batched_tokens)."""
    max_sequences: int = 256
    """Largest number of sequences in one step (vLLM's max_num_seqs)."""
    mixed_step_factor: float = 1.0
    """Time of a step that mixes prefill and decode, over the sum of the two alone; 1 when they only add up."""
    fit: FitError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionCosts:
    """Seconds that each change takes (paper, section 6.5.2, gives those of expansion and borrowing)."""

    drain_s: float = 2.0
    change_role_s: float = 0.5
    start_s: float = 61.5
    """Background part of an expansion: engine start and weights, while the others serve."""
    admit_s: float = 14.5
    """Finalising part of an expansion: the group joins the pool."""
    borrow_s: float = 6.0
    return_s: float = 3.8
    activate_s: float = 1.0
    deactivate_s: float = 1.0
    stop_s: float = 2.0
    sync_weights_s: float = 1.0
