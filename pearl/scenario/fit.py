"""Fits an engine profile to a table of measured step times.

Step times: the mean relative error is minimised over non-negative coefficients, by iteratively reweighted least
squares. KV capacity: what remains of `MEMORY_SHARE` of the GPU after the table's memory at no context, which holds
weights and workspace; colocated workers leave room for the activations of one prefill chunk besides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from pearl.core.engine import (
    DecodeCost,
    EngineProfile,
    FitError,
    KvTransfer,
    PrefillCost,
    Saturation,
    SaturationForm,
)
from pearl.errors import Fault, InputError
from pearl.scenario.step_times import StepTimes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

GIB = float(1 << 30)
MEMORY_SHARE = 0.9
"""Share of the GPU's memory that the engine may use (vLLM's gpu_memory_utilization default)."""
CHUNK_TOKENS = 8192
"""Tokens of one step (vLLM's max_num_batched_tokens for online serving on these GPUs)."""
TRANSFER_LATENCY_S = 0.005
"""Assumed, not measured: set-up of one hand-over, a few round trips of a control message and of RDMA registration."""
TRANSFER_BYTES_PER_S = 25e9
"""Assumed, not measured: half the line rate of one 400 Gbit/s NIC per GPU, for layer-wise copies of paged blocks."""
MAX_ROUNDS = 500
"""Reweightings at most; the tables of the built-in profiles need 30 to 200."""
SETTLED = 1e-9
"""Relative movement below which no written digit changes any more."""
RESIDUAL_FLOOR = 1e-3
"""Residuals below 0.1 % weigh alike, so that no single point is interpolated."""
DIGITS = 6
"""Significant digits that a profile keeps: far below the error of the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the KV cache and the experts depend on; from the model's config.json."""

    layers: int
    kv_heads: int
    head_size: int
    value_bytes: int = 2
    experts: int = 0
    top_k: int = 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.value_bytes


MODELS: Mapping[str, ModelShape] = {
    "Qwen/Qwen3-8B": ModelShape(layers=36, kv_heads=8, head_size=128),
    "Qwen/Qwen3-30B-A3B": ModelShape(layers=48, kv_heads=4, head_size=128, experts=128, top_k=8),
    "Qwen/Qwen3-32B": ModelShape(layers=64, kv_heads=8, head_size=128),
}
GPU_MEMORY_BYTES: Mapping[str, float] = {"H100": 81_559 * 2.0**20, "H200": 143_771 * 2.0**20}
"""Device memory that nvidia-smi reports for the SXM boards."""


def fit_profile(table: StepTimes, *, name: str, gpu: str, shape: ModelShape, memory_bytes: float) -> EngineProfile:
    """The profile of one worker of one GPU; raises InputError where the weights leave no room for a KV cache."""
    prefill = _fit_prefill(table)
    decode = _fit_decode(table, shape)
    memory = fit_memory(table, shape)
    free = memory_bytes * MEMORY_SHARE - memory.fixed_bytes
    colocated = free - memory.activation_bytes_per_token * CHUNK_TOKENS
    if colocated < shape.kv_bytes_per_token:
        short = f"{memory.fixed_bytes / GIB:.1f} GiB of {memory_bytes * MEMORY_SHARE / GIB:.1f} GiB"
        raise InputError(Fault(message=f"{table.model} leaves no room for a KV cache on {gpu}: it takes {short}"))
    return EngineProfile(
        name=name,
        model=table.model,
        gpu=gpu,
        tensor_parallel=1,
        prefill=prefill,
        decode=decode,
        transfer=KvTransfer(
            latency_s=TRANSFER_LATENCY_S,
            bandwidth_bytes_per_s=TRANSFER_BYTES_PER_S,
            bytes_per_token=shape.kv_bytes_per_token,
        ),
        kv_decode_tokens=int(free // shape.kv_bytes_per_token),
        kv_colocated_tokens=int(colocated // shape.kv_bytes_per_token),
        chunk_tokens=CHUNK_TOKENS,
        fit=fit_error(table, prefill, decode),
    )


def fit_error(table: StepTimes, prefill: PrefillCost, decode: DecodeCost) -> FitError:
    """Mean and maximum relative error of step-time formulas over a table."""
    p = [abs(prefill.seconds(q.new_tokens, q.cached_tokens) / q.seconds - 1) for q in table.prefill]
    d = [abs(decode.seconds(q.batch, q.context_tokens) / q.seconds - 1) for q in table.decode]
    return FitError(
        prefill_mean=round(math.fsum(p) / len(p), DIGITS),
        prefill_max=round(max(p), DIGITS),
        decode_mean=round(math.fsum(d) / len(d), DIGITS),
        decode_max=round(max(d), DIGITS),
        points=table.points,
        source=table.source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory that a table shows besides the KV cache."""

    fixed_bytes: float
    """Weights and workspace."""
    activation_bytes_per_token: float
    """Per token of one prefill step."""


def fit_memory(table: StepTimes, shape: ModelShape) -> MemoryUse:
    """Least-squares lines through the table's memory; raises InputError where it contradicts the model's shape."""
    context = [float(q.context_tokens) for q in table.decode]
    fixed_gib, slope_gib = _line(context, [q.memory_gib for q in table.decode])
    kv = shape.kv_bytes_per_token
    if abs(slope_gib * GIB / kv - 1) > 0.02:
        message = f"{table.model}: the table's memory grows by {slope_gib * GIB:.0f} bytes per token of context"
        raise InputError(Fault(message=message, expected=f"{kv} by the model's shape"))
    measured = [(float(q.new_tokens), q.memory_gib) for q in table.prefill if q.memory_gib is not None]
    _, prefill_gib = _line([n for n, _ in measured], [gib for _, gib in measured])
    return MemoryUse(fixed_bytes=fixed_gib * GIB, activation_bytes_per_token=max(0.0, prefill_gib * GIB - kv))


def _fit_prefill(table: StepTimes) -> PrefillCost:
    columns = [[1.0, n, n * n + 2.0 * n * c] for n, c in ((q.new_tokens, q.cached_tokens) for q in table.prefill)]
    p0, p1, p2 = fit_relative(columns, [q.seconds for q in table.prefill])
    return PrefillCost(p0_s=p0, p1_s=p1, p2_s=p2)


def _fit_decode(table: StepTimes, shape: ModelShape) -> DecodeCost:
    """The linear form for a dense model; for a mixture of experts the saturating form that fits better."""
    forms: list[SaturationForm | None] = list(SaturationForm) if shape.experts else [None]
    fits = [_fit_decode_form(table, shape, form) for form in forms]
    prefill = PrefillCost(p0_s=0, p1_s=0, p2_s=0)
    return min(fits, key=lambda cost: fit_error(table, prefill, cost).decode_mean)


def _fit_decode_form(table: StepTimes, shape: ModelShape, form: SaturationForm | None) -> DecodeCost:
    seconds = [q.seconds for q in table.decode]
    linear = [[1.0, float(q.batch), float(q.context_tokens)] for q in table.decode]
    if form is None:
        c0, c1, c2 = fit_relative(linear, seconds)
        return DecodeCost(c0_s=c0, c1_s=c1, c2_s=c2)
    experts, top_k = (shape.experts, shape.top_k) if form is SaturationForm.EXPERTS else (0, 0)
    unit = Saturation(amplitude_s=1.0, form=form, experts=experts, top_k=top_k)
    columns = [[*row, unit.seconds(q.batch)] for row, q in zip(linear, table.decode, strict=True)]
    c0, c1, c2, amplitude = fit_relative(columns, seconds)
    saturation = Saturation(amplitude_s=amplitude, form=form, experts=experts, top_k=top_k)
    return DecodeCost(c0_s=c0, c1_s=c1, c2_s=c2, saturation=saturation)


def fit_relative(
    columns: Sequence[Sequence[float]], seconds: Sequence[float], importance: Sequence[float] | None = None
) -> list[float]:
    """Non-negative coefficients (one per column, `DIGITS` significant) that minimise the mean relative error.

    `importance` weighs the rows' errors in that mean; None weighs them alike.
    """
    import numpy as np

    matrix = np.asarray(columns, dtype=float) / np.asarray(seconds, dtype=float)[:, None]
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    matrix = matrix / scale
    target = np.ones(len(matrix))
    share = target if importance is None else np.sqrt(np.asarray(importance, dtype=float))
    weights = share
    solution = np.zeros(matrix.shape[1])
    for _ in range(MAX_ROUNDS):
        before, solution = solution, _non_negative(matrix * weights[:, None], target * weights)
        if np.abs(solution - before).max() <= SETTLED * solution.max():
            break
        residual = np.abs(matrix @ solution - target)
        weights = share / np.sqrt(np.maximum(residual, RESIDUAL_FLOOR))
    return [_rounded(float(x)) for x in solution / scale]


def _non_negative(matrix: Vector, target: Vector) -> Vector:
    """Least squares over x ≥ 0, exactly: the best non-negative solution over all supports, of which there are few."""
    import numpy as np

    size = matrix.shape[1]
    best, best_residual = np.zeros(size), float(np.linalg.norm(target))
    for number in range(size, 0, -1):
        for support in map(list, combinations(range(size), number)):
            part = np.linalg.lstsq(matrix[:, support], target, rcond=None)[0]
            if part.min() < 0:
                continue
            residual = float(np.linalg.norm(matrix[:, support] @ part - target))
            if residual < best_residual:
                best, best_residual = np.zeros(size), residual
                best[support] = part
        if number == size and best.any():
            break
    return best


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line."""
    from statistics import linear_regression

    slope, intercept = linear_regression(x, y)
    return intercept, slope


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
