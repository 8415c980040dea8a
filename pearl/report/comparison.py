"""A comparison of solvers as table, CSV and plain data."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pearl.deciding.comparison import Measured
from pearl.report.columns import columns
from pearl.report.schema import API_VERSION

_HEAD = ("scenario", "policy", "predictor", "solver", "status", "tiers", "bound", "agrees", "build ms", "solve ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One problem: what it was posed from."""

    scenario: str
    policy: str
    predictor: str


Rows = Sequence[tuple[Instance, Measured]]


def comparison_text(rows: Rows) -> str:
    """A table for a terminal; failures are spelled out below it."""
    cells = [_HEAD, *(_cells(instance, measured) for instance, measured in rows)]
    lines = columns(cells, indent="", right=frozenset({6, 8, 9}))
    lines += [f"{m.solver} on {i.scenario}: {m.detail}" for i, m in rows if m.status == "error"]
    return "\n".join(lines) + "\n"


def comparison_csv(rows: Rows) -> str:
    """One line per instance and solver; tier values as `name=value` joined by semicolons."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name.replace(" ", "_") for name in _HEAD])
    writer.writerows(_cells(instance, measured) for instance, measured in rows)
    return out.getvalue()


def comparison_data(rows: Rows) -> dict[str, Any]:
    """Plain data for JSON and YAML; `agrees` is null where enumeration cannot run."""
    return {"apiVersion": API_VERSION, "kind": "SolverComparison", "results": [_data(i, m) for i, m in rows]}


def _cells(instance: Instance, measured: Measured) -> tuple[str, ...]:
    agrees = {True: "yes", False: "NO", None: "n/a"}[measured.agrees]
    return (
        instance.scenario,
        instance.policy,
        instance.predictor,
        measured.solver,
        measured.status,
        ";".join(f"{name}={value:g}" for name, value in measured.tier_values),
        "" if measured.bound is None else f"{measured.bound:g}",
        agrees,
        f"{1000 * measured.build_s:.1f}",
        f"{1000 * measured.solve_s:.1f}",
    )


def _data(instance: Instance, measured: Measured) -> dict[str, Any]:
    return {
        "scenario": instance.scenario,
        "policy": instance.policy,
        "predictor": instance.predictor,
        "solver": measured.solver,
        "library_version": measured.library_version,
        "status": measured.status,
        "tiers": [{"name": name, "value": value} for name, value in measured.tier_values],
        "bound": measured.bound,
        "agrees_with_enumeration": measured.agrees,
        "build_s": round(measured.build_s, 6),
        "solve_s": round(measured.solve_s, 6),
        "detail": measured.detail,
    }
