"""A study as table, CSV and plain data; every figure in it is simulated."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pearl.report.columns import columns
from pearl.report.schema import API_VERSION
from pearl.sim.results import Figures
from pearl.sim.study import Run

_HEAD = (
    "policy",
    "seed",
    "traj/h",
    "mean s",
    "p50 s",
    "p95 s",
    "max s",
    "mode",
    "ratio",
    "resize",
    "borrowed GPU·s",
    "interrupted",
    "lost",
    "usd",
)


def study_text(runs: Sequence[Run]) -> str:
    """A table for a terminal."""
    lines = [f"simulated {runs[0].horizon_s / 3600:.2f} h of {runs[0].spec.scenario}"]
    rows = [_HEAD, *(_cells(run.figures) for run in runs)]
    lines += columns(rows, indent="", right=frozenset(range(1, len(_HEAD))))
    return "\n".join(lines) + "\n"


def study_csv(runs: Sequence[Run]) -> str:
    """One line per run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_HEAD)
    writer.writerows(_cells(run.figures) for run in runs)
    return out.getvalue()


def study_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Plain data for JSON and YAML."""
    first = runs[0]
    return {
        "apiVersion": API_VERSION,
        "kind": "SimulationReport",
        "simulated": True,
        "scenario": first.spec.scenario,
        "trace": first.spec.trace,
        "horizon_s": first.horizon_s,
        "results": [_data(run.figures) for run in runs],
    }


def _cells(f: Figures) -> tuple[str, ...]:
    m = f.makespan_s
    spans = ("" if value is None else f"{value:.1f}" for value in (m.mean, m.p50, m.p95, m.max))
    return (
        f.policy,
        str(f.seed),
        f"{f.throughput_traj_per_h:.1f}",
        *spans,
        *(str(f.switches[kind]) for kind in ("mode", "ratio", "resize")),
        f"{f.borrowed_s:.0f}",
        str(f.interrupted),
        str(f.lost),
        f"{f.cost_usd:.2f}",
    )


def _data(figures: Figures) -> dict[str, Any]:
    data = asdict(figures)
    data["cost"] = data.pop("cost_usd")
    return {key: _rounded(value) for key, value in data.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
