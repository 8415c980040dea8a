"""Workloads and engines that the tests of makespan predictors share."""

from __future__ import annotations

from dataclasses import replace

from pearl.core.distribution import Distribution, Family
from pearl.core.engine import DecodeCost, EngineProfile, KvTransfer, PrefillCost, Saturation, SaturationForm
from pearl.core.workload import Workload

DENSE = EngineProfile(
    name="dense",
    model="8B",
    gpu="any",
    tensor_parallel=1,
    prefill=PrefillCost(p0_s=0.002, p1_s=2e-5, p2_s=4e-10),
    decode=DecodeCost(c0_s=0.005, c1_s=2.4e-5, c2_s=3.3e-8),
    transfer=KvTransfer(latency_s=0.005, bandwidth_bytes_per_s=40e9, bytes_per_token=147_456),
    kv_decode_tokens=700_000,
    kv_colocated_tokens=660_000,
)
SPARSE = replace(
    DENSE,
    name="sparse",
    decode=DecodeCost(
        c0_s=0.003,
        c1_s=1e-5,
        c2_s=2e-8,
        saturation=Saturation(amplitude_s=0.012, form=SaturationForm.EXPERTS, experts=128, top_k=8),
    ),
)


def constant(value: float) -> Distribution:
    return Distribution.constant(value)


def lognormal(mean: float, cv: float) -> Distribution:
    return Distribution(family=Family.LOGNORMAL, mean=mean, cv=cv)


FIXED = Workload(
    trajectories=64,
    turns=constant(6),
    first_prompt_tokens=constant(2000),
    new_prompt_tokens=constant(1000),
    output_tokens=constant(300),
    environment_s=constant(2.0),
    max_context_tokens=32_768,
)
VARIED = Workload(
    trajectories=64,
    turns=lognormal(10, 0.5),
    first_prompt_tokens=lognormal(2500, 0.5),
    new_prompt_tokens=lognormal(900, 1.0),
    output_tokens=lognormal(350, 1.0),
    environment_s=lognormal(2.5, 1.2),
    max_context_tokens=32_768,
)


def at_speed(engine: EngineProfile, factor: float) -> EngineProfile:
    """The same engine with every time multiplied by `factor`."""
    saturation = engine.decode.saturation
    return replace(
        engine,
        prefill=PrefillCost(
            p0_s=engine.prefill.p0_s * factor, p1_s=engine.prefill.p1_s * factor, p2_s=engine.prefill.p2_s * factor
        ),
        decode=DecodeCost(
            c0_s=engine.decode.c0_s * factor,
            c1_s=engine.decode.c1_s * factor,
            c2_s=engine.decode.c2_s * factor,
            saturation=saturation and replace(saturation, amplitude_s=saturation.amplitude_s * factor),
        ),
        transfer=replace(
            engine.transfer,
            latency_s=engine.transfer.latency_s * factor,
            bandwidth_bytes_per_s=engine.transfer.bandwidth_bytes_per_s / factor,
        ),
    )
