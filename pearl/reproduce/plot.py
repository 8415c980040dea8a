"""Published against simulated figures, with their ranges, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from pearl.errors import UsageError
from pearl.files import write_whole
from pearl.report.png import check_png
from pearl.reproduce.rows import Row, Verdict
from pearl.reproduce.targets import Unit

_COLOURS = {Verdict.WITHIN: "tab:green", Verdict.OUTSIDE: "tab:orange", Verdict.WRONG: "tab:red"}
_ROW_INCHES = 0.32
_DRAWN = (Unit.GAIN, Unit.SPEEDUP, Unit.CHANGE)


def check_plot(units: Sequence[Unit], path: Path) -> None:
    """Raise what `write_plot` would of rows in these units, before they are simulated."""
    check_png(path)
    if not set(units) & set(_DRAWN):
        raise UsageError("no gain or speedup among these rows; nothing to draw")


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the speedups (gains as 1 + gain), one line per row, and write a PNG, whole or not at all.

    Raises UsageError where there is nothing to draw or the report extra is missing, InputError where it cannot write.
    """
    check_plot([row.unit for row in rows], path)
    from matplotlib.figure import Figure

    drawn = [row for row in rows if row.unit in _DRAWN]
    figure = Figure(figsize=(9, 1.6 + _ROW_INCHES * len(drawn)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(drawn):
        low, high = _ends(row.published, row.unit)
        axes.plot([low, high], [place, place], color="black", linewidth=7, alpha=0.25, solid_capstyle="butt")
        axes.plot([(low + high) / 2], [place], color="black", marker="|", markersize=9)
        low, high = _ends(row.simulated, row.unit)
        axes.plot([low, high], [place, place], color=_COLOURS[row.verdict], marker="o", markersize=5, linewidth=1.5)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(drawn)), [f"{row.id}{'' if row.held_out else ' (calibrated)'}" for row in drawn])
    axes.invert_yaxis()
    axes.set_xlabel(
        "1 + gain\ngrey: published; points: simulated, green within 15 %, orange outside, red of wrong sign"
    )
    picture = BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    write_whole(path, picture.getvalue())


def _ends(figure: object, unit: Unit) -> tuple[float, float]:
    low, high = figure if isinstance(figure, tuple) else (figure, figure)
    offset = 0.0 if unit is Unit.SPEEDUP else 1.0
    return float(low) + offset, float(high) + offset
