"""The timeline as a PNG, drawn with matplotlib (extra `report`), which is imported only here and only when drawing."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pearl.core.cluster import Role, Zone
from pearl.core.decision import Outcome
from pearl.files import write_whole
from pearl.report.png import check_matplotlib
from pearl.report.timeline_data import PHASES, Bar, Curve, DecisionMark, MarkKind, Phase, Timeline
from pearl.report.timeline_layout import (
    ALARM_COLOUR,
    BATCH_COLOUR,
    LABEL_ROWS,
    ROLE_COLOURS,
    TRAINING_COLOUR,
    ZONE_COLOURS,
    Lane,
    Stack,
    caption,
    heights_of,
    lanes_of,
    levels_of,
    stacks_of,
    switch_labels,
    time_axis,
)

WIDTH_IN = 10.0
DPI = 200
LANE_IN = 0.13
LEAST_LANES = 5
"""A zone of fewer lanes is as high as this, so that its name has room."""
STACK_IN = 1.5
"""Height of one zone's stack."""
EVENTS_IN = 1.15
AVAILABILITY_IN = 1.1
SMALL = 7
"""Font size, in points, of everything but the title."""
CHARACTER_SHARE = 0.0068
"""Width of a character of that size, as a share of the axes' width."""
ZONE_DASHES = {Zone.RESERVED: "solid", Zone.PREEMPTIBLE: "dashed", Zone.OVERLAP: (0, (1, 1))}


def write_png(timeline: Timeline, path: Path, *, title: str) -> None:
    """Draw the picture into a file, whole or not at all.

    Each worker has a lane; where these would be too many to read, each zone is a stack of GPUs by phase. Raises
    UsageError where matplotlib is missing, and InputError where the file cannot be written.
    """
    write_whole(path, png_bytes(timeline, title=title))


def png_bytes(timeline: Timeline, *, title: str) -> bytes:
    """The picture as the bytes of a PNG file; raises UsageError where matplotlib is missing."""
    check_matplotlib(hint="or write .html")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stacks = stacks_of(timeline)
    panels = _panels(timeline, stacks)
    figure = Figure(figsize=(WIDTH_IN, sum(panel.height_in for panel in panels) + 0.2 * len(panels) + 1.0), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, height_ratios=[panel.height_in for panel in panels]
    )[:, 0]
    for panel, ax in zip(panels, axes, strict=True):
        _dress(ax)
        panel.draw(ax)
    _finish(figure, list(axes), timeline, title=title, stacks=stacks)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """One of the pictures that share the time axis."""

    height_in: float
    draw: Callable[[Any], None]


def _panels(timeline: Timeline, stacks: Mapping[Zone, Stack]) -> list[_Panel]:
    panels = [
        _Panel(height_in=EVENTS_IN, draw=lambda ax: _draw_events(ax, timeline)),
        _Panel(height_in=AVAILABILITY_IN, draw=lambda ax: _draw_availability(ax, timeline)),
    ]
    for zone, share in heights_of(stacks).items():
        panels.append(_Panel(height_in=STACK_IN * share, draw=partial(_draw_stack, zone=zone, stack=stacks[zone])))
    for zone in () if stacks else timeline.zones:
        own = [lane for lane in lanes_of(timeline) if lane.zone is zone]
        height_in = max(LEAST_LANES, len(own)) * LANE_IN
        panels.append(_Panel(height_in=height_in, draw=partial(_draw_lanes, zone=zone, lanes=own)))
    return panels


def _dress(ax: Any) -> None:
    ax.tick_params(labelsize=SMALL, length=2)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(axis="x", color="#E5E5E5", linewidth=0.5)
    ax.set_axisbelow(True)


def _legend_above(ax: Any) -> None:
    """One line over the panel's upper right corner, of whatever has a label."""
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        anchor = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97), "borderaxespad": 0}
        ax.legend(fontsize=SMALL - 1, frameon=False, ncols=len(handles), handlelength=1.6, **anchor)


def _finish(figure: Any, axes: Sequence[Any], timeline: Timeline, *, title: str, stacks: Mapping[Zone, Stack]) -> None:
    axis = time_axis(timeline.horizon_s)
    ticks = axis.ticks(timeline.horizon_s)
    last = axes[-1]
    last.set_xlim(0, timeline.horizon_s)
    last.set_xticks([at_s for at_s, _ in ticks], [label for _, label in ticks])
    last.set_xlabel(f"simulated time ({axis.unit})", fontsize=SMALL + 1)
    for ax in axes:
        ax.yaxis.set_label_coords(-0.075, 0.5)
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(left=0.1, right=0.985, top=1 - 0.75 / height, bottom=0.45 / height, hspace=0.22)
    figure.text(0.1, 1 - 0.1 / height, title, fontsize=11, weight="bold", va="top")
    figure.text(0.1, 1 - 0.32 / height, caption(timeline, stacks.values()), fontsize=SMALL, va="top")
    _legend(figure, timeline, height)


def _legend(figure: Any, timeline: Timeline, height: float) -> None:
    from matplotlib.patches import Patch

    used = {band.phase for band in timeline.bands}
    moving = any(phase.transitioning for phase in used)
    patches = [
        Patch(facecolor=ROLE_COLOURS[role], edgecolor="none", label=role.value)
        for role in Role
        if any(phase.role is role for phase in used)
    ]
    if moving:
        patches.append(
            Patch(facecolor="white", edgecolor="black", hatch="//////", linewidth=0.3, label="transitioning")
        )
    figure.legend(
        handles=patches,
        loc="upper right",
        bbox_to_anchor=(0.99, 1 - 0.06 / height),
        ncols=len(patches),
        fontsize=SMALL,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
    )


# -- batches, training and decisions ---------------------------------------------------------------------------------

_ROWS = ("training", "batches", "decisions")


def _draw_events(ax: Any, timeline: Timeline) -> None:
    _draw_bars(ax, timeline.trainings, row=0, colour=TRAINING_COLOUR, horizon_s=timeline.horizon_s)
    _draw_bars(ax, timeline.batches, row=1, colour=BATCH_COLOUR, horizon_s=timeline.horizon_s)
    _draw_decisions(ax, timeline.decisions)
    _label_switches(ax, timeline)
    rolled_back = [mark.at_s for mark in timeline.marks if mark.kind is MarkKind.ROLLED_BACK]
    if rolled_back:
        heights = [1.72] * len(rolled_back)
        ax.plot(rolled_back, heights, "x", color=ALARM_COLOUR, markersize=4, label=MarkKind.ROLLED_BACK)
    _legend_above(ax)
    ax.set_ylim(-0.5, 2.3 + 0.55 * LABEL_ROWS)
    ax.set_yticks(range(len(_ROWS)), _ROWS)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _draw_bars(ax: Any, bars: Sequence[Bar], *, row: int, colour: str, horizon_s: float) -> None:
    """Bars of alternating strength, numbered where the number has room."""
    for parity, alpha in ((0, 1.0), (1, 0.6)):
        spans = [(bar.begin_s, bar.end_s - bar.begin_s) for bar in bars if bar.index % 2 == parity]
        ax.broken_barh(spans, (row - 0.35, 0.7), facecolor=colour, alpha=alpha, linewidth=0)
    for bar in bars:
        text = str(bar.index)
        if (bar.end_s - bar.begin_s) / horizon_s > CHARACTER_SHARE * (len(text) + 0.3):
            middle = (bar.begin_s + bar.end_s) / 2
            ax.text(middle, row, text, ha="center", va="center_baseline", fontsize=SMALL - 2)


def _draw_decisions(ax: Any, decisions: Sequence[DecisionMark]) -> None:
    shapes: dict[Outcome, dict[str, Any]] = {
        Outcome.KEEP: {"marker": "|", "color": "#888888", "markersize": 4},
        Outcome.SWITCH: {"marker": "v", "color": "black", "markersize": 4},
        Outcome.INFEASIBLE: {"marker": "X", "color": ALARM_COLOUR, "markersize": 5},
        Outcome.LIMIT: {"marker": "D", "color": ALARM_COLOUR, "markersize": 4},
    }
    for outcome, shape in shapes.items():
        times = [mark.at_s for mark in decisions if mark.outcome is outcome]
        if times:
            label = f"{outcome.value} ({len(times)})"
            ax.plot(times, [2.0] * len(times), linestyle="none", clip_on=False, label=label, zorder=3, **shape)


def _label_switches(ax: Any, timeline: Timeline) -> None:
    for label in switch_labels(timeline, character=CHARACTER_SHARE):
        at_s, height = label.mark.at_s, 2.45 + 0.55 * label.row
        ax.plot([at_s, at_s], [2.0, height], color="#BBBBBB", linewidth=0.4, zorder=1)
        text = label.mark.configuration
        ax.text(label.spot * timeline.horizon_s, height, text, fontsize=SMALL - 1, va="bottom", ha="left")


# -- availability ----------------------------------------------------------------------------------------------------


def _draw_availability(ax: Any, timeline: Timeline) -> None:
    for zone in timeline.zones:
        colour = ZONE_COLOURS[zone]
        _draw_curve(ax, timeline.held(zone), timeline.horizon_s, color=colour, linestyle=ZONE_DASHES[zone], label=zone)
    if Zone.OVERLAP in timeline.zones:
        lent = timeline.lent(Zone.OVERLAP)
        colour = ZONE_COLOURS[Zone.OVERLAP]
        times, levels = _steps(lent, timeline.horizon_s)
        ax.fill_between(times, levels, step="post", color=colour, alpha=0.2, linewidth=0, label="overlap, borrowed")
    notices = [mark.at_s for mark in timeline.marks if mark.kind is MarkKind.RECLAIM_NOTICE]
    if notices:
        held = timeline.held(Zone.PREEMPTIBLE)
        levels = [held.at(at_s) for at_s in notices]
        ax.plot(notices, levels, "v", color=ZONE_COLOURS[Zone.PREEMPTIBLE], markersize=3, label=MarkKind.RECLAIM_NOTICE)
    ax.set_ylim(bottom=0)
    ax.margins(y=0.15)
    ax.yaxis.get_major_locator().set_params(integer=True, nbins=5)
    ax.set_ylabel("GPUs held", fontsize=SMALL)
    _legend_above(ax)


def _draw_curve(ax: Any, curve: Curve, horizon_s: float, **style: Any) -> None:
    times, levels = _steps(curve, horizon_s)
    ax.step(times, levels, where="post", linewidth=1.2, **style)


def _steps(curve: Curve, horizon_s: float) -> tuple[list[float], list[int]]:
    """Matching times and levels, the last level twice, as matplotlib's step lines want them."""
    edges, levels = levels_of(curve, horizon_s)
    return edges, [*levels, levels[-1]]


# -- roles -----------------------------------------------------------------------------------------------------------


def _fill(phase: Phase) -> dict[str, Any]:
    colour = ROLE_COLOURS[phase.role]
    if not phase.transitioning:
        return {"facecolor": colour, "edgecolor": "none", "linewidth": 0}
    edge = "#8A8A8A" if phase.role is Role.INACTIVE else colour
    return {"facecolor": "white", "edgecolor": edge, "linewidth": 0, "hatch": "//////"}


def _draw_lanes(ax: Any, *, zone: Zone, lanes: Sequence[Lane]) -> None:
    from matplotlib.collections import PolyCollection

    boxes: dict[Phase, list[list[tuple[float, float]]]] = {phase: [] for phase in PHASES}
    for row, lane in enumerate(lanes):
        low, high = row - 0.42, row + 0.42
        for life in lane.workers:
            for span in life.intervals:
                corners = [(span.begin_s, low), (span.end_s, low), (span.end_s, high), (span.begin_s, high)]
                boxes[span.phase].append(corners)
    for phase, verts in boxes.items():
        if verts:
            ax.add_collection(PolyCollection(verts, **_fill(phase)))
    ax.set_ylim(max(LEAST_LANES, len(lanes)) - 0.4, -0.6)
    ax.set_yticks(range(len(lanes)), [lane.label for lane in lanes], fontsize=SMALL - 2)
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel(zone.value, fontsize=SMALL)


def _draw_stack(ax: Any, *, zone: Zone, stack: Stack) -> None:
    lower = [0.0] * len(stack.edges_s)
    for phase, levels in stack.layers:
        upper = [below + level for below, level in zip(lower, (*levels, levels[-1]), strict=True)]
        ax.fill_between(stack.edges_s, lower, upper, step="post", **_fill(phase))
        lower = upper
    ax.set_ylim(bottom=0)
    ax.yaxis.get_major_locator().set_params(integer=True, nbins=5)
    ax.set_ylabel(f"{zone.value}\n(GPUs)", fontsize=SMALL)
