"""Predictors against the simulator: makespan error and regret of the decision, on a seeded random grid.

    python benchmarks/makespan_accuracy.py --scenarios 200 --seeds 3

For each scenario the whole pool is simulated colocated and at several ratios, each as the mean over the same seeds.
Error: predicted over simulated makespan, for each configuration. Regret: how much longer the configuration that the
predictor likes best takes than the simulated best. Exit 1 if the network predictor misses a target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from random import Random

import numpy as np

from pearl.core.cluster import Counts
from pearl.core.distribution import Distribution, Family
from pearl.core.engine import EngineProfile
from pearl.core.workload import Routing, Workload
from pearl.makespan.registry import get_predictor
from pearl.scenario.engines import load_profile
from pearl.sim.batch import simulate_batch

PROFILES = ("qwen3-8b-h200", "qwen3-8b-h100", "qwen3-30b-a3b-h200", "qwen3-30b-a3b-h100", "qwen3-32b-h200")
PREDICTORS = ("bubble", "network")
PREFILL_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
MOST_MEDIAN_ERROR = 0.08
MOST_MEAN_REGRET = 0.01
MOST_P95_REGRET = 0.03


@dataclass(frozen=True, kw_only=True)
class Case:
    """One scenario of the grid."""

    workload: Workload
    engine: EngineProfile
    workers: int

    @property
    def configurations(self) -> list[Counts]:
        """Colocated, and ratios from prefill-poor to prefill-rich, all with the whole pool."""
        prefill = sorted({min(max(1, round(self.workers * share)), self.workers - 1) for share in PREFILL_SHARES})
        return [Counts(colocated=self.workers), *(Counts(prefill=p, decode=self.workers - p) for p in prefill)]

    def __str__(self) -> str:
        work = self.workload
        return (
            f"{self.engine.name} KV {self.engine.kv_decode_tokens // 1000}k N{self.workers} B{work.trajectories} "
            f"{work.turns.mean:g} turns {work.new_prompt_tokens.mean:.0f}+{work.output_tokens.mean:.0f} tokens "
            f"cv {work.output_tokens.cv:g} env {work.environment_s.mean:.1f} s {work.routing.value}"
        )


def random_case(seed: int) -> Case:
    """Batch 8–256, workers 4–64, dense and MoE, prompt- to decode-heavy, KV-rich to KV-starved, environment 0–10 s."""
    rng = Random(seed)
    cv = rng.choice((0.0, 0.4, 0.8, 1.2))

    def spread(mean: float, factor: float = 1.0) -> Distribution:
        return Distribution(family=Family.LOGNORMAL, mean=mean, cv=cv * factor)

    engine = load_profile(rng.choice(PROFILES))
    limit = rng.choice((16_384, 32_768))
    kv_share = rng.choice((1.0, 0.5, 0.25, 0.12))
    workload = Workload(
        trajectories=round(2 ** rng.uniform(3, 8)),
        turns=spread(rng.choice((4, 8, 16)), 0.5),
        first_prompt_tokens=spread(rng.choice((1000, 3000)), 0.5),
        new_prompt_tokens=spread(2 ** rng.uniform(6.5, 11)),
        output_tokens=spread(2 ** rng.uniform(6.5, 10)),
        environment_s=spread(rng.choice((0.0, rng.uniform(0, 2), rng.uniform(2, 10)))),
        max_context_tokens=limit,
        routing=rng.choice(tuple(Routing)),
    )
    starved = {
        name: max(round(getattr(engine, name) * kv_share), limit)
        for name in ("kv_decode_tokens", "kv_colocated_tokens")
    }
    return Case(workload=workload, engine=replace(engine, **starved), workers=round(2 ** rng.uniform(2, 6)))


@dataclass(frozen=True, kw_only=True)
class Result:
    """Makespans of one scenario's configurations in seconds, simulated and by predictor."""

    case: Case
    simulated: tuple[float, ...]
    predicted: dict[str, tuple[float, ...]]

    def errors(self, predictor: str) -> np.ndarray:
        """Relative errors."""
        return np.array(self.predicted[predictor]) / np.array(self.simulated) - 1

    def regret(self, predictor: str) -> float:
        """Simulated makespan of the predictor's choice over the best, minus 1."""
        choice = int(np.argmin(self.predicted[predictor]))
        return self.simulated[choice] / min(self.simulated) - 1


def run_case(task: tuple[int, int]) -> Result:
    """Simulate and predict one scenario: (seed of the scenario, simulation seeds)."""
    case, seeds = random_case(task[0]), range(task[1])
    simulated = [
        float(
            np.mean([simulate_batch(case.workload, case.engine, counts=counts, seed=seed).makespan_s for seed in seeds])
        )
        for counts in case.configurations
    ]
    predicted = {
        name: tuple(
            get_predictor(name).paths(case.workload, case.engine, counts).makespan_s for counts in case.configurations
        )
        for name in PREDICTORS
    }
    return Result(case=case, simulated=tuple(simulated), predicted=predicted)


def report(results: Sequence[Result]) -> bool:
    """Print the table; whether the network predictor meets its targets."""
    print(f"{len(results)} scenarios, {sum(len(r.simulated) for r in results)} configurations")
    print("predictor  median |error|  mean error  p90 |error|  mean regret  p95 regret")
    for name in PREDICTORS:
        errors = np.concatenate([result.errors(name) for result in results])
        regrets = [result.regret(name) for result in results]
        size, mean_regret, p95 = np.abs(errors), float(np.mean(regrets)), float(np.quantile(regrets, 0.95))
        print(
            f"{name:9}  {np.median(size):14.1%}  {errors.mean():10.1%}  {np.quantile(size, 0.9):11.1%}  "
            f"{mean_regret:11.2%}  {p95:10.2%}"
        )
        if name == "network":
            met = np.median(size) <= MOST_MEDIAN_ERROR and mean_regret <= MOST_MEAN_REGRET and p95 <= MOST_P95_REGRET
    return bool(met)


def main() -> None:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3, help="simulations per configuration")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first scenario")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--worst", type=int, default=5, help="scenarios of largest regret to print")
    options = parser.parse_args()
    tasks = [(options.first + index, options.seeds) for index in range(options.scenarios)]
    with Pool(options.jobs) as pool:
        results = list(pool.imap(run_case, tasks, chunksize=1))
    met = report(results)
    for result in sorted(results, key=lambda r: -r.regret("network"))[: options.worst]:
        labels = [counts.label() for counts in result.case.configurations]
        print(f"{result.regret('network'):6.1%}  {result.case}")
        print("        " + "  ".join(f"{label} {s:.1f}" for label, s in zip(labels, result.simulated, strict=True)))
        print("        " + "  ".join(f"{error:+.0%}" for error in result.errors("network")))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
