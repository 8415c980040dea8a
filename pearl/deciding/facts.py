"""Facts of a decision: what the policy language may read, from the situation and the makespan tables."""

from __future__ import annotations

from pearl.core.cluster import Counts
from pearl.core.facts import ColumnTable, Facts
from pearl.core.grouping import WorkerGroup
from pearl.core.problem import UNREACHABLE_MS, Axis, MakespanTables
from pearl.core.situation import Situation
from pearl.core.workload import Workload
from pearl.makespan.profile import batch_profile, demand_rates, prefill_rate

NO_WINDOW_S = 1e6
"""Stands for 'no known end of the overlap window', in seconds: what a table holds where nothing can run."""


def gather_facts(
    situation: Situation, workload: Workload, *, groups: tuple[WorkerGroup, ...], tables: MakespanTables, stay_ms: int
) -> Facts:
    """Resolve every name of the policy vocabulary for one decision, in base units (seconds, tokens, usd, watts)."""
    engine = situation.engine
    profile = batch_profile(workload)
    window = situation.overlap_window_s
    scalars = {
        "B": float(workload.trajectories),
        "K_seq": profile.running_tokens,
        "K_max": float(workload.max_context_tokens),
        "H_max": float(engine.kv_decode_tokens),
        "H_colo": float(engine.kv_colocated_tokens),
        "prefill_rate": prefill_rate(profile, engine),
        "workers": float(sum(g.group.size for g in groups if not g.group.leaving)),
        "T_stay": stay_ms / 1000,
        "overlap_window": NO_WINDOW_S if window is None else window,
        "activate_cost": situation.costs.borrow_s,
        "return_cost": situation.costs.return_s,
        "job_priority": float(situation.job_priority),
        "turns": profile.turns,
        "environment_time": profile.environment_s,
    }
    return Facts(
        groups=tuple(g.group for g in groups),
        scalars=scalars,
        tables=_tables(tables, demand_rates(profile, engine, workers=tables.workers)),
        maps={
            "price": {zone.value: price for zone, price in situation.prices_usd_per_h.items()},
            "power": {role.value: watts for role, watts in situation.power_w.items()},
        },
        samples=situation.samples,
    )


def _tables(tables: MakespanTables, demand: tuple[float, ...]) -> dict[str, ColumnTable]:
    colocated = _seconds(tables.colocated_ms)
    return {
        "T_prefill": ColumnTable(columns={Axis.PREFILL: _seconds(tables.prefill_ms), Axis.COLOCATED: colocated}),
        "T_decode": ColumnTable(columns={Axis.DECODE: _seconds(tables.decode_ms), Axis.COLOCATED: colocated}),
        "demand_rate": ColumnTable(columns={Axis.DECODE: demand}),
    }


def _seconds(column_ms: tuple[int, ...]) -> tuple[float, ...]:
    """A table in seconds whose entry 0 adds nothing: the other mode's column speaks there."""
    return (0.0, *(ms / 1000 for ms in column_ms[1:]))


def stay_makespan_ms(tables: MakespanTables, stay: Counts) -> int:
    """Predicted makespan of the surviving workers in today's roles; UNREACHABLE_MS where they cannot serve."""
    return tables.makespan_ms(stay) if stay.serving else UNREACHABLE_MS


def best_makespan_ms(tables: MakespanTables) -> int:
    """The smallest makespan in the tables: a finite stand-in for T_stay where staying is impossible."""
    joint = [rung.makespan_ms for rung in tables.pairs] or [max(min(tables.prefill_ms), min(tables.decode_ms))]
    return min(*tables.colocated_ms, *joint)
