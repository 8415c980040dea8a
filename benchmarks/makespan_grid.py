"""A seeded random grid of scenarios, each simulated in many configurations: what predictors are judged by.

The decision that is judged is the one that a pool would take: over every ratio, with every worker. What it is judged
against is the best of the configurations simulated: colocated, ratios from prefill-poor to prefill-rich, what each
predictor chose, and ever closer ratios around the simulated best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
FINEST_SHARE = 1 / 16
"""Ratios are told apart down to this share of the pool, or one worker: the next finer step moves the makespan of the
best by less than the seeds do."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One scenario of the grid."""

    workload: Workload
    engine: EngineProfile
    workers: int
    kv_share: float
    """Of the engine's KV memory, what this scenario leaves it."""

    @property
    def configurations(self) -> list[Counts]:
        """Colocated, and ratios from prefill-poor to prefill-rich, all with the whole pool."""
        prefill = sorted({min(max(1, round(self.workers * share)), self.workers - 1) for share in PREFILL_SHARES})
        return [self.colocated, *map(self.split, prefill)]

    @property
    def every_configuration(self) -> list[Counts]:
        """Colocated, and every ratio of the whole pool."""
        return [self.colocated, *map(self.split, range(1, self.workers))]

    @property
    def colocated(self) -> Counts:
        """Every worker colocated."""
        return Counts(colocated=self.workers)

    def split(self, prefill: int) -> Counts:
        """The whole pool with `prefill` prefill workers."""
        return Counts(prefill=prefill, decode=self.workers - prefill)

    @property
    def classes(self) -> dict[str, str]:
        """What kind of scenario it is, by question."""
        work = self.workload
        per_worker = work.trajectories / self.workers
        prompt, output = work.new_prompt_tokens.mean, work.output_tokens.mean
        return {
            "model": "mixture of experts" if self.engine.decode.saturation else "dense",
            "KV memory": f"{self.kv_share:.0%}",
            "batch per worker": "<= 2" if per_worker <= 2 else "2-8" if per_worker <= 8 else "> 8",
            "pool": "4-16" if self.workers <= 16 else "17-64",
            "turn": "prompt-heavy" if prompt > 2 * output else "decode-heavy" if output > 2 * prompt else "balanced",
            "environment": "none"
            if not work.environment_s.mean
            else "< 2 s"
            if work.environment_s.mean < 2
            else ">= 2 s",
            "routing": work.routing.value,
        }

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
    return Case(
        workload=workload,
        engine=replace(engine, **starved),
        workers=round(2 ** rng.uniform(2, 6)),
        kv_share=kv_share,
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """Makespans of one scenario's configurations in seconds: simulated by seed, predicted, and what was chosen."""

    seed: int
    labels: tuple[str, ...]
    runs: tuple[tuple[float, ...], ...]
    """Simulated, by configuration, then by simulation seed; all configurations meet the same seeds."""
    predicted: dict[str, tuple[float, ...]]
    choice: dict[str, int]
    """Index of the configuration that each predictor chooses among all."""
    grid: int
    """How many of the configurations, the first ones, are there whatever was chosen: errors are of these."""

    @cached_property
    def case(self) -> Case:
        """The scenario."""
        return random_case(self.seed)

    @cached_property
    def simulated(self) -> Floats:
        """Mean over the seeds, by configuration."""
        means: Floats = np.array(self.runs).mean(axis=1)
        return means

    @property
    def noise(self) -> float:
        """Standard error of the mean makespan over its value, averaged over the configurations."""
        runs = np.array(self.runs)
        if runs.shape[1] < 2:
            return float("nan")
        return float((runs.std(axis=1, ddof=1) / np.sqrt(runs.shape[1]) / self.simulated).mean())

    def errors(self, predictor: str) -> Floats:
        """Relative errors over the configurations that do not depend on any choice."""
        errors: Floats = np.array(self.predicted[predictor][: self.grid]) / self.simulated[: self.grid] - 1
        return errors

    def regret(self, predictor: str) -> float:
        """Mean makespan of the predictor's choice over the best mean, minus 1: the best is favoured by its luck."""
        return self.regret_of(self.choice[predictor])

    def regret_of(self, index: int) -> float:
        """The same of any configuration."""
        return float(self.simulated[index] / self.simulated.min() - 1)

    def fair_regret(self, predictor: str) -> float:
        """The best picked on half of the seeds and compared on the other half: no luck, and below 0 now and then."""
        runs = np.array(self.runs)
        regrets = []
        for picking in (slice(0, None, 2), slice(1, None, 2)):
            best = int(runs[:, picking].mean(axis=1).argmin())
            judging = np.setdiff1d(np.arange(runs.shape[1]), np.arange(runs.shape[1])[picking])
            if judging.size:
                means = runs[:, judging].mean(axis=1)
                regrets.append(float(means[self.choice[predictor]] / means[best] - 1))
        return float(np.mean(regrets)) if regrets else self.regret(predictor)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `Result(**read_json(…))` reads it back."""
        return asdict(self)


def from_json(data: dict[str, Any]) -> Result:
    """The result that was written."""
    lists = {
        name: tuple(map(tuple, data[name])) if name == "runs" else tuple(data[name]) for name in ("labels", "runs")
    }
    predicted = {name: tuple(values) for name, values in data["predicted"].items()}
    return Result(**{**data, **lists, "predicted": predicted})


def run_case(task: tuple[int, int]) -> Result:
    """Simulate and predict one scenario: (seed of the scenario, simulation seeds)."""
    seed, seeds = task
    case = random_case(seed)
    chosen = {name: _choice(name, case) for name in PREDICTORS}
    runs: dict[Counts, tuple[float, ...]] = {}

    def mean_s(counts: Counts) -> float:
        if counts not in runs:
            runs[counts] = tuple(
                simulate_batch(case.workload, case.engine, counts=counts, seed=each).makespan_s for each in range(seeds)
            )
        return float(np.mean(runs[counts]))

    grid = case.configurations
    for counts in (*grid, *chosen.values()):
        mean_s(counts)
    _search(case, mean_s, runs)
    tried = list(runs)
    predicted = {
        name: tuple(get_predictor(name).paths(case.workload, case.engine, counts).makespan_s for counts in tried)
        for name in PREDICTORS
    }
    return Result(
        seed=seed,
        labels=tuple(counts.label() for counts in tried),
        runs=tuple(runs.values()),
        predicted=predicted,
        choice={name: tried.index(counts) for name, counts in chosen.items()},
        grid=len(grid),
    )


def _choice(predictor: str, case: Case) -> Counts:
    tables = get_predictor(predictor).tables(case.workload, case.engine, workers=case.workers)
    return min(case.every_configuration, key=tables.makespan_ms)


def _search(case: Case, mean_s: Callable[[Counts], float], runs: dict[Counts, tuple[float, ...]]) -> None:
    """Simulate the neighbours of the best ratio at ever smaller steps, down to the finest."""
    finest = max(1, round(case.workers * FINEST_SHARE))
    step = max(finest, case.workers // 8)
    while True:
        best = min((counts for counts in runs if counts.prefill), key=mean_s)
        around = (best.prefill - step, best.prefill + step)
        new = [case.split(p) for p in around if 0 < p < case.workers and case.split(p) not in runs]
        for counts in new:
            mean_s(counts)
        if new and min(map(mean_s, new)) < mean_s(best):
            continue
        if step <= finest:
            return
        step = max(finest, step // 2)
