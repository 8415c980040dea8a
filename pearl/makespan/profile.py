"""Derived figures of a workload on an engine, which policies and predictors read. Pure functions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pearl.core.engine import EngineProfile
from pearl.makespan.batch import BatchProfile, batch_profile, transfer_s, unloaded_prefill_s
from pearl.makespan.turn import decode_turn_s

__all__ = [
    "BatchProfile",
    "batch_profile",
    "demand_rates",
    "prefill_rate",
    "transfer_s",
    "unloaded_prefill_s",
]

KEPT_RATES = 64
"""Demand rates kept for the next decision: one entry per number of workers that a pool goes through."""


def prefill_rate(profile: BatchProfile, engine: EngineProfile) -> float:
    """New prompt tokens per second that one prefill worker sustains at the mean prompt and cached length.

    As many turns as fit into one chunk share a step, and with it the step's fixed cost p0.
    """
    seconds = unloaded_prefill_s(profile, engine)
    per_step = max(1.0, engine.chunk_tokens / max(profile.new_tokens, 1.0))
    shared = seconds - engine.prefill.p0_s * (1 - 1 / per_step)
    return profile.new_tokens / shared if shared > 0 else float("inf")


@lru_cache(maxsize=KEPT_RATES)
def demand_rates(profile: BatchProfile, engine: EngineProfile, *, workers: int) -> tuple[float, ...]:
    """New prompt tokens per second that the batch asks for, by number of decode workers 0 … `workers`.

    B·p / (e + s_prefill + transfer + t_decode(N_D)): decode at its pace, prefill without a queue; 0 without decode.
    """
    away = profile.environment_s + unloaded_prefill_s(profile, engine) + transfer_s(profile, engine)
    decode = decode_turn_s(profile, engine, away_s=away, workers=np.arange(1, workers + 1))
    rates = profile.trajectories * profile.new_tokens / np.maximum(away + decode, 1e-9)
    return (0.0, *(float(rate) for rate in rates))
