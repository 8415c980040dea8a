"""A study as table, CSV and plain data; every figure in it is simulated."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pearl.core.decision import Outcome
from pearl.report.columns import columns
from pearl.report.schema import API_VERSION
from pearl.sim.results import Figures
from pearl.sim.study import Run
from pearl.sim.summary import Difference, Spread, Summary, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column of the table and of the CSV file."""

    head: str
    cell: Callable[[Figures], str]


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


_COLUMNS = (
    _Column(head="policy", cell=lambda f: f.policy),
    _Column(head="seed", cell=lambda f: str(f.seed)),
    _Column(head="traj/h", cell=lambda f: _one(f.throughput_traj_per_h)),
    _Column(head="mean s", cell=lambda f: _one(f.makespan_s.mean)),
    _Column(head="p50 s", cell=lambda f: _one(f.makespan_s.p50)),
    _Column(head="p95 s", cell=lambda f: _one(f.makespan_s.p95)),
    _Column(head="max s", cell=lambda f: _one(f.makespan_s.max)),
    _Column(head="mode", cell=lambda f: str(f.switches["mode"])),
    _Column(head="ratio", cell=lambda f: str(f.switches["ratio"])),
    _Column(head="resize", cell=lambda f: str(f.switches["resize"])),
    _Column(head="borrowed GPU·s", cell=lambda f: f"{f.borrowed_s:.0f}"),
    _Column(head="interrupted", cell=lambda f: str(f.interrupted)),
    _Column(head="lost", cell=lambda f: str(f.lost)),
    _Column(head="usd", cell=lambda f: f"{f.cost_usd:.2f}"),
)
_KEEP = _Column(head="keep", cell=lambda f: str(f.outcomes[Outcome.KEEP.value]))
_SWITCH = _Column(head="switch", cell=lambda f: str(f.outcomes[Outcome.SWITCH.value]))
_INFEASIBLE = _Column(head="infeasible", cell=lambda f: str(f.outcomes[Outcome.INFEASIBLE.value]))
_LIMIT = _Column(head="limit", cell=lambda f: str(f.outcomes[Outcome.LIMIT.value]))
_ENERGY = _Column(head="kWh", cell=lambda f: f"{_kwh(f):.2f}" if f.energy_kwh else "")
_HORIZON = _Column(head="horizon s", cell=lambda f: _one(f.horizon_s))


def _kwh(figures: Figures) -> float:
    return sum(value for row in figures.energy_kwh.values() for value in row.values())


def study_text(runs: Sequence[Run]) -> str:
    """A table for a terminal; over several seeds also their means, spreads and differences."""
    figures = [run.figures for run in runs]
    shown = (*_COLUMNS, *_telling(figures))
    rows = [tuple(c.head for c in shown), *(tuple(c.cell(f) for c in shown) for f in figures)]
    lines = [_title(runs), *columns(rows, indent="", right=frozenset(range(1, len(shown))))]
    summaries = summarise(figures)
    if any(s.throughput_traj_per_h.seeds > 1 for s in summaries):
        lines += ["", *_summary_lines(summaries)]
    return "\n".join(lines) + "\n"


def _telling(figures: Sequence[Figures]) -> Iterator[_Column]:
    """Columns of the table that would otherwise be the same in every row, or empty."""
    if len({f.horizon_s for f in figures}) > 1:
        yield _HORIZON
    for column, outcome in ((_INFEASIBLE, Outcome.INFEASIBLE), (_LIMIT, Outcome.LIMIT)):
        if any(f.outcomes[outcome.value] for f in figures):
            yield column
    if any(f.energy_kwh for f in figures):
        yield _ENERGY


def _title(runs: Sequence[Run]) -> str:
    first, longest_s = runs[0], max(run.figures.horizon_s for run in runs)
    up_to = "up to " if len({run.figures.horizon_s for run in runs}) > 1 else ""
    start = f" from {first.spec.trace_from_s:g} s" if first.spec.trace_from_s else ""
    trace = f", availability of {first.in_force.trace}{start}" if first.in_force.trace else ""
    return f"simulated {up_to}{longest_s / 3600:.2f} h of {first.spec.scenario}{trace}"


_SPREAD = ("sd", "least", "largest")


def _summary_lines(summaries: Sequence[Summary]) -> list[str]:
    first = summaries[0].policy
    head = ["policy", "seeds", "traj/h", *_SPREAD, "mean s", *_SPREAD]
    several = len(summaries) > 1
    if several:
        head += ["Δ traj/h", "sd", "Δ mean s", "sd"]
    rows = [tuple(head)]
    for summary in summaries:
        cells = [summary.policy, str(summary.throughput_traj_per_h.seeds)]
        cells += [*_spread_cells(summary.throughput_traj_per_h), *_spread_cells(summary.makespan_s)]
        if several:
            apart = summary.difference
            cells += _difference_cells(apart.throughput_traj_per_h) if apart else ("", "")
            cells += _difference_cells(apart.makespan_s) if apart else ("", "")
        rows.append(tuple(cells))
    apart_from = f"; Δ: less {first} on the same seed" if several else ""
    title = f"means over the seeds (sd: standard deviation{apart_from})"
    return [title, *columns(rows, indent="", right=frozenset(range(1, len(head))))]


def _spread_cells(spread: Spread) -> tuple[str, ...]:
    return tuple(_one(value) for value in (spread.mean, spread.standard_deviation, spread.least, spread.largest))


def _difference_cells(difference: Difference) -> tuple[str, str]:
    mean = "" if difference.mean is None else f"{difference.mean:+.1f}"
    return mean, _one(difference.standard_deviation)


def study_csv(runs: Sequence[Run]) -> str:
    """One line per run, the same columns whatever happened."""
    written = (*_COLUMNS, _KEEP, _SWITCH, _INFEASIBLE, _LIMIT, _ENERGY, _HORIZON)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.head for column in written])
    writer.writerows([column.cell(run.figures) for column in written] for run in runs)
    return out.getvalue()


def study_warnings(runs: Sequence[Run]) -> list[str]:
    """What a reader of the figures must know: runs in which no configuration was ever allowed."""
    return [
        f"{run.figures.policy}, seed {run.figures.seed}: all {run.figures.decisions} decisions were infeasible: no"
        " configuration met the policy (`pearl solve` says what conflicts)"
        for run in runs
        if run.figures.all_infeasible
    ]


def study_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Plain data for JSON and YAML."""
    first = runs[0]
    return {
        "apiVersion": API_VERSION,
        "kind": "SimulationReport",
        "simulated": True,
        "scenario": first.spec.scenario,
        "trace": first.in_force.trace,
        "horizon_s": max(run.figures.horizon_s for run in runs),
        "inputs": _inputs(runs),
        "results": [_data(run.figures) for run in runs],
        "summary": [_rounded(asdict(summary)) for summary in summarise([run.figures for run in runs])],
    }


def _inputs(runs: Sequence[Run]) -> dict[str, Any]:
    """What the runs were made from, and what was in force by default."""
    spec, common = runs[0].spec, runs[0].in_force
    policies = {run.figures.policy: run.in_force for run in runs}
    return {
        "scenario": common.scenario,
        "scenario_sha256": common.scenario_sha256,
        "trace_from_s": spec.trace_from_s,
        "horizon_s": common.horizon_s,
        "batches": common.batches,
        "sets": dict(spec.sets),
        "forecaster": spec.forecaster,
        "policies": [
            {
                "label": label,
                "policy": in_force.policy,
                "policy_file": in_force.policy_file,
                "policy_sha256": in_force.policy_sha256,
                "tick_s": in_force.tick_s,
            }
            for label, in_force in policies.items()
        ],
    }


def _data(figures: Figures) -> dict[str, Any]:
    data = asdict(figures)
    data["cost"] = data.pop("cost_usd")
    return dict(_rounded(data))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
