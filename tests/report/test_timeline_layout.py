"""What both pictures share: lanes, stacks, labels and the axis."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import Role, Zone
from pearl.core.decision import Outcome
from pearl.report import timeline_layout as layout
from pearl.report.timeline import timeline_of
from pearl.report.timeline_data import Curve, Timeline
from pearl.sim.log import Record
from tests.report.timeline_samples import Log, decision, gone, logs, small_log, worker


def spot(at_s: float, name: str) -> Record:
    return worker(at_s, name, Zone.PREEMPTIBLE, Role.DECODE)


@given(logs())
def test_lanes_hold_every_life_once_and_are_as_few_as_the_overlaps_allow(sample: tuple[Log, float]) -> None:
    drawn = timeline_of(*sample)
    lanes = layout.lanes_of(drawn)
    placed = Counter((life.worker, life.begin_s) for lane in lanes for life in lane.workers)
    assert placed == Counter((life.worker, life.begin_s) for life in drawn.workers)
    for lane in lanes:
        assert {life.zone for life in lane.workers} == {lane.zone}
        assert all(before.end_s <= after.begin_s for before, after in pairwise(lane.workers))
    for zone in drawn.zones:
        lives = [life for life in drawn.workers if life.zone is zone]
        most = max(sum(o.begin_s <= life.begin_s < o.end_s for o in lives) for life in lives)
        assert sum(lane.zone is zone for lane in lanes) == most


def test_a_node_that_returns_takes_its_old_lane() -> None:
    log = [spot(0, "n-1/0"), spot(0, "n-2/0"), gone(5, "n-1/0"), gone(5, "n-2/0"), spot(7, "n-2+1/0"), spot(8, "x/0")]
    lanes = layout.lanes_of(timeline_of(log, 10))
    assert [[life.worker for life in lane.workers] for lane in lanes] == [["n-1/0", "x/0"], ["n-2/0", "n-2+1/0"]]
    assert [lane.label for lane in lanes] == ["n-1/0 …", "n-2/0"]


def test_lanes_say_how_many_gpus_a_worker_has() -> None:
    log = [worker(0, name, Zone.RESERVED, Role.PREFILL, gpus=4) for name in ("a/0", "us-central1-a-17/0")]
    assert [lane.label for lane in layout.lanes_of(timeline_of(log, 10))] == ["a/0 ×4", "…tral1-a-17/0 ×4"]


@pytest.mark.parametrize("most_steps", [0, layout.MOST_STEPS])
@given(sample=logs())
def test_a_stack_keeps_the_gpu_seconds_of_every_phase(most_steps: int, sample: tuple[Log, float]) -> None:
    drawn = timeline_of(*sample)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "MOST_STEPS", most_steps)
        for zone in drawn.zones:
            stack = layout.stack_of(drawn, zone)
            assert (stack.bin_s is None) == (most_steps > 0)
            assert (stack.edges_s[0], stack.edges_s[-1]) == (0.0, drawn.horizon_s)
            spans = [end - begin for begin, end in pairwise(stack.edges_s)]
            areas = {phase: sum(n * s for n, s in zip(ns, spans, strict=True)) for phase, ns in stack.layers}
            assert areas == pytest.approx(gpu_seconds(drawn, zone))


def gpu_seconds(drawn: Timeline, zone: Zone) -> dict[object, float]:
    total: Counter[object] = Counter()
    for life in drawn.workers:
        for interval in life.intervals if life.zone is zone else ():
            total[interval.phase] += life.gpus * (interval.end_s - interval.begin_s)
    return dict(total)


def test_means_of_a_step_curve() -> None:
    curve = Curve(at_s=(1.0, 3.0), gpus=(4, 2))
    assert layout.means(curve, (0.0, 2.0, 4.0, 6.0)) == (2.0, 3.0, 2.0)
    assert layout.means(Curve(), (0.0, 1.0)) == (0.0,)


def test_levels_leave_out_what_happens_at_the_horizon() -> None:
    assert layout.levels_of(Curve(at_s=(2.0, 10.0), gpus=(3, 0)), 10.0) == ([0.0, 2.0, 10.0], [0, 3])
    assert layout.levels_of(Curve(at_s=(0.0, 10.0), gpus=(3, 0)), 10.0) == ([0.0, 10.0], [3])
    assert layout.levels_of(Curve(), 10.0) == ([0.0, 10.0], [0])


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 30)), max_size=30))
def test_labels_on_a_row_do_not_overlap(labels: list[tuple[float, float]]) -> None:
    labels.sort()
    spots, widths = [spot for spot, _ in labels], [width for _, width in labels]
    rows = layout.place_labels(spots, widths, rows=3)
    for row in range(3):
        ends = [(s, s + w) for s, w, r in zip(spots, widths, rows, strict=True) if r == row]
        assert all(before[1] <= after[0] for before, after in pairwise(ends))
    for index, row in enumerate(rows):
        if row is None:
            over = (i for i in range(index) if rows[i] is not None and spots[i] + widths[i] > spots[index])
            assert {rows[i] for i in over} == {0, 1, 2}


def test_switches_are_labelled_once_per_configuration_where_labels_would_collide() -> None:
    switches = [(0, "3P5D"), (1, "3P5D"), (2, "8C"), (60, "8C"), (99, "4P4D")]
    log = [decision(at_s, Outcome.SWITCH, name) for at_s, name in switches]
    labels = layout.switch_labels(timeline_of([*log[:2], decision(1.5), *log[2:]], 100), character=0.01)
    assert [(label.index, label.mark.configuration, label.row) for label in labels] == [
        (0, "3P5D", 0),
        (3, "8C", 1),
        (4, "8C", 0),
        (5, "4P4D", 0),
    ]
    assert labels[-1].spot + labels[-1].width == pytest.approx(1)


def test_small_zones_get_less_height_and_never_too_little() -> None:
    log = [
        worker(0, "a/0", Zone.RESERVED, Role.DECODE, gpus=100),
        worker(0, "b/0", Zone.PREEMPTIBLE, Role.DECODE, gpus=80),
        worker(0, "c/0", Zone.OVERLAP, Role.DECODE, gpus=2),
    ]
    stacks = {zone: layout.stack_of(timeline_of(log, 10), zone) for zone in Zone}
    assert layout.heights_of(stacks) == {Zone.RESERVED: 1.0, Zone.PREEMPTIBLE: 0.8, Zone.OVERLAP: layout.LEAST_HEIGHT}


@given(st.floats(0.5, 1e8))
def test_the_axis_has_a_readable_number_of_round_ticks(horizon_s: float) -> None:
    axis = layout.time_axis(horizon_s)
    ticks = axis.ticks(horizon_s)
    assert 3 <= len(ticks) <= 13
    assert ticks[0] == (0.0, "0")
    assert ticks[-1][0] <= horizon_s * (1 + 1e-6)
    assert float(f"{axis.step:.0e}") == pytest.approx(axis.step)


@pytest.mark.parametrize(
    ("horizon_s", "unit", "step"), [(100.0, "s", 10), (7200.0, "min", 10), (86_400.0, "h", 2), (864_000.0, "days", 1)]
)
def test_units_of_the_axis(horizon_s: float, unit: str, step: float) -> None:
    axis = layout.time_axis(horizon_s)
    assert (axis.unit, axis.step) == (unit, step)


def test_the_clock() -> None:
    assert [layout.clock(time_s) for time_s in (0, 59.6, 3723)] == ["0:00:00", "0:01:00", "1:02:03"]


def test_the_caption_counts_what_is_shown() -> None:
    said = layout.caption(timeline_of(small_log(), 100), ())
    assert said == "100 s of simulated time · 3 workers · 1 whole batch · 2 decisions, 1 switch"
    stack = layout.Stack(edges_s=(0.0, 1.0), layers=(), bin_s=7.2)
    assert layout.caption(timeline_of([], 7200), [stack]).endswith("0 switches · levels averaged over 7.2 s")
