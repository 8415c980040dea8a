"""What is simulated for a row: the runs it needs, and its figure from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import assert_never

from pearl.core.engine import TransitionCosts
from pearl.reproduce.bench import Bench
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

    seeds: int = 2
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
    """Every run that a row needs; rows share runs."""
    source = target.simulate
    match source:
        case GainSource():
            for setting in _settings(source):
                for policy in (source.policy, source.over):
                    yield from _keys(target.model, policy, setting, effort)
        case OrderSource():
            for policy in source.policies:
                yield from _keys(target.model, policy, {"rollout_gpus": source.rollout_gpus}, effort)
        case PeakBatchSource():
            for batch in source.batches:
                yield from _keys(target.model, source.policy, _peak_setting(source, batch), effort)
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
            gains = tuple(_gain(target.model, source, setting, effort, runs) for setting in _settings(source))
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


def _settings(source: GainSource) -> Iterator[dict[str, object]]:
    names = ("rollout_gpus", "segment", "batch", "context_limit", "training", "overlap_gpus")
    axes = (source.rollout_gpus, source.segments, source.batches, source.context_limits, source.training)
    for values in product(*axes, (source.overlap_gpus,)):
        yield dict(zip(names, values, strict=True))


def _peak_setting(source: PeakBatchSource, batch: int) -> dict[str, object]:
    return {"rollout_gpus": source.rollout_gpus, "segment": source.segment, "batch": batch}


def _keys(model: str, policy: str, setting: Mapping[str, object], effort: Effort) -> Iterator[RunKey]:
    for seed in range(effort.seeds):
        yield RunKey(model=model, policy=policy, seed=seed, horizon_s=effort.horizon_s, **setting)  # type: ignore[arg-type]  # the settings' names are RunKey's


def _mean(
    model: str, policy: str, setting: Mapping[str, object], effort: Effort, runs: Runs, *, makespan: bool = False
) -> float:
    found = [runs.figures[key] for key in _keys(model, policy, setting, effort)]
    return fmean(run.makespan_s if makespan else run.throughput_traj_per_h for run in found)


def _gain(model: str, source: GainSource, setting: Mapping[str, object], effort: Effort, runs: Runs) -> float:
    if source.figure == "makespan":
        slow = _mean(model, source.over, setting, effort, runs, makespan=True)
        return slow / _mean(model, source.policy, setting, effort, runs, makespan=True) - 1
    slow = _mean(model, source.over, setting, effort, runs)
    return _mean(model, source.policy, setting, effort, runs) / slow - 1


def _order(model: str, source: OrderSource, effort: Effort, runs: Runs) -> Simulated:
    setting = {"rollout_gpus": source.rollout_gpus}
    rates = {policy: _mean(model, policy, setting, effort, runs) for policy in source.policies}
    ordered = sorted(rates, key=rates.__getitem__)
    remark = ", ".join(f"{policy} {rates[policy]:.0f}/h" for policy in ordered)
    return Simulated(label=" < ".join(ordered), remark=remark)


def _peak(model: str, source: PeakBatchSource, effort: Effort, runs: Runs) -> Simulated:
    rates = {batch: _mean(model, source.policy, _peak_setting(source, batch), effort, runs) for batch in source.batches}
    remark = ", ".join(f"B = {batch}: {rate:.0f}/h" for batch, rate in rates.items())
    return Simulated(values=(max(rates, key=rates.__getitem__),), remark=remark)


def _best_ratio(source: BestRatioSource, bench: Bench, published: str) -> Simulated:
    from pearl.reproduce.measures import parse_pool

    best = bench.best_ratio(source.workers, source.batch)
    lost = bench.makespan_s(parse_pool(published), source.batch) / bench.makespan_s(best, source.batch) - 1
    return Simulated(label=best.label(), remark=f"the published ratio takes {lost:.1%} longer")


def _selections(model: str, source: SelectionSource, effort: Effort) -> dict[str, SelectionKey]:
    overlaps = (0, source.overlap_gpus) if source.figure == "regret" else (source.overlap_gpus,)
    return {
        f"{gpus}+{overlap}" if overlap else str(gpus): SelectionKey(
            model=model, workers=gpus + overlap, seeds=effort.seeds
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
