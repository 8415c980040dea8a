"""What the runs of each policy have in common over their seeds, and how policies differ on the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pearl.sim.results import Figures

Measure = Callable[[Figures], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over the seeds that have it, in the figure's own unit; all None where none has."""

    seeds: int
    mean: float | None
    standard_deviation: float | None
    """Of the sample, with n - 1; None for fewer than two seeds."""
    least: float | None
    largest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A policy's figure less the first policy's, seed by seed: what the seeds have in common cancels out."""

    seeds: int
    """Seeds of which both have the figure."""
    mean: float | None
    standard_deviation: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How a policy differs from the first one."""

    to: str
    throughput_traj_per_h: Difference
    makespan_s: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy over its seeds."""

    policy: str
    throughput_traj_per_h: Spread
    makespan_s: Spread
    """Of the runs' mean makespans; a run in which no batch ended has none."""
    difference: Differences | None
    """None for the first policy."""


def summarise(figures: Sequence[Figures]) -> tuple[Summary, ...]:
    """A summary of every policy, in the order in which they come."""
    by_policy: dict[str, list[Figures]] = {}
    for one in figures:
        by_policy.setdefault(one.policy, []).append(one)
    first = next(iter(by_policy), "")
    return tuple(
        Summary(
            policy=policy,
            throughput_traj_per_h=_spread(_values(own, _throughput).values()),
            makespan_s=_spread(_values(own, _makespan).values()),
            difference=None if policy == first else _differences(own, by_policy[first]),
        )
        for policy, own in by_policy.items()
    )


def _throughput(figures: Figures) -> float | None:
    return figures.throughput_traj_per_h


def _makespan(figures: Figures) -> float | None:
    return figures.makespan_s.mean


def _values(figures: Iterable[Figures], measure: Measure) -> dict[int, float]:
    """By seed, of the runs that have it."""
    found = {one.seed: measure(one) for one in figures}
    return {seed: value for seed, value in found.items() if value is not None}


def _spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    return Spread(
        seeds=len(ordered),
        mean=fmean(ordered) if ordered else None,
        standard_deviation=_deviation(ordered),
        least=ordered[0] if ordered else None,
        largest=ordered[-1] if ordered else None,
    )


def _differences(own: Sequence[Figures], first: Sequence[Figures]) -> Differences:
    return Differences(
        to=first[0].policy,
        throughput_traj_per_h=_difference(own, first, _throughput),
        makespan_s=_difference(own, first, _makespan),
    )


def _difference(own: Sequence[Figures], first: Sequence[Figures], measure: Measure) -> Difference:
    here, there = _values(own, measure), _values(first, measure)
    values = [here[seed] - there[seed] for seed in sorted(here.keys() & there.keys())]
    return Difference(seeds=len(values), mean=fmean(values) if values else None, standard_deviation=_deviation(values))


def _deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None
