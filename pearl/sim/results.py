"""Figures of an experiment, as plain data for tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pearl.core.cluster import Role, Status, Zone
from pearl.sim.experiment import Report
from pearl.sim.rollout import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Makespans:
    """Makespans of the batches that ended, in seconds; None where none did."""

    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run came to; simulated, all of it."""

    policy: str
    seed: int
    predictor: str
    solver: str
    throughput_traj_per_h: float
    trajectories: int
    batches: int
    makespan_s: Makespans
    gpu_s: Mapping[str, Mapping[str, float]]
    """GPU-seconds held, by zone and role; `transitioning` counts apart from the role."""
    idle_s: float
    """GPU-seconds of serving workers that computed nothing."""
    switches: Mapping[str, int]
    """Decisions that changed the mode, the ratio, or the number of serving workers."""
    decisions: int
    borrowed_s: float
    """GPU-seconds for which overlap GPUs served rollout."""
    interrupted: int
    """Turns that lost their engine under way and went on elsewhere."""
    lost: int
    cost_usd: float


def figures_of(
    report: Report, *, predictor: str, solver: str, prices_usd_per_h: Mapping[Zone, float], tensor_parallel: int
) -> Figures:
    """The figures of a report; prices are per worker-hour."""
    rollout = report.rollout
    ended = sorted(rollout.makespans_s)
    return Figures(
        policy=report.policy,
        seed=report.seed,
        predictor=predictor,
        solver=solver,
        throughput_traj_per_h=rollout.throughput_traj_per_h,
        trajectories=rollout.finished,
        batches=len(ended),
        makespan_s=_makespans(ended),
        gpu_s=_gpu_s(report),
        idle_s=rollout.serving_idle_gpu_s,
        switches={kind.value: number for kind, number in report.switches.items()},
        decisions=report.decisions,
        borrowed_s=rollout.borrowed_gpu_s,
        interrupted=rollout.tally.interruptions,
        lost=rollout.lost,
        cost_usd=cost_usd(report, prices_usd_per_h, tensor_parallel=tensor_parallel),
    )


def cost_usd(report: Report, prices_usd_per_h: Mapping[Zone, float], *, tensor_parallel: int) -> float:
    """Price of the GPUs held: reserved and preemptible ones always, overlap ones only while they serve or change."""
    total = 0.0
    for (zone, role, status), gpu_s in report.rollout.gpu_s.items():
        if zone is Zone.OVERLAP and role is Role.INACTIVE and status is not Status.TRANSITIONING:
            continue
        total += prices_usd_per_h.get(zone, 0.0) * gpu_s / tensor_parallel / SECONDS_PER_HOUR
    return total


def _makespans(ended: Sequence[float]) -> Makespans:
    if not ended:
        return Makespans(mean=None, p50=None, p95=None, max=None)
    return Makespans(mean=fmean(ended), p50=quantile(ended, 0.5), p95=quantile(ended, 0.95), max=ended[-1])


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of ordered values."""
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def _gpu_s(report: Report) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {zone.value: {} for zone in Zone}
    for (zone, role, status), seconds in sorted(report.rollout.gpu_s.items()):
        column = "transitioning" if status is Status.TRANSITIONING else role.value
        row = table[zone.value]
        row[column] = row.get(column, 0.0) + seconds
    return table
