import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.errors import InputError, UsageError
from pearl.sim.traces.availability import (
    MAX_NODES,
    AvailabilityEvent,
    AvailabilityTrace,
    Change,
    events_of_counts,
)
from pearl.sim.traces.reading import TraceText
from pearl.sim.traces.recording import ReadOptions
from pearl.sim.traces.table import read_table, table_text


def add(at_s, *nodes, gpus=1):
    return AvailabilityEvent(at_s=at_s, kind=Change.ADD, nodes=nodes, gpus_per_node=gpus)


def reclaim(at_s, *nodes, gpus=1, grace_s=30.0):
    return AvailabilityEvent(at_s=at_s, kind=Change.RECLAIM, nodes=nodes, gpus_per_node=gpus, grace_s=grace_s)


STEPS = AvailabilityTrace(
    events=(add(0, "a", "b"), add(1800, "c", gpus=4), reclaim(2700, "a"), reclaim(2700, "c", gpus=4)),
    horizon_s=3600,
)


@st.composite
def traces(draw):
    """Counts that change at whole seconds, on nodes of one size."""
    counts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=20))
    gaps = draw(st.lists(st.integers(1, 900), min_size=len(counts), max_size=len(counts)))
    times = [float(sum(gaps[:i])) for i in range(len(gaps))]
    size = draw(st.sampled_from([1, 2, 8]))
    grace_s = draw(st.sampled_from([0.0, 30.0, 120.0]))
    events = events_of_counts(list(zip(times, counts, strict=True)), gpus_per_node=size, grace_s=grace_s)
    return AvailabilityTrace(events=tuple(events), horizon_s=float(sum(gaps)))


def test_counts_merge_events_of_one_instant():
    assert STEPS.counts() == ((0.0, 2), (1800, 6), (2700, 1))
    assert [STEPS.gpus_at(t) for t in (-1, 0, 1799, 1800, 2700, 9999)] == [0, 2, 2, 6, 1, 1]


def test_statistics_by_hand():
    statistics = STEPS.statistics()
    assert statistics.mean_gpus == pytest.approx((1800 * 2 + 900 * 6 + 900 * 1) / 3600)
    assert (statistics.min_gpus, statistics.max_gpus) == (1, 6)
    assert statistics.abundance == pytest.approx(2.75 / 6)
    assert STEPS.statistics(max_gpus=11).abundance == pytest.approx(0.25)
    assert (statistics.changes_per_h, statistics.reclaims_per_h) == (2, 1)
    assert statistics.gpus_moved_per_h == 4 + 1 + 4


def test_segment_starts_with_what_is_there_and_forgets_what_is_under_notice():
    segment = STEPS.segment(2000, 1000)
    assert segment.events[:2] == (add(0.0, "a", "b"), add(0.0, "c", gpus=4))
    assert segment.events[2:] == (reclaim(700, "a"), reclaim(700, "c", gpus=4))
    assert segment.horizon_s == 1000
    assert STEPS.segment(2700, 900).events == (add(0.0, "b"),)


def test_an_event_between_two_segments_is_in_the_second_and_one_at_the_end_in_the_last():
    trace = AvailabilityTrace(events=(add(0.0, "a"), add(0.3, "b"), reclaim(0.7, "a")), horizon_s=0.7)
    first, second = trace.segment(0.0, 0.3), trace.segment(0.3, 0.7 - 0.3)
    assert first.events == (add(0.0, "a"),)
    assert second.events == (add(0.0, "a", "b"), reclaim(0.7 - 0.3, "a"))
    assert trace.segment(0.0, trace.horizon_s).events == trace.events


@settings(deadline=None)
@given(trace=traces(), share=st.floats(0.01, 0.99))
def test_what_is_left_of_a_trace_ends_as_it_does(trace, share):
    start_s = trace.horizon_s * share
    rest = trace.segment(start_s, trace.horizon_s - start_s)
    assert rest.gpus_at(rest.horizon_s) == trace.gpus_at(trace.horizon_s)
    assert len(rest.counts()) <= 1 + sum(at_s > start_s for at_s, _ in trace.counts())


@pytest.mark.parametrize(("start_s", "length_s"), [(-1, 10), (3000, 601), (0, 0), (0, -5), (math.nan, 1)])
def test_segment_outside_the_trace_is_refused(start_s, length_s):
    with pytest.raises(UsageError, match="is not inside the trace of 3600 s"):
        STEPS.segment(start_s, length_s)


@settings(deadline=None)
@given(trace=traces(), data=st.data())
def test_segment_shows_the_same_counts(trace, data):
    start_s = data.draw(st.floats(0, trace.horizon_s * 0.9))
    length_s = data.draw(st.floats(0.01, trace.horizon_s - start_s))
    segment = trace.segment(start_s, length_s)
    for share in (0.0, 0.3, 0.7, 0.999):
        at_s = length_s * share
        assert segment.gpus_at(at_s) == trace.gpus_at(start_s + at_s)


@settings(deadline=None)
@given(trace=traces())
def test_windows_average_to_the_whole(trace):
    parts = [statistics.mean_gpus for _, statistics in trace.windows(trace.horizon_s / 4)]
    assert len(parts) in (3, 4)  # rounding may cut the last one
    if len(parts) == 4:
        assert sum(parts) / 4 == pytest.approx(trace.statistics().mean_gpus)


@settings(deadline=None)
@given(trace=traces(), nodes=st.integers(1, 40), size=st.sampled_from([1, 4]))
def test_rescaled_keeps_the_curve_within_half_a_node(trace, nodes, size):
    peak = trace.statistics().max_gpus
    scaled = trace.rescaled(nodes * size, gpus_per_node=size)
    assert scaled.statistics().max_gpus == (nodes * size if peak else 0)
    for at_s, gpus in trace.counts():
        assert abs(scaled.gpus_at(at_s) - (gpus / peak * nodes * size if peak else 0)) <= size / 2 + 1e-9


def test_rescaled_keeps_the_grace_period():
    graces = {e.grace_s for e in STEPS.rescaled(60).events if e.kind is Change.RECLAIM}
    assert graces == {30.0}
    assert {e.grace_s for e in STEPS.rescaled(60, grace_s=5).events if e.kind is Change.RECLAIM} == {5}


@pytest.mark.parametrize(("max_gpus", "size"), [(0, 1), (10, 4), (8, 0)])
def test_rescaling_to_part_of_a_node_is_refused(max_gpus, size):
    with pytest.raises(UsageError, match="not a positive multiple"):
        STEPS.rescaled(max_gpus, gpus_per_node=size)


@settings(deadline=None)
@given(trace=traces())
def test_own_format_reads_back_the_same(trace):
    source = TraceText(file="t.csv", text=table_text(trace))
    again = read_table(source, ReadOptions())
    assert again.horizon_s == trace.horizon_s
    assert again.counts() == trace.counts()
    assert [e for e in again.events if e.nodes] == list(trace.events)


def test_a_node_name_that_csv_cannot_hold_is_refused():
    with pytest.raises(InputError, match="'a,b' cannot be written"):
        table_text(AvailabilityTrace(events=(add(0, "a,b"),), horizon_s=1))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((add(0, "a"), add(1, "a")), "already there"),
        ((add(0, "a", "a"),), "already there"),
        ((reclaim(0, "a"),), "is not there"),
        ((add(5, "a"), add(4, "b")), "out of order"),
        ((add(11, "a"),), "after the horizon"),
    ],
)
def test_impossible_histories_cannot_be_built(events, message):
    with pytest.raises(ValueError, match=message):
        AvailabilityTrace(events=events, horizon_s=10)


def test_counts_beyond_any_cluster_are_refused():
    with pytest.raises(InputError, match=f"expected 0 to {MAX_NODES}"):
        list(events_of_counts([(0.0, MAX_NODES + 1)], gpus_per_node=1, grace_s=0))


def test_windows_in_the_wrong_unit_are_refused():
    with pytest.raises(UsageError, match="more than 10000"):
        list(STEPS.windows(0.1))
