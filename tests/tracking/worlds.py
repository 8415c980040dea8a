"""Synthetic telemetry of a known world, and small constructors."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from pearl.core.cluster import Role
from pearl.core.distribution import Distribution
from pearl.core.engine import DecodeCost, EngineProfile, KvTransfer, PrefillCost
from pearl.core.telemetry import ArrivalRecord, StepRecord, Telemetry, TurnRecord
from pearl.core.workload import Workload

ENGINE = EngineProfile(
    name="known",
    model="8B",
    gpu="any",
    tensor_parallel=1,
    prefill=PrefillCost(p0_s=0.004, p1_s=3e-5, p2_s=5e-10),
    decode=DecodeCost(c0_s=0.006, c1_s=3e-5, c2_s=4e-8),
    transfer=KvTransfer(latency_s=0.005, bandwidth_bytes_per_s=25e9, bytes_per_token=147_456),
    kv_decode_tokens=700_000,
    kv_colocated_tokens=660_000,
)
WORKLOAD = Workload(
    trajectories=32,
    turns=Distribution.constant(6),
    first_prompt_tokens=Distribution.constant(2000),
    new_prompt_tokens=Distribution.constant(800),
    output_tokens=Distribution.constant(300),
    environment_s=Distribution.constant(2.0),
    max_context_tokens=32_768,
)


def turn(trajectory: str, index: int, **given: object) -> TurnRecord:
    """A turn like any other, but for what is given."""
    values: dict[str, object] = {
        "trajectory": trajectory,
        "turn": index,
        "worker": "n/0",
        "role": Role.COLOCATED,
        "new_prompt_tokens": 2000 if index == 0 else 800,
        "prompt_tokens": 2000 + 1100 * index,
        "cached_tokens": 1100 * index,
        "output_tokens": 300,
        "prefill_s": 0.1,
        "decode_s": 3.0,
        "queue_s": 0.0,
        "transfer_s": 0.0,
        "at_s": 10.0 * index,
        "environment_s": 2.0 if index else None,
    }
    return TurnRecord(**{**values, **given})  # type: ignore[arg-type]  # fields are given by name


def arrival(trajectory: str, index: int, **given: object) -> ArrivalRecord:
    """The arrival of a turn like any other."""
    values: dict[str, object] = {"new_prompt_tokens": 2000 if index == 0 else 800, "at_s": 10.0 * index}
    return ArrivalRecord(trajectory=trajectory, turn=index, **{**values, **given})  # type: ignore[arg-type]  # as above


def batch(step: int, *, size: int = 16, rng: Random | None = None, prompt_scale: float = 1.0) -> list[Telemetry]:
    """Every arrival and turn of a finished batch whose quantities are log-normal, at times 1000·step and after."""
    rng = rng or Random(step)
    records: list[Telemetry] = []
    for index in range(size):
        name, at_s, context = f"{step}/{index}", 1000.0 * step, 0
        last = rng.randint(3, 9)
        for k in range(last + 1):
            new = max(1, round((2000 if k == 0 else 800) * prompt_scale * rng.lognormvariate(-0.125, 0.5)))
            out = max(1, round(300 * rng.lognormvariate(-0.125, 0.5)))
            wait = 2.0 * rng.lognormvariate(-0.125, 0.5) if k else None
            at_s += wait or 0.0
            records.append(arrival(name, k, new_prompt_tokens=new, at_s=at_s, step=step))
            at_s += 3.1
            records.append(
                turn(
                    name,
                    k,
                    new_prompt_tokens=new,
                    prompt_tokens=context + new,
                    cached_tokens=context,
                    output_tokens=out,
                    environment_s=wait,
                    at_s=at_s,
                    last=k == last,
                    step=step,
                )
            )
            context += new + out
    return records


def engine_steps(
    engine: EngineProfile,
    worker: str,
    *,
    number: int,
    rng: Random,
    start_s: float = 0.0,
    slow: float = 1.0,
    noise: float = 0.03,
    step: int = 0,
) -> Iterator[StepRecord]:
    """Prefill and decode steps in turn, each `slow` times as long as the engine's formula says, give or take."""
    for i in range(number):
        factor = slow * rng.lognormvariate(0.0, noise)
        at_s = start_s + 0.1 * i
        new, cached = rng.randint(200, 8000), rng.randint(0, 20_000)
        seconds = engine.prefill.seconds(new, cached) * factor
        yield StepRecord(
            worker=worker, seconds=seconds, at_s=at_s, prompts=1, new_tokens=new, cached_tokens=cached, step=step
        )
        size, context = rng.randint(1, 128), rng.randint(500, 20_000)
        seconds = engine.decode.seconds(size, size * context) * factor
        yield StepRecord(
            worker=worker, seconds=seconds, at_s=at_s + 0.05, batch=size, context_tokens=size * context, step=step
        )
