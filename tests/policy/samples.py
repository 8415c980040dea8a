"""Facts and policy texts for tests."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from pearl.core.cluster import Role, Zone
from pearl.core.facts import ColumnTable, Facts, ForecastSamples
from pearl.core.problem import Axis, Group
from pearl.policy.load import load_policy
from pearl.policy.model import Policy

ROLES = (Role.COLOCATED, Role.PREFILL, Role.DECODE, Role.INACTIVE)
ZONES = (Zone.RESERVED, Zone.PREEMPTIBLE, Zone.OVERLAP)
SCALARS = {
    "B": 64.0,
    "K_seq": 20123.4,
    "K_max": 32768.0,
    "H_max": 400000.0,
    "H_colo": 350000.0,
    "prefill_rate": 23456.789,
    "T_stay": 240.0,
    "overlap_window": 300.0,
    "activate_cost": 6.0,
    "return_cost": 3.8,
    "job_priority": 3.0,
    "turns": 20.0,
    "environment_time": 2.0,
}
MAPS = {
    "price": {"reserved": 3.5, "preemptible": 1.2, "overlap": 0.0},
    "power": {"prefill": 650.0, "decode": 450.0, "colocated": 550.0, "inactive": 120.0},
}


def groups(nodes: int = 4, per_node: int = 4) -> tuple[Group, ...]:
    """For each node, colocated workers and one inactive worker; zones take turns."""
    result = []
    for n in range(nodes):
        zone = ZONES[n % 3]
        for role, size in ((Role.COLOCATED, per_node - 1), (Role.INACTIVE, 1)):
            result.append(
                Group(
                    id=f"{zone}/node-{n}/{role}",
                    zone=zone,
                    role=role,
                    size=size,
                    targets=ROLES,
                    node=f"node-{n}",
                    reclaim_probability=0.1 * (n % 3),
                )
            )
    return tuple(result)


def facts(
    nodes: int = 4,
    per_node: int = 4,
    *,
    samples: Mapping[str, ForecastSamples] | None = None,
    scalars: Mapping[str, float] | None = None,
    tables: Mapping[str, ColumnTable] | None = None,
) -> Facts:
    """Facts of a pool of nodes × workers."""
    workers = nodes * per_node
    known = {
        "overlap_window": ForecastSamples(values=(100.0, 200.0, 300.0)),
        "spot_reclaims": ForecastSamples(values=(0.0, 1.0, 2.0)),
    }
    return Facts(
        groups=groups(nodes, per_node),
        scalars={**SCALARS, "workers": float(workers), **(scalars or {})},
        tables=tables if tables is not None else curves(workers),
        maps=MAPS,
        samples=known if samples is None else samples,
    )


def curves(workers: int) -> dict[str, ColumnTable]:
    """Makespans that fall with the workers, to the millisecond, and a demand that rises with them."""
    counts = range(1, workers + 1)
    prefill = (0.0, *(round(3000 / n + 12.3, 3) for n in counts))
    decode = (0.0, *(round(5000 / n + 12.3, 3) for n in counts))
    colocated = (0.0, *(round(7000 / n + 12.3, 3) for n in counts))
    demand = (0.0, *(1234.567 * n / (1 + 50 / n) for n in counts))
    return {
        "T_prefill": ColumnTable(columns={Axis.PREFILL: prefill, Axis.COLOCATED: colocated}),
        "T_decode": ColumnTable(columns={Axis.DECODE: decode, Axis.COLOCATED: colocated}),
        "demand_rate": ColumnTable(columns={Axis.DECODE: demand}),
    }


HEADER = "apiVersion: pearl.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: sample}\n"
TIERS = "  objective:\n    tiers: [{name: makespan, minimize: T}]\n"


def policy_text(spec: str = "", *, tiers: str = TIERS, extends: str = "") -> str:
    """A policy file whose spec holds the given sections."""
    above = f"extends: [{extends}]\n" if extends else ""
    return f"{HEADER}{above}spec:\n{textwrap.indent(textwrap.dedent(spec), '  ')}{tiers}"


def written(folder: Path, text: str, name: str = "policy.yaml") -> Path:
    """The text in a file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, spec: str = "", *, tiers: str = TIERS, sets: Mapping[str, str] | None = None) -> Policy:
    """A policy of the given sections."""
    return load_policy(written(folder, policy_text(spec, tiers=tiers)), sets=sets or {})


def rule(require: str, **fields: str) -> str:
    """The `constraints` section with one rule."""
    more = "".join(f"\n    {key}: {value}" for key, value in fields.items())
    return f"constraints:\n  - name: r\n    require: {require!r}{more}\n"
