"""From event log to timeline: nothing is lost, nothing is counted twice, and what is not understood is refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given

from pearl.core.cluster import Role, Status, Zone
from pearl.core.decision import Outcome
from pearl.core.event import EventKind
from pearl.errors import InputError
from pearl.report.timeline import read_log, read_timeline, timeline_of
from pearl.report.timeline_data import Band, Because, MarkKind, Phase, phase_of
from pearl.sim.log import Happening, Record, to_jsonl
from tests.report.timeline_samples import Log, as_line, bar, decision, gone, logs, small_log, worker


def recount(log: Log, at_s: float) -> Counter[Band]:
    """GPUs by zone and phase at a time, straight from the records."""
    now: dict[str, tuple[Band, int]] = {}
    for record in log:
        if record.at_s > at_s:
            break
        data = cast(dict[str, Any], record.data)
        if "gone" in data:
            del now[data["worker"]]
        elif record.what is Happening.WORKER:
            phase = phase_of(Role(data["role"]), Status(data["status"]))
            now[data["worker"]] = Band(zone=Zone(data["zone"]), phase=phase), data["gpus"]
    counts: Counter[Band] = Counter()
    for band, gpus in now.values():
        counts[band] += gpus
    return counts


@given(logs())
def test_counts_over_time_are_a_recount_of_the_records(sample: tuple[Log, float]) -> None:
    log, horizon_s = sample
    drawn = timeline_of(log, horizon_s)
    times = sorted({0.0, *(record.at_s for record in log)})
    for at_s in [*times, *((a + b) / 2 for a, b in pairwise([*times, horizon_s]))]:
        expected = recount(log, at_s)
        assert {band: curve.at(at_s) for band, curve in drawn.bands.items() if curve.at(at_s)} == expected
        for zone in Zone:
            assert drawn.held(zone).at(at_s) == sum(n for band, n in expected.items() if band.zone is zone)
            serving = (n for b, n in expected.items() if b.zone is zone and b.phase.role is not Role.INACTIVE)
            assert drawn.lent(zone).at(at_s) == sum(serving)


@given(logs())
def test_intervals_cover_a_life_without_gaps_or_overlaps(sample: tuple[Log, float]) -> None:
    log, horizon_s = sample
    drawn = timeline_of(log, horizon_s)
    for life in drawn.workers:
        for interval in life.intervals:
            assert interval.begin_s < interval.end_s
        for before, after in pairwise(life.intervals):
            assert before.end_s == after.begin_s
            assert before.phase != after.phase
    assert spans(log, horizon_s) == lives(drawn.workers)


def spans(log: Log, horizon_s: float) -> dict[str, list[tuple[float, float]]]:
    """From arrival to departure of each worker, straight from the records."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    since: dict[str, float] = {}
    for record in log:
        name = str(record.data["worker"])
        if "gone" in record.data:
            found[name].append((since.pop(name), record.at_s))
        else:
            since.setdefault(name, record.at_s)
    for name, begin_s in since.items():
        found[name].append((begin_s, horizon_s))
    long = {name: [(a, b) for a, b in all_spans if a < b] for name, all_spans in found.items()}
    return {name: kept for name, kept in long.items() if kept}


def lives(workers: Any) -> dict[str, list[tuple[float, float]]]:
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for life in workers:
        found[life.worker].append((life.begin_s, life.end_s))
    return dict(found)


def test_the_small_log() -> None:
    drawn = timeline_of(small_log(), 100)
    prefill, decode, inactive = Phase(role=Role.PREFILL), Phase(role=Role.DECODE), Phase(role=Role.INACTIVE)
    seen = {life.worker: [(i.begin_s, i.end_s, i.phase) for i in life.intervals] for life in drawn.workers}
    assert seen == {
        "reserved-0/0": [(0, 50, decode), (50, 100, prefill)],
        "spot-1/0": [(20, 40, Phase(role=Role.DECODE, transitioning=True)), (40, 75, decode)],
        "train-0/0": [(0, 6, Phase(role=Role.PREFILL, transitioning=True)), (6, 50, prefill), (50, 100, inactive)],
    }
    assert [life.worker for life in drawn.workers if life.gone] == ["spot-1/0"]
    assert [(b.index, b.begin_s, b.end_s, b.ended) for b in drawn.batches] == [(0, 0, 50, True)]
    assert [(b.index, b.begin_s, b.end_s, b.ended) for b in drawn.trainings] == [(0, 50, 100, False)]
    assert [(m.at_s, m.kind) for m in drawn.marks] == [
        (60, MarkKind.RECLAIM_NOTICE),
        (70, MarkKind.ROLLED_BACK),
        (75, MarkKind.GPUS_LOST),
    ]
    first, second = drawn.decisions
    assert (first.at_s, first.event, first.outcome, first.configuration, first.borrowed, first.steps) == (
        (0, EventKind.BATCH_STARTED, Outcome.SWITCH, "1P1D", 1, 3)
    )
    assert first.reasons == (Because(code="best", text="1P1D is best: <10 s off the 60.0 s of staying"),)
    assert (second.at_s, second.outcome, second.predicted_s) == (50, Outcome.KEEP, 50.0)
    assert drawn.zones == (Zone.RESERVED, Zone.PREEMPTIBLE, Zone.OVERLAP)


def test_a_worker_whose_status_is_inactive_serves_nothing_whatever_its_role() -> None:
    drawn = timeline_of([worker(0, "a/0", Zone.RESERVED, Role.DECODE, Status.INACTIVE)], 10)
    assert drawn.workers[0].intervals[0].phase == Phase(role=Role.INACTIVE)


HELD = worker(0, "a/0", Zone.RESERVED, Role.DECODE)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(at_s=0, what=cast(Happening, "wroker")), "unknown record 'wroker' (did you mean 'worker'?)"),
        (as_line(HELD, zone="cloud"), "'zone' of the worker record is 'cloud'; expected one of reserved, preemptible"),
        (as_line(HELD, role=None), "'role' of the worker record is missing; expected one of colocated"),
        (as_line(HELD, status=...), "'status' of the worker record is missing"),
        (as_line(HELD, gpus=True), "'gpus' of the worker record is True; expected a whole number"),
        (as_line(HELD, worker=3), "'worker' of the worker record is 3; expected text"),
        (as_line(HELD, gone=False), "'gone' of the worker record is False"),
        (as_line(decision(0), outcome="maybe"), "'outcome' of the decision record is 'maybe'"),
        (as_line(decision(0), predicted_s=float("inf")), "'predicted_s' of the decision record is not finite"),
        (as_line(decision(0), predicted_s=...), "'predicted_s' of the decision record is missing"),
        (as_line(decision(0), reasons=[{"code": "best"}]), "'reasons' of the decision record"),
        (as_line(decision(0), reasons="best"), "expected a list of reasons"),
        (as_line(bar(0, Happening.BATCH_BEGAN, 0), batch=-1), "'batch' of the batch_began record is -1"),
        (Record(at_s=0, what=Happening.EVENT, data={"kind": "rain", "workers": []}), "'kind' of the event record"),
        (Record(at_s=0, what=Happening.EVENT, data={"kind": "gpus_lost", "workers": "a"}), "a list of worker ids"),
        (as_line(HELD, gpus=2), "worker 'a/0' holds 2 × reserved GPUs, and 1 × reserved before"),
        (gone(0, "b/0"), "worker 'b/0' is gone, and was not there"),
        (bar(0, Happening.BATCH_ENDED, 4), "batch 4 ends, and was not under way"),
        (bar(0, Happening.TRAINING_ENDED, 4), "training on batch 4 ends"),
        (bar(0, Happening.BATCH_BEGAN, 3), "batch 3 begins twice"),
        (Record(at_s=-1.0, what=Happening.STEP_BEGAN), "at_s is -1.0"),
        (Record(at_s=float("nan"), what=Happening.STEP_BEGAN), "at_s is nan"),
        (decision(10.1), "past the horizon of 10 s"),
    ],
)
def test_a_record_that_does_not_hold_is_refused_by_its_place(record: Record, message: str) -> None:
    with pytest.raises(InputError) as caught:
        timeline_of([HELD, bar(0, Happening.BATCH_BEGAN, 3), record], 10)
    assert message in str(caught.value)
    assert "record 3 of the log" in str(caught.value)


def test_records_out_of_order_are_refused() -> None:
    with pytest.raises(InputError, match="record 2 of the log, at 1 s: the record before is later, at 2 s"):
        timeline_of([decision(2), decision(1)], 10)


def test_a_horizon_must_be_a_time() -> None:
    with pytest.raises(InputError, match="horizon"):
        timeline_of([], 0)


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_log_file_gives_the_same_timeline(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(to_jsonl(small_log()), encoding="utf-8")
    assert read_log(path) == small_log()
    assert read_timeline(path, 100) == timeline_of(small_log(), 100)
    assert read_timeline(path).horizon_s == 75


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"at_s": 1.0, "what": "step_begun"}', "3:1: unknown record 'step_begun' (did you mean 'step_began'?)"),
        ('{"at_s": 1.0}', "3:1: 'what' is missing; expected one of event, step_began"),
        ('{"at_s": 1.0, "what": ["worker"]}', "3:1: unknown record ['worker']"),
        ('{"at_s": "soon", "what": "event"}', "3:1: at_s is 'soon'; expected a number from 0"),
        ('{"at_s": 1.0, "what": "event"', "3:30: not valid JSON"),
        ("[]", "3:1: a record is []; expected a JSON object"),
        ("", "3:1: not valid JSON"),
        ('{"at_s": 1.0, "what": "batch_ended", "batch": 7}', "3:1: batch 7 ends, and was not under way"),
        ('{"at_s": 1.0, "what": "worker", "worker": "a/0"}', "3:1: 'role' of the worker record is missing"),
    ],
)
def test_a_fault_of_a_log_file_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(to_jsonl([HELD, decision(0)]) + line + "\n" + to_jsonl([decision(1)]), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_timeline(path)
    assert str(caught.value).startswith(f"{path}:{message}")


def test_an_empty_log_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="the log is empty"):
        read_timeline(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="cannot read"):
        read_timeline(tmp_path / "none.jsonl")
