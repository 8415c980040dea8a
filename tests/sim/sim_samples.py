"""Profiles and workloads for the simulator's tests, and hypothesis strategies that draw them."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from pearl.core.distribution import Distribution, Family
from pearl.core.engine import DecodeCost, EngineProfile, KvTransfer, PrefillCost, Saturation, SaturationForm
from pearl.core.workload import Routing, Workload
from pearl.sim.trajectories import Trajectory, Turn


def profile(**changes) -> EngineProfile:
    fields = {
        "name": "test",
        "model": "m",
        "gpu": "g",
        "tensor_parallel": 1,
        "prefill": PrefillCost(p0_s=2.5e-3, p1_s=1.9e-5, p2_s=4.3e-10),
        "decode": DecodeCost(c0_s=5.2e-3, c1_s=9.4e-6, c2_s=3.3e-8),
        "transfer": KvTransfer(latency_s=0.01, bandwidth_bytes_per_s=4e10, bytes_per_token=147456),
        "kv_decode_tokens": 400_000,
        "kv_colocated_tokens": 380_000,
    }
    return EngineProfile(**(fields | changes))


def workload(**changes) -> Workload:
    fields = {
        "trajectories": 32,
        "turns": Distribution(family=Family.EMPIRICAL, values=tuple(range(2, 9))),
        "first_prompt_tokens": Distribution(family=Family.LOGNORMAL, mean=1500, cv=0.5),
        "new_prompt_tokens": Distribution(family=Family.LOGNORMAL, mean=800, cv=1.0),
        "output_tokens": Distribution(family=Family.LOGNORMAL, mean=200, cv=0.8),
        "environment_s": Distribution(family=Family.EXPONENTIAL, mean=1.5),
        "max_context_tokens": 16_384,
    }
    return Workload(**(fields | changes))


def turn(prompt: int, output: int, environment_s: float = 0.0) -> Turn:
    return Turn(new_prompt_tokens=prompt, output_tokens=output, environment_s=environment_s)


def random_batch(seed: int, size: int) -> tuple[Trajectory, ...]:
    """Short prompts and long outputs, so that growth exceeds memory; contexts of at most 3,600 tokens."""
    rng = Random(seed)

    def one() -> Trajectory:
        waits = (0.0, 0.0137, rng.uniform(0.0, 4.0))
        return tuple(
            turn(rng.randint(1, 500), rng.randint(1, 400), rng.choice(waits)) for _ in range(rng.randint(1, 4))
        )

    return tuple(one() for _ in range(size))


batches = st.builds(random_batch, st.integers(0, 10**6), st.integers(1, 14))

tight_profiles = st.builds(
    lambda kv, chunk, sequences, factor, sat: profile(
        kv_colocated_tokens=kv,
        kv_decode_tokens=kv + 100,
        chunk_tokens=chunk,
        max_sequences=sequences,
        mixed_step_factor=factor,
        decode=DecodeCost(c0_s=5.2e-3, c1_s=9.4e-6, c2_s=3.3e-8, saturation=sat),
    ),
    st.integers(3700, 9_000),
    st.integers(64, 2048),
    st.integers(1, 12),
    st.sampled_from([1.0, 1.17]),
    st.sampled_from([None, Saturation(amplitude_s=4e-3, form=SaturationForm.EXPERTS, experts=64, top_k=8)]),
)
"""Memory that holds the longest context (3,600 tokens) and few more: eviction, preemption and chunking all happen."""

routings = st.sampled_from(Routing)
