"""Figures of an experiment, as plain data for tables and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pearl.core.cluster import Role, Status, Zone
from pearl.core.decision import Outcome
from pearl.sim.experiment import Report
from pearl.sim.log import Happening
from pearl.sim.rollout import SECONDS_PER_HOUR
from pearl.sim.usage import UsageKey

JOULES_PER_KWH = 3.6e6


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
    horizon_s: float
    """Time simulated, which rates and totals are over."""
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
    outcomes: Mapping[str, int]
    """Of these decisions, how many came to which outcome."""
    borrowed_s: float
    """GPU-seconds for which overlap GPUs served rollout."""
    interrupted: int
    """Turns that lost their engine under way and went on elsewhere."""
    lost: int
    cost_usd: float
    energy_kwh: Mapping[str, Mapping[str, float]]
    """By zone and role, of the roles whose power is given."""

    @property
    def all_infeasible(self) -> bool:
        """Whether there were decisions, and not one of them was feasible."""
        return 0 < self.decisions == self.outcomes[Outcome.INFEASIBLE.value]


def figures_of(
    report: Report,
    *,
    predictor: str,
    solver: str,
    prices_usd_per_h: Mapping[Zone, float],
    tensor_parallel: int,
    power_w: Mapping[Role, float] | None = None,
) -> Figures:
    """The figures of a report that has its log; prices are per worker-hour, `power_w` is that of a worker by role."""
    rollout = report.rollout
    ended = sorted(rollout.makespans_s)
    return Figures(
        policy=report.policy,
        seed=report.seed,
        predictor=predictor,
        solver=solver,
        horizon_s=rollout.horizon_s,
        throughput_traj_per_h=rollout.throughput_traj_per_h,
        trajectories=rollout.finished,
        batches=len(ended),
        makespan_s=_makespans(ended),
        gpu_s=_gpu_s(report),
        idle_s=rollout.serving_idle_gpu_s,
        switches={kind.value: number for kind, number in report.switches.items()},
        decisions=report.decisions,
        outcomes=_outcomes(report),
        borrowed_s=rollout.borrowed_gpu_s,
        interrupted=rollout.tally.interruptions,
        lost=rollout.lost,
        cost_usd=cost_usd(report, prices_usd_per_h, tensor_parallel=tensor_parallel),
        energy_kwh=energy_kwh(report, power_w or {}, tensor_parallel=tensor_parallel),
    )


def cost_usd(report: Report, prices_usd_per_h: Mapping[Zone, float], *, tensor_parallel: int) -> float:
    """Price of the GPUs held: reserved and preemptible ones always, overlap ones only while they serve or change."""
    total = 0.0
    for (zone, _, _), gpu_s in _held(report):
        total += prices_usd_per_h.get(zone, 0.0) * gpu_s / tensor_parallel / SECONDS_PER_HOUR
    return total


def energy_kwh(report: Report, power_w: Mapping[Role, float], *, tensor_parallel: int) -> dict[str, dict[str, float]]:
    """Energy of the workers held, as `cost_usd` counts them: the power of their role, busy or not, times the time.

    A worker on its way to a role counts as in it. Zones and roles that held no worker, or have no power, are left out.
    """
    table: dict[str, dict[str, float]] = {}
    for (zone, role, _), gpu_s in _held(report):
        if role in power_w and gpu_s > 0:
            row = table.setdefault(zone.value, {})
            row[role.value] = row.get(role.value, 0.0) + power_w[role] * gpu_s / tensor_parallel / JOULES_PER_KWH
    return table


def _held(report: Report) -> Iterator[tuple[UsageKey, float]]:
    """GPU-seconds by zone, role and status, without those of overlap GPUs that are the trainer's."""
    for (zone, role, status), gpu_s in sorted(report.rollout.gpu_s.items()):
        if zone is not Zone.OVERLAP or role is not Role.INACTIVE or status is Status.TRANSITIONING:
            yield (zone, role, status), gpu_s


def _outcomes(report: Report) -> dict[str, int]:
    counted = Counter(record.data["outcome"] for record in report.log if record.what is Happening.DECISION)
    return {outcome.value: counted[outcome.value] for outcome in Outcome}


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
