"""What is simulated for a row: the runs it needs, and its figure from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from statistics import fmean
from typing import assert_never

from pearl.core.engine import TransitionCosts
from pearl.reproduce.bench import Bench
from pearl.reproduce.measures import parse_pool
from pearl.reproduce.models import load_model
from pearl.reproduce.segments import SEGMENT_S
from pearl.reproduce.selection import Selected, SelectionKey
from pearl.reproduce.targets import (
    BestRatioSource,
    CostSource,
    GainSource,
    MeasureSource,
    OrderSource,
    PeakBatchSource,
    ReprefillSource,
    SelectionSource,
    Target,
)
from pearl.reproduce.world import RunFigures, RunKey
from pearl.sim.trajectories import context_tokens

BATCHES_PER_SEED = 8
"""Batches of a configuration in section 6.5.1 for each seed: as many as a run of two hours holds, which is one seed
elsewhere. The mean difference of two neighbours over four seeds is then within 0.4 %."""
TIE = "="
"""Between policies that came to the same figure; such policies keep the published order."""

Key = RunKey | SelectionKey
"""A piece of work that rows share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What came of the shared work."""

    figures: Mapping[RunKey, RunFigures] = field(default_factory=dict)
    selected: Mapping[SelectionKey, Selected] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is simulated."""

    seeds: int = 4
    """Runs of each policy in each world, and batches of each fixed pool."""
    horizon_s: float = SEGMENT_S

    @classmethod
    def quick(cls) -> Effort:
        """Enough to see that everything works; its figures are noisier."""
        return cls(seeds=1, horizon_s=SEGMENT_S / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A row's simulated side: one value for each setting, or a label."""

    values: tuple[float, ...] = ()
    label: str | None = None
    remark: str = ""
    """What the figure rests on, where the figure alone does not say."""


def runs_for(target: Target, effort: Effort) -> Iterator[Key]:
    """Every piece of work that a row needs and others may share."""
    source = target.simulate
    match source:
        case GainSource():
            for world in _worlds(target.model, source, effort):
                for policy in (source.policy, source.over):
                    yield from _repeats(world, policy, effort)
        case OrderSource():
            for policy in source.policies:
                yield from _repeats(_pool_of(target.model, source, effort), policy, effort)
        case PeakBatchSource():
            for world in _batches(target.model, source, effort):
                yield from _repeats(world, source.policy, effort)
        case SelectionSource():
            yield from _selections(target.model, source, effort).values()
        case _:
            return


def simulated(target: Target, effort: Effort, runs: Runs) -> Simulated:
    """The figure of a row, from the runs named by `runs_for` and from batches simulated here."""
    source = target.simulate
    match source:
        case MeasureSource():
            return Simulated(values=(source.measure.read(_bench(target.model, effort)),))
        case BestRatioSource():
            return _best_ratio(source, _bench(target.model, effort), str(target.published))
        case GainSource():
            gains = tuple(_gain(source, world, effort, runs) for world in _worlds(target.model, source, effort))
            return Simulated(values=(fmean(gains),) if source.mean else gains)
        case OrderSource():
            return _order(target.model, source, effort, runs)
        case PeakBatchSource():
            return _peak(target.model, source, effort, runs)
        case SelectionSource():
            return _selection(target.model, source, effort, runs)
        case CostSource():
            return Simulated(values=(getattr(TransitionCosts(), source.cost),), remark="an input")
        case ReprefillSource():
            return _reprefill(source, _bench(target.model, effort))
    assert_never(source)


def _bench(model: str, effort: Effort) -> Bench:
    world = load_model(model)
    return Bench(workload=world.workload, engine=world.engine, seeds=range(effort.seeds))


def _worlds(model: str, source: GainSource, effort: Effort) -> Iterator[RunKey]:
    """One run of the policy for each combination of the settings, with the first seed."""
    axes = (source.rollout_gpus, source.segments, source.batches, source.context_limits, source.training)
    for gpus, segment, batch, limit, training in product(*axes):
        yield RunKey(
            model=model,
            policy=source.policy,
            rollout_gpus=gpus,
            overlap_gpus=source.overlap_gpus,
            segment=segment,
            batch=batch,
            context_limit=limit,
            training=training,
            seed=0,
            horizon_s=effort.horizon_s,
        )


def _pool_of(model: str, source: OrderSource, effort: Effort) -> RunKey:
    return RunKey(
        model=model, policy=source.policies[0], rollout_gpus=source.rollout_gpus, seed=0, horizon_s=effort.horizon_s
    )


def _batches(model: str, source: PeakBatchSource, effort: Effort) -> Iterator[RunKey]:
    for batch in source.batches:
        yield RunKey(
            model=model,
            policy=source.policy,
            rollout_gpus=source.rollout_gpus,
            segment=source.segment,
            batch=batch,
            seed=0,
            horizon_s=effort.horizon_s,
        )


def _repeats(world: RunKey, policy: str, effort: Effort) -> Iterator[RunKey]:
    """The same world under a policy, once for each seed."""
    for seed in range(effort.seeds):
        yield replace(world, policy=policy, seed=seed)


def _throughput(world: RunKey, policy: str, effort: Effort, runs: Runs) -> float:
    return fmean(runs.figures[key].throughput_traj_per_h for key in _repeats(world, policy, effort))


def _makespan(world: RunKey, policy: str, effort: Effort, runs: Runs) -> float:
    return fmean(runs.figures[key].makespan_s for key in _repeats(world, policy, effort))


def _gain(source: GainSource, world: RunKey, effort: Effort, runs: Runs) -> float:
    if source.figure == "makespan":
        return _makespan(world, source.over, effort, runs) / _makespan(world, source.policy, effort, runs) - 1
    return _throughput(world, source.policy, effort, runs) / _throughput(world, source.over, effort, runs) - 1


def _order(model: str, source: OrderSource, effort: Effort, runs: Runs) -> Simulated:
    world = _pool_of(model, source, effort)
    rates = {policy: _throughput(world, policy, effort, runs) for policy in source.policies}
    ordered = sorted(source.policies, key=rates.__getitem__)
    remark = ", ".join(f"{policy} {rates[policy]:.0f}/h" for policy in ordered)
    signs = ["<" if rates[one] < rates[other] else TIE for one, other in pairwise(ordered)]
    label = ordered[0] + "".join(f" {sign} {policy}" for sign, policy in zip(signs, ordered[1:], strict=True))
    return Simulated(label=label, remark=remark)


def _peak(model: str, source: PeakBatchSource, effort: Effort, runs: Runs) -> Simulated:
    rates = {world.batch: _throughput(world, source.policy, effort, runs) for world in _batches(model, source, effort)}
    remark = ", ".join(f"B = {batch}: {rate:.0f}/h" for batch, rate in rates.items())
    return Simulated(values=(max(rates, key=rates.__getitem__),), remark=remark)


def _best_ratio(source: BestRatioSource, bench: Bench, published: str) -> Simulated:
    best = bench.best_ratio(source.workers, source.batch)
    lost = bench.makespan_s(parse_pool(published), source.batch) / bench.makespan_s(best, source.batch) - 1
    return Simulated(label=best.label(), remark=f"the published ratio takes {lost:.1%} longer")


def _selections(model: str, source: SelectionSource, effort: Effort) -> dict[str, SelectionKey]:
    overlaps = (0, source.overlap_gpus) if source.figure == "regret" else (source.overlap_gpus,)
    return {
        f"{gpus}+{overlap}" if overlap else str(gpus): SelectionKey(
            model=model, workers=gpus + overlap, batches=BATCHES_PER_SEED * effort.seeds
        )
        for overlap, gpus in product(overlaps, source.dedicated_gpus)
    }


def _selection(model: str, source: SelectionSource, effort: Effort, runs: Runs) -> Simulated:
    found = {name: runs.selected[key] for name, key in _selections(model, source, effort).items()}
    if source.figure == "regret":
        remark = ", ".join(f"{gpus} GPUs: {one.regret:.1%}" for gpus, one in found.items())
        return Simulated(values=(max(one.regret for one in found.values()),), remark=remark)
    remark = ", ".join(f"{gpus} GPUs: {one.chosen.label()} for {one.best.label()}" for gpus, one in found.items())
    matches = sum(one.chosen == one.best for one in found.values())
    return Simulated(values=(float(matches),), label=f"{matches} of {len(found)}", remark=remark)


def _reprefill(source: ReprefillSource, bench: Bench) -> Simulated:
    results = bench.results(source.pool, source.batch)
    lasting_s = fmean(fmean(result.finish_s) for result in results)
    tokens = fmean(
        context_tokens(trajectory) for seed in bench.seeds for trajectory in bench.trajectories(source.batch, seed)
    )
    return Simulated(
        values=(bench.engine.prefill.seconds(tokens) / lasting_s,), remark="of a whole context at its end: the most"
    )
