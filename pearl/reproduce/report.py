"""Reproduction and calibration as text and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pearl.report.columns import columns
from pearl.report.schema import API_VERSION
from pearl.reproduce.fit import Fit
from pearl.reproduce.rows import GAINS, Figure, Row, summarise
from pearl.reproduce.simulate import Effort
from pearl.reproduce.targets import Unit

_HEAD = ("row", "published", "simulated", "error", "", "verdict")
_PERCENT = GAINS | {Unit.SHARE, Unit.REGRET}


def rows_text(rows: Sequence[Row], effort: Effort) -> str:
    """A table for a terminal, and the notes below it."""
    cells = [_HEAD, *(_cells(row) for row in rows)]
    lines = [_effort_text(effort), *columns(cells, indent="", right=frozenset({1, 2, 3}))]
    lines += ["", *(f"{row.id}: {row.note}" for row in rows if row.note), "", _summary_text(rows)]
    return "\n".join(lines) + "\n"


def rows_data(rows: Sequence[Row], effort: Effort) -> dict[str, Any]:
    """Plain data for JSON and YAML."""
    summary = summarise(tuple(rows))
    return {
        "apiVersion": API_VERSION,
        "kind": "ReproductionReport",
        "simulated": True,
        "seeds": effort.seeds,
        "horizon_s": effort.horizon_s,
        "summary": {
            "rows": summary.rows,
            "wrong_sign": list(summary.wrong),
            "tied": list(summary.tied),
            "held_out_speedups": summary.speedups,
            "held_out_speedups_within": summary.met,
            "holds": summary.holds,
        },
        "rows": [_row_data(row) for row in rows],
    }


def fit_text(fit: Fit) -> str:
    """A calibration for a terminal."""
    cells = [("target", "wanted", "fitted", "loss")]
    cells += [(met.name, f"{met.target:g}", f"{met.fitted:.4g}", f"{met.loss:.2f}") for met in fit.targets]
    lines = [f"loss {fit.loss:.3f} after {fit.budget} candidates, seed {fit.seed}"]
    lines += columns(cells, indent="", right=frozenset({1, 2, 3}))
    lines += [
        "",
        *(f"{name} = {value if isinstance(value, int) else f'{value:g}'}" for name, value in fit.parameters.items()),
    ]
    return "\n".join(lines) + "\n"


def _row_data(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "section": row.section,
        "model": row.model,
        "setting": row.setting,
        "unit": row.unit.value,
        "published": _plain(row.published),
        "simulated": _plain(row.simulated),
        "relative_error": None if row.relative_error is None else round(row.relative_error, 4),
        "held_out": row.held_out,
        "verdict": row.verdict.value,
        "note": row.note,
    }


def _plain(figure: Figure) -> Any:
    if isinstance(figure, tuple):
        return [round(value, 4) for value in figure]
    return figure if isinstance(figure, str) else round(figure, 4)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.id,
        _shown(row.published, row.unit),
        _shown(row.simulated, row.unit),
        "" if row.relative_error is None else f"{row.relative_error:+.1%}",
        "held out" if row.held_out else "calibrated",
        row.verdict.value.replace("_", " "),
    )


def _shown(figure: Figure, unit: Unit) -> str:
    if isinstance(figure, str):
        return figure
    if isinstance(figure, tuple):
        return f"{_number(figure[0], unit)} to {_number(figure[1], unit)}"
    return _number(figure, unit)


def _number(value: float, unit: Unit) -> str:
    if unit in _PERCENT:
        signed = "+" if unit in GAINS else ""
        return f"{value:{signed}.1%}"
    return f"{value:.2f}" if unit is Unit.SPEEDUP else f"{value:.4g}"


def _effort_text(effort: Effort) -> str:
    return f"simulated: {effort.seeds} seed(s), runs of {effort.horizon_s / 3600:.2g} h"


def _summary_text(rows: Sequence[Row]) -> str:
    summary = summarise(tuple(rows))
    faults = [f"wrong sign or order in {', '.join(summary.wrong)}"] if summary.wrong else []
    faults += [f"order not shown in {', '.join(summary.tied)}, a tie"] if summary.tied else []
    orders = "; ".join(faults) or "every sign and order right"
    return f"{summary.rows} rows; {orders}; held-out speedups within 15%: {summary.met} of {summary.speedups}"
