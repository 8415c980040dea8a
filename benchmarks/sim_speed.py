"""Time of the simulator on one core, against its budgets. Run: python benchmarks/sim_speed.py."""

from __future__ import annotations

import time
from collections.abc import Callable

from pearl.core.cluster import Counts
from pearl.core.distribution import Distribution, Family
from pearl.core.engine import DecodeCost, EngineProfile, KvTransfer, PrefillCost
from pearl.core.workload import Routing, Workload
from pearl.sim.batch import simulate_batch

# Qwen3-8B on one H200, fitted to public step times (mean error 2 % of prefill and of decode).
ENGINE = EngineProfile(
    name="qwen3-8b-h200",
    model="Qwen3-8B",
    gpu="H200",
    tensor_parallel=1,
    prefill=PrefillCost(p0_s=2.5e-3, p1_s=1.91e-5, p2_s=4.31e-10),
    decode=DecodeCost(c0_s=5.19e-3, c1_s=9.41e-6, c2_s=3.33e-8),
    transfer=KvTransfer(latency_s=0.01, bandwidth_bytes_per_s=40e9, bytes_per_token=147456),
    kv_decode_tokens=760_000,
    kv_colocated_tokens=760_000,
)


def agentic(trajectories: int, routing: Routing = Routing.AFFINITY) -> Workload:
    """Twenty turns or so of a coding agent, contexts up to 32k tokens."""
    return Workload(
        trajectories=trajectories,
        turns=Distribution(family=Family.UNIFORM, low=8, high=32),
        first_prompt_tokens=Distribution(family=Family.LOGNORMAL, mean=2500, cv=0.5),
        new_prompt_tokens=Distribution(family=Family.LOGNORMAL, mean=700, cv=1.0),
        output_tokens=Distribution(family=Family.LOGNORMAL, mean=250, cv=0.8),
        environment_s=Distribution(family=Family.EXPONENTIAL, mean=2.0),
        max_context_tokens=32_768,
        routing=routing,
    )


def best_of(times: int, work: Callable[[], object]) -> float:
    """The shortest of several runs, in seconds: the one that the machine disturbed least."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def main() -> None:
    """Print each case with its time and its budget."""
    cases = [
        (64, Counts(colocated=8), 5, 0.15),
        (64, Counts(prefill=4, decode=4), 5, 0.15),
        (4096, Counts(colocated=1000), 1, 120.0),
        (4096, Counts(prefill=400, decode=600), 1, 120.0),
    ]
    for routing in Routing:
        for size, counts, times, budget_s in cases:
            workload = agentic(size, routing)
            spent = best_of(times, lambda w=workload, c=counts: simulate_batch(w, ENGINE, counts=c, seed=0))
            verdict = "ok" if spent <= budget_s else "OVER"
            print(
                f"{size:5} trajectories, {counts.label():>9}, {routing:11}: {spent:7.3f} s of {budget_s:g} s  {verdict}"
            )


if __name__ == "__main__":
    main()
