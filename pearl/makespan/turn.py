"""The fixed point of a mean turn: how long it prefills and decodes where m trajectories share a worker.

docs/mathematics.md derives it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.core.engine import EngineProfile
from pearl.makespan.batch import BatchProfile, transfer_s, unloaded_prefill_s
from pearl.makespan.costs import decode_step_s
from pearl.makespan.sample import Floats

BISECTIONS = 30
"""Halvings of [0, m]: the batch is then known to 1e-9 of m, far below a millisecond of makespan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Parts of a mean turn by number of workers, in seconds; `prefill_s` and `decode_s` include waiting."""

    prefill_s: Floats
    decode_s: Floats
    batch: Floats
    """Decoding sequences per worker."""


def decode_turn_s(profile: BatchProfile, engine: EngineProfile, *, away_s: float, workers: NDArray[np.int_]) -> Floats:
    """Seconds that a mean turn decodes on `workers` decode workers, when it is away for `away_s` of each cycle."""
    per_worker = per_worker_customers(profile, workers)
    return _solve(profile, engine, per_worker, prefill_s=0.0, idle_s=away_s, kv_tokens=engine.kv_decode_tokens).decode_s


def colocated_turn(profile: BatchProfile, engine: EngineProfile, workers: NDArray[np.int_]) -> Turn:
    """Prefill and decode on the same workers, each worker's decode stretched by the others' prefills."""
    return _solve(
        profile,
        engine,
        per_worker_customers(profile, workers),
        prefill_s=unloaded_prefill_s(profile, engine),
        idle_s=profile.environment_s,
        kv_tokens=engine.kv_colocated_tokens,
    )


def disaggregated_decode(profile: BatchProfile, engine: EngineProfile, workers: NDArray[np.int_]) -> Turn:
    """Decode on workers of its own; prefill is unloaded."""
    away = profile.environment_s + unloaded_prefill_s(profile, engine) + transfer_s(profile, engine)
    per_worker = per_worker_customers(profile, workers)
    return _solve(profile, engine, per_worker, prefill_s=0.0, idle_s=away, kv_tokens=engine.kv_decode_tokens)


def queued_s(service_s: float, customers: Floats, think_s: Floats | float) -> Floats:
    """Response time of one server shared by `customers` who think for `think_s` between visits.

    Schweitzer's approximation of mean value analysis, R = s·(1 + (m-1)·R/(Z+R)), solved for R. Exact for m = 1 (R = s),
    for Z = 0 (R = m·s) and as m grows (R → m·s - Z).
    """
    excess = service_s * customers - think_s
    response: Floats = (excess + np.sqrt(excess**2 + 4 * service_s * think_s)) / 2
    return response


def per_worker_customers(profile: BatchProfile, workers: NDArray[np.int_]) -> Floats:
    """Trajectories that share a worker; never below one, since a trajectory cannot be split."""
    return np.maximum(profile.trajectories / workers, 1.0)


def _solve(
    profile: BatchProfile,
    engine: EngineProfile,
    per_worker: Floats,
    *,
    prefill_s: float,
    idle_s: float,
    kv_tokens: int,
) -> Turn:
    """The fixed point b = m·t/(t + D), by bisection on b: the batch that decode asks for grows with b, supply falls.

    A worker decodes at most `most` sequences at once, by memory and by the engine; the others wait for their place.
    """
    most = float(np.clip(kv_tokens / profile.running_tokens, 1.0, engine.max_sequences))
    interference = engine.mixed_step_factor * prefill_s * (1 - 1 / per_worker)

    def decode_s(batch: Floats) -> Floats:
        running = np.clip(batch, 1.0, most)
        step = decode_step_s(engine.decode, running, running * profile.running_tokens)
        return profile.output_tokens * step * np.maximum(batch / most, 1.0) + interference * batch

    low, high = np.zeros_like(per_worker), per_worker.copy()
    for _ in range(BISECTIONS):
        batch = (low + high) / 2
        decode = decode_s(batch)
        away = idle_s + queued_s(prefill_s, per_worker, idle_s + decode)
        too_many = batch * (away + decode) > per_worker * decode
        high, low = np.where(too_many, batch, high), np.where(too_many, low, batch)
    decode = decode_s(high)
    return Turn(prefill_s=queued_s(prefill_s, per_worker, idle_s + decode), decode_s=decode, batch=high)
