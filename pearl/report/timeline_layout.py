"""What the two pictures share: lanes, stacks, labels that do not collide, the time axis, and colours.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which people with any common colour vision tell
apart; hatching and line styles say the same once more.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from pearl.core.cluster import Role, Zone
from pearl.core.decision import Outcome
from pearl.core.grouping import natural_key
from pearl.report.timeline_data import PHASES, Band, Curve, DecisionMark, Phase, Timeline, WorkerLife

MOST_LANES = 96
"""With more lanes than this a lane is too thin to read: GPUs are then shown by the number in each phase."""
MOST_STEPS = 2000
"""Changes of a stack past which it is averaged over bins: no picture has more columns of pixels."""
BINS = 1000
"""Bins of an averaged stack."""
NAME_LENGTH = 13
"""Longer names of workers are cut at the left, where they differ least, to fit beside the lane."""
LEAST_HEIGHT = 0.4
"""Height of a small zone's stack, as a share of the largest zone's."""
LABEL_ROWS = 4
"""Rows for the labels of switches; a label for which all are taken is left out, its marker stays."""

ROLE_COLOURS = {
    Role.COLOCATED: "#009E73",
    Role.PREFILL: "#E69F00",
    Role.DECODE: "#0072B2",
    Role.INACTIVE: "#D4D4D4",
}
ZONE_COLOURS = {Zone.RESERVED: "#555555", Zone.PREEMPTIBLE: "#CC79A7", Zone.OVERLAP: "#D55E00"}
BATCH_COLOUR = "#56B4E9"
TRAINING_COLOUR = "#8C6BB1"
ALARM_COLOUR = "#D55E00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row of the picture: workers of a zone that follow each other on it."""

    zone: Zone
    workers: tuple[WorkerLife, ...]

    @property
    def label(self) -> str:
        """The first worker, `…` where others follow it that are not its returns, and its GPUs where more than one."""
        first = home_of(self.workers[0].worker)
        mixed = any(home_of(life.worker) != first for life in self.workers)
        gpus = self.workers[0].gpus
        shown = first if len(first) <= NAME_LENGTH else f"…{first[1 - NAME_LENGTH :]}"
        return f"{shown}{' …' if mixed else ''}{f' ×{gpus}' if gpus > 1 else ''}"


def home_of(worker: str) -> str:
    """The name without the count of arrivals: `node+2/0` is the second return of `node/0`."""
    return re.sub(r"\+\d+(?=/\d+$)", "", worker)


def lanes_of(timeline: Timeline) -> tuple[Lane, ...]:
    """Workers on as few lanes as their overlaps allow, zone by zone in natural order.

    A worker takes the free lane that its predecessor of the same name left, else any free one.
    """
    lanes = []
    for zone in timeline.zones:
        lives = [life for life in timeline.workers if life.zone is zone]
        lanes += [Lane(zone=zone, workers=tuple(row)) for row in _packed(lives)]
    return tuple(lanes)


def stacks_of(timeline: Timeline) -> dict[Zone, Stack]:
    """The stack of every zone where lanes would be too many to read; else none."""
    if len(lanes_of(timeline)) <= MOST_LANES:
        return {}
    return {zone: stack_of(timeline, zone) for zone in timeline.zones}


def _packed(lives: Iterable[WorkerLife]) -> list[list[WorkerLife]]:
    rows: list[list[WorkerLife]] = []
    for life in lives:
        free = [row for row in rows if row[-1].end_s <= life.begin_s]
        same = [row for row in free if home_of(row[-1].worker) == home_of(life.worker)]
        row = next(iter(same or free), None)
        if row is None:
            rows.append([life])
        else:
            row.append(life)
    return sorted(rows, key=lambda row: natural_key(row[0].worker))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """GPUs of a zone by phase over time: layer after layer, each a level per step between `edges_s`."""

    edges_s: tuple[float, ...]
    layers: tuple[tuple[Phase, tuple[float, ...]], ...]
    bin_s: float | None
    """Length of the bins over which levels were averaged; None where they are exact."""

    @property
    def peak(self) -> float:
        """Most GPUs at a time."""
        return max((sum(levels) for levels in zip(*(levels for _, levels in self.layers), strict=True)), default=0.0)


def heights_of(stacks: Mapping[Zone, Stack]) -> dict[Zone, float]:
    """Relative heights, 1 for the zone with most GPUs: small zones take less room, and never too little to read."""
    most = max((stack.peak for stack in stacks.values()), default=0.0)
    return {zone: max(LEAST_HEIGHT, stack.peak / most) for zone, stack in stacks.items()}


def stack_of(timeline: Timeline, zone: Zone) -> Stack:
    """The stack of one zone, averaged over equal bins where it changes more often than a picture can show."""
    curves = [
        (phase, timeline.bands[band]) for phase in PHASES if (band := Band(zone=zone, phase=phase)) in timeline.bands
    ]
    end_s = timeline.horizon_s
    changes = sorted({0.0, *(at_s for _, curve in curves for at_s in curve.at_s if at_s < end_s)})
    if len(changes) <= MOST_STEPS:
        exact = tuple((phase, tuple(float(curve.at(at_s)) for at_s in changes)) for phase, curve in curves)
        return Stack(edges_s=(*changes, end_s), layers=exact, bin_s=None)
    edges = tuple(end_s * index / BINS for index in range(BINS + 1))
    averaged = tuple((phase, means(curve, edges)) for phase, curve in curves)
    return Stack(edges_s=edges, layers=averaged, bin_s=end_s / BINS)


def means(curve: Curve, edges_s: Sequence[float]) -> tuple[float, ...]:
    """The mean over time of a step curve, between each edge and the next."""
    spans = zip(curve.at_s, curve.at_s[1:], curve.gpus, strict=False)
    areas = list(accumulate(((end - begin) * gpus for begin, end, gpus in spans), initial=0.0))

    def area(time_s: float) -> float:
        index = bisect_right(curve.at_s, time_s) - 1
        return areas[index] + (time_s - curve.at_s[index]) * curve.gpus[index] if index >= 0 else 0.0

    return tuple((area(end) - area(begin)) / (end - begin) for begin, end in pairwise(edges_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLabel:
    """Where the configuration of a switch is written: lengths as shares of the plot's width."""

    index: int
    """Of the decision in the timeline."""
    mark: DecisionMark
    spot: float
    """Left end of the text."""
    width: float
    row: int


def switch_labels(timeline: Timeline, *, character: float) -> list[SwitchLabel]:
    """Labels of the switches, where there is room; `character` is a character's width as a share of the plot's.

    A switch to the configuration of the one before gets none if the two labels would collide: the one says it.
    """
    wanted: list[SwitchLabel] = []
    for index, mark in enumerate(timeline.decisions):
        width = character * (len(mark.configuration) + 1)
        label = SwitchLabel(
            index=index, mark=mark, spot=min(mark.at_s / timeline.horizon_s, 1 - width), width=width, row=0
        )
        if mark.outcome is Outcome.SWITCH and not (wanted and _said(wanted[-1], label)):
            wanted.append(label)
    rows = place_labels([label.spot for label in wanted], [label.width for label in wanted])
    return [replace(label, row=row) for label, row in zip(wanted, rows, strict=True) if row is not None]


def _said(before: SwitchLabel, label: SwitchLabel) -> bool:
    same = before.mark.configuration == label.mark.configuration
    return same and label.spot < before.spot + before.width


def place_labels(spots: Sequence[float], widths: Sequence[float], *, rows: int = LABEL_ROWS) -> list[int | None]:
    """The row of each label, or None where it has no room: labels on one row do not overlap.

    `spots` are the left ends, ascending, and `widths` the lengths, in one unit.
    """
    free_from = [-math.inf] * rows
    placed: list[int | None] = []
    for spot, width in zip(spots, widths, strict=True):
        row = next((row for row, end in enumerate(free_from) if end <= spot), None)
        if row is not None:
            free_from[row] = spot + width
        placed.append(row)
    return placed


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """Unit and ticks of the time axis: at most about ten ticks, at round numbers."""

    unit: str
    unit_s: float
    step: float
    """Distance of ticks, in the unit."""

    def ticks(self, horizon_s: float) -> list[tuple[float, str]]:
        """Times in seconds, with their labels."""
        count = math.floor(horizon_s / self.unit_s / self.step + 1e-9)
        return [(index * self.step * self.unit_s, f"{index * self.step:g}") for index in range(count + 1)]


def time_axis(horizon_s: float) -> TimeAxis:
    """Seconds up to five minutes, minutes up to four hours, hours up to four days, days past that."""
    limits = ((300.0, "s", 1.0), (4 * 3600.0, "min", 60.0), (4 * 86_400.0, "h", 3600.0), (math.inf, "days", 86_400.0))
    unit, unit_s = next((unit, unit_s) for limit_s, unit, unit_s in limits if horizon_s <= limit_s)
    least = horizon_s / unit_s / 12
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return TimeAxis(unit=unit, unit_s=unit_s, step=step)


def clock(time_s: float) -> str:
    """A time as people read it, to the second: `1:02:03`."""
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def caption(timeline: Timeline, stacks: Iterable[Stack]) -> str:
    """What the picture holds, in a line."""
    bin_s = next((stack.bin_s for stack in stacks if stack.bin_s is not None), None)
    axis = time_axis(timeline.horizon_s)
    switches = sum(mark.outcome is Outcome.SWITCH for mark in timeline.decisions)
    parts = [
        f"{timeline.horizon_s / axis.unit_s:.4g} {axis.unit} of simulated time",
        _many(len(timeline.workers), "worker", "workers"),
        _many(sum(bar.ended for bar in timeline.batches), "whole batch", "whole batches"),
        f"{_many(len(timeline.decisions), 'decision', 'decisions')}, {_many(switches, 'switch', 'switches')}",
        *([f"levels averaged over {bin_s:.3g} s"] if bin_s is not None else []),
    ]
    return " · ".join(parts)


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def levels_of(curve: Curve, horizon_s: float) -> tuple[list[float], list[int]]:
    """A curve's steps from 0 to the horizon: edges, and the levels between them.

    What happens at the horizon itself is left out: there every life ends.
    """
    inside = [(at_s, gpus) for at_s, gpus in zip(curve.at_s, curve.gpus, strict=True) if at_s < horizon_s]
    if not inside or inside[0][0] > 0:
        inside.insert(0, (0.0, 0))
    return [*(at_s for at_s, _ in inside), horizon_s], [gpus for _, gpus in inside]
