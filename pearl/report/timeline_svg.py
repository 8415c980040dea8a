"""The timeline as inline SVG; colours come from the page's style sheet, and every shape says in its title what it is.

Titles are what a browser shows on hover without any script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pearl.core.cluster import Role, Zone
from pearl.core.decision import Outcome
from pearl.report.timeline_data import Bar, Curve, DecisionMark, Interval, Mark, MarkKind, Phase, Timeline, WorkerLife
from pearl.report.timeline_layout import (
    LABEL_ROWS,
    Lane,
    Stack,
    SwitchLabel,
    clock,
    heights_of,
    lanes_of,
    levels_of,
    stacks_of,
    switch_labels,
    time_axis,
)

WIDTH, LEFT, RIGHT = 1200.0, 110.0, 16.0
"""Of the drawing, of the labels at its left and of the margin at its right, in user units (pixels at full size)."""
PLOT = WIDTH - LEFT - RIGHT
LANE, STACK, AVAILABILITY = 15.0, 150.0, 120.0
"""Heights of one lane, of a zone's stack and of the curves."""
LEAST_LANES = 5
"""A zone of fewer lanes is as high as this, so that its name has room."""
GAP = 22.0
CHARACTER = 6.3
"""Width of a character of the labels: 11 px in any common sans-serif face."""
LABEL_HEIGHT = 13.0
LEAST_WIDTH = 0.4
"""Shapes are drawn at least this wide, so that a step of a second shows."""


def number(value: float) -> str:
    """A coordinate, to a hundredth, in the shortest form."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def svg_text(timeline: Timeline, *, title: str) -> str:
    """The whole drawing as one `svg` element."""
    drawing = _Drawing(horizon_s=timeline.horizon_s)
    drawing.panel(_events(drawing, timeline))
    drawing.panel(_availability(drawing, timeline))
    stacks = stacks_of(timeline)
    for zone, share in heights_of(stacks).items():
        height = STACK * share
        drawing.panel(_Panel(height=height, shapes=_stack_shapes(drawing, zone, stacks[zone], height)))
    for zone in () if stacks else timeline.zones:
        drawing.panel(_lanes(drawing, zone, [lane for lane in lanes_of(timeline) if lane.zone is zone]))
    return drawing.finish(title)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Shapes with y counted from the panel's top, and its height."""

    height: float
    shapes: Iterable[str]


class _Drawing:
    """Stacks panels over one time axis."""

    def __init__(self, *, horizon_s: float) -> None:
        self.horizon_s = horizon_s
        self._y = 6.0
        self._parts: list[str] = []

    def x(self, at_s: float) -> float:
        """Where a time is."""
        return LEFT + at_s / self.horizon_s * PLOT

    def panel(self, panel: _Panel) -> None:
        grid = "".join(f"M{number(self.x(at_s))} 0V{number(panel.height)}" for at_s, _ in self._ticks())
        self._parts.append(f'<g transform="translate(0 {number(self._y)})"><path class="grid" d="{grid}"/>')
        self._parts.extend(panel.shapes)
        self._parts.append(f'<path class="axis" d="M{number(LEFT)} {number(panel.height)}h{number(PLOT)}"/></g>')
        self._y += panel.height + GAP

    def finish(self, title: str) -> str:
        y = self._y - GAP
        ticks = (
            f'<text class="tick" x="{number(self.x(at_s))}" y="{number(y + 15)}">{label}</text>'
            for at_s, label in self._ticks()
        )
        unit = time_axis(self.horizon_s).unit
        name = f'<text class="tick" x="{number(LEFT + PLOT / 2)}" y="{number(y + 33)}">simulated time ({unit})</text>'
        height = number(y + 42)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(WIDTH)} {height}" role="img" '
            f'aria-label="{escape(title)}">{_patterns()}'
        )
        return "\n".join([head, *self._parts, *ticks, name, "</svg>"])

    def _ticks(self) -> list[tuple[float, str]]:
        return time_axis(self.horizon_s).ticks(self.horizon_s)


def _patterns() -> str:
    return (
        "<defs>"
        + "".join(
            f'<pattern id="to-{role}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<rect class="under" width="5" height="5"/><rect class="{role}" width="2.2" height="5"/></pattern>'
            for role in Role
        )
        + "</defs>"
    )


def _fill(phase: Phase) -> str:
    return f"to-{phase.role}" if phase.transitioning else phase.role.value


def _rect(x: float, y: float, width: float, height: float, *, kind: str, tip: str) -> str:
    shape = f'x="{number(x)}" y="{number(y)}" width="{number(max(width, LEAST_WIDTH))}" height="{number(height)}"'
    return f'<rect class="{kind}" {shape}><title>{escape(tip)}</title></rect>'


def _shape(path: str, *, kind: str, tip: str) -> str:
    return f'<path class="{kind}" d="{path}"><title>{escape(tip)}</title></path>'


def _mark_tip(mark: Mark) -> str:
    return f"{clock(mark.at_s)}: {mark.kind}: {', '.join(mark.workers)}"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{number(x)}" y="{number(y)}">{escape(text)}</text>'


def _name(height: float, text: str) -> str:
    """The panel's name, along its left side."""
    y = number(height / 2)
    return f'<text class="name" transform="translate(11 {y}) rotate(-90)">{escape(text)}</text>'


def _span(begin_s: float, end_s: float) -> str:
    return f"{clock(begin_s)} to {clock(end_s)} ({end_s - begin_s:.1f} s)"


# -- batches, training and decisions ---------------------------------------------------------------------------------

DECISIONS_Y = LABEL_HEIGHT * LABEL_ROWS + 8
BATCHES_Y = DECISIONS_Y + 16
TRAINING_Y = BATCHES_Y + 22
BAR = 18.0


def _events(drawing: _Drawing, timeline: Timeline) -> _Panel:
    return _Panel(height=TRAINING_Y + BAR + 4, shapes=_event_shapes(drawing, timeline))


def _event_shapes(drawing: _Drawing, timeline: Timeline) -> Iterator[str]:
    yield _text(LEFT - 8, DECISIONS_Y + 4, "decisions", "row")
    yield _text(LEFT - 8, BATCHES_Y + 13, "batches", "row")
    yield _text(LEFT - 8, TRAINING_Y + 13, "training", "row")
    yield from _bars(drawing, timeline.batches, y=BATCHES_Y, kind="batch", name="batch")
    yield from _bars(drawing, timeline.trainings, y=TRAINING_Y, kind="training", name="training on batch")
    for mark in timeline.marks:
        if mark.kind is MarkKind.ROLLED_BACK:
            place = f"M{number(drawing.x(mark.at_s))} {number(DECISIONS_Y + 9)}"
            yield _shape(f"{place}m-3 -3l6 6m0 -6l-6 6", kind="alarm", tip=_mark_tip(mark))
    yield from _decisions(drawing, timeline)


def _bars(drawing: _Drawing, bars: Sequence[Bar], *, y: float, kind: str, name: str) -> Iterator[str]:
    for bar in bars:
        x, width = drawing.x(bar.begin_s), drawing.x(bar.end_s) - drawing.x(bar.begin_s)
        cut = "" if bar.ended else ", still under way"
        tip = f"{name} {bar.index}: {_span(bar.begin_s, bar.end_s)}{cut}"
        yield _rect(x, y, width, BAR, kind=f"{kind} {'odd' if bar.index % 2 else 'even'}", tip=tip)
        if width > CHARACTER * (len(str(bar.index)) + 0.5):
            yield _text(x + width / 2, y + 13, str(bar.index), "index")


def decision_tip(mark: DecisionMark) -> str:
    """A decision in a line."""
    predicted = "" if mark.predicted_s is None else f", predicted makespan {mark.predicted_s:.1f} s"
    return f"{clock(mark.at_s)}, {mark.event}: {mark.outcome} {mark.configuration}{predicted}"


def _decisions(drawing: _Drawing, timeline: Timeline) -> Iterator[str]:
    """Markers that lead to their row of the table; switches come last, so that they lie on top."""
    labels = {label.index: _label(drawing, label) for label in switch_labels(timeline, character=CHARACTER / PLOT)}
    marks = sorted(enumerate(timeline.decisions), key=lambda pair: pair[1].outcome is Outcome.SWITCH)
    return (_decision(drawing, index, mark, labels.get(index, "")) for index, mark in marks)


def _label(drawing: _Drawing, label: SwitchLabel) -> str:
    y = DECISIONS_Y - 9 - LABEL_HEIGHT * label.row
    stem = f'<path class="stem" d="M{number(drawing.x(label.mark.at_s))} {number(DECISIONS_Y)}V{number(y)}"/>'
    return stem + _text(LEFT + label.spot * PLOT + 2, y, label.mark.configuration, "configuration")


def _decision(drawing: _Drawing, index: int, mark: DecisionMark, label: str) -> str:
    shapes = {
        Outcome.KEEP: "m0 -4v8",
        Outcome.SWITCH: "m-4.5 -4h9l-4.5 8z",
        Outcome.INFEASIBLE: "m-4 -4l8 8m0 -8l-8 8",
        Outcome.LIMIT: "m0 -5l5 5l-5 5l-5 -5z",
    }
    x, y = drawing.x(mark.at_s), DECISIONS_Y
    shape = f'<path class="{mark.outcome}" d="M{number(x)} {number(y)}{shapes[mark.outcome]}"/>'
    target = f'<rect class="target" x="{number(x - 4)}" y="{number(y - 7)}" width="8" height="14"/>'
    tip = f"<title>{escape(decision_tip(mark))}</title>"
    return f'<a class="decision" href="#decision-{index}">{tip}{label}{shape}{target}</a>'


# -- availability ----------------------------------------------------------------------------------------------------


def _availability(drawing: _Drawing, timeline: Timeline) -> _Panel:
    return _Panel(height=AVAILABILITY, shapes=_availability_shapes(drawing, timeline))


def _availability_shapes(drawing: _Drawing, timeline: Timeline) -> Iterator[str]:
    held = {zone: timeline.held(zone) for zone in timeline.zones}
    top = max((level for curve in held.values() for level in curve.gpus), default=0)
    scale = _Scale(height=AVAILABILITY, top=top)
    yield _name(AVAILABILITY, "GPUs held")
    yield from scale.ticks()
    if Zone.OVERLAP in held:
        area = f"{_path(drawing, timeline.lent(Zone.OVERLAP), scale)}V{number(AVAILABILITY)}H{number(LEFT)}z"
        yield _shape(area, kind="lent", tip="overlap GPUs, borrowed")
    for zone, curve in held.items():
        yield _shape(_path(drawing, curve, scale), kind=f"held {zone}", tip=f"{zone} GPUs")
    for mark in timeline.marks:
        if mark.kind is MarkKind.RECLAIM_NOTICE and Zone.PREEMPTIBLE in held:
            x, y = drawing.x(mark.at_s), scale.y(held[Zone.PREEMPTIBLE].at(mark.at_s))
            yield _shape(f"M{number(x)} {number(y)}m-4 -7h8l-4 7z", kind="notice", tip=_mark_tip(mark))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """A vertical axis from 0 to a little over `top`, over the panel's height."""

    height: float
    top: float

    def y(self, value: float) -> float:
        return self.height * (1 - value / (1.12 * max(self.top, 1)))

    def ticks(self) -> Iterator[str]:
        step = next(s * 10**p for p in range(12) for s in (1, 2, 5) if 5 * s * 10**p >= self.top)
        for value in range(0, int(self.top) + 1, step):
            y = self.y(value)
            yield f'<path class="grid" d="M{number(LEFT)} {number(y)}h{number(PLOT)}"/>'
            yield _text(LEFT - 8, y + 4, str(value), "row")


def _path(drawing: _Drawing, curve: Curve, scale: _Scale) -> str:
    times, levels = levels_of(curve, drawing.horizon_s)
    return _steps(drawing, times, [scale.y(level) for level in levels])


def _steps(drawing: _Drawing, times: Sequence[float], ys: Sequence[float]) -> str:
    """A step line: `ys[i]` from `times[i]` to the next; `times` has one entry more."""
    steps = (f"V{number(y)}H{number(drawing.x(end))}" for y, end in zip(ys[1:], times[2:], strict=True))
    return f"M{number(drawing.x(times[0]))} {number(ys[0])}H{number(drawing.x(times[1]))}" + "".join(steps)


# -- roles -----------------------------------------------------------------------------------------------------------


def _lanes(drawing: _Drawing, zone: Zone, lanes: Sequence[Lane]) -> _Panel:
    height = LANE * max(LEAST_LANES, len(lanes))
    return _Panel(height=height, shapes=_lane_shapes(drawing, zone, lanes, height))


def _lane_shapes(drawing: _Drawing, zone: Zone, lanes: Sequence[Lane], height: float) -> Iterator[str]:
    yield _name(height, zone.value)
    for row, lane in enumerate(lanes):
        yield _text(LEFT - 8, LANE * row + 11, lane.label, "row")
        for life in lane.workers:
            for interval in life.intervals:
                yield _interval(drawing, life, interval, LANE * row + 1)


def _interval(drawing: _Drawing, life: WorkerLife, interval: Interval, y: float) -> str:
    x = drawing.x(interval.begin_s)
    tip = f"{life.worker}: {interval.phase}, {_span(interval.begin_s, interval.end_s)}"
    width = drawing.x(interval.end_s) - x
    return _rect(x, y, width, LANE - 2, kind=_fill(interval.phase), tip=tip)


def _stack_shapes(drawing: _Drawing, zone: Zone, stack: Stack, height: float) -> Iterator[str]:
    scale = _Scale(height=height, top=stack.peak)
    yield _name(height, f"{zone} (GPUs)")
    yield from scale.ticks()
    lower = [0.0] * (len(stack.edges_s) - 1)
    for phase, levels in stack.layers:
        upper = [below + level for below, level in zip(lower, levels, strict=True)]
        there = _steps(drawing, stack.edges_s, [scale.y(level) for level in upper])
        back = _back(drawing, stack.edges_s, [scale.y(level) for level in lower])
        yield _shape(f"{there}{back}z", kind=_fill(phase), tip=f"{zone}: {phase}")
        lower = upper
    box = f'x="{number(LEFT)}" y="0" width="{number(PLOT)}" height="{number(height)}"'
    yield f'<rect class="target" data-zone="{zone}" {box}/>'


def _back(drawing: _Drawing, edges_s: Sequence[float], ys: Sequence[float]) -> str:
    """The lower side of a band, from its end to its begin."""
    pairs = zip(reversed(ys), reversed(edges_s[:-1]), strict=True)
    return "".join(f"V{number(y)}H{number(drawing.x(begin))}" for y, begin in pairs)
