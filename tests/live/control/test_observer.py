"""The Runtime Tracker of a live cluster, over synthetic telemetry of a known world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest

from pearl.core.cluster import ClusterState, Counts, Mode, Role, Status, Worker, Zone
from pearl.core.decision import Candidate, Decision, Outcome
from pearl.core.engine import DecodeCost, PrefillCost, TransitionCosts
from pearl.core.event import Event, EventKind
from pearl.core.situation import Situation
from pearl.core.telemetry import (
    ArrivalRecord,
    EngineRecord,
    Telemetry,
    TransitionKind,
    TransitionRecord,
)
from pearl.core.workload import Workload
from pearl.live.control import observer as observer_module
from pearl.live.control.observer import LiveObserver
from pearl.tracking.forecasters import Observed
from pearl.tracking.history import Source
from tests.tracking.worlds import ENGINE, WORKLOAD, arrival, engine_steps, turn

STATE = ClusterState(
    workers=tuple(
        Worker(id=f"w{i}", node="n", zone=Zone.RESERVED, role=Role.COLOCATED, status=Status.ACTIVE) for i in range(3)
    )
)
WRONG = replace(
    ENGINE,
    prefill=PrefillCost(p0_s=0.4, p1_s=3e-3, p2_s=5e-8),
    decode=DecodeCost(c0_s=0.6, c1_s=3e-3, c2_s=4e-6),
)


@dataclass(slots=True)
class Size:
    """Size of the open batch."""

    value: int | None = None


def observer(
    *, workload: Workload | None = None, size: Size | None = None, sources: tuple[Source, ...] = ()
) -> LiveObserver:
    return LiveObserver(
        world=Situation(state=ClusterState(workers=()), workload=workload, engine=WRONG),
        forecaster=Observed(),
        sources=sources,
        trajectories=lambda: size.value if size else None,
    )


def decision(makespan_s: float | None = 100.0, counts: Counts | None = None) -> Decision:
    counts = counts or STATE.counts
    chosen = None if makespan_s is None else Candidate(counts=counts, makespan_s=makespan_s, role_changes=0)
    return Decision(outcome=Outcome.KEEP, mode=counts.mode, counts=counts, reasons=(), chosen=chosen)


def batch(step: int, *, trajectories: int = 12, output: int = 300, began_s: float = 0.0) -> Iterator[Telemetry]:
    """A batch whose trajectories take four turns each."""
    for number in range(trajectories):
        for index in range(4):
            name, at_s = f"{step}/{number}", began_s + 10.0 * index
            yield arrival(name, index, step=step, at_s=at_s)
            yield turn(name, index, step=step, at_s=at_s + 5.0, output_tokens=output, last=index == 3)


def heard(made: LiveObserver, records: Iterator[Telemetry]) -> None:
    for record in records:
        made.record(record)


def situation(made: LiveObserver, now_s: float = 60.0) -> Situation:
    return made.situation(STATE, now_s, {})


def test_nothing_is_known_at_first() -> None:
    now = situation(observer())
    assert (now.workload, now.engine, now.calibration_error, now.corrections) == (None, WRONG, None, {})
    assert now.state is STATE


def test_the_cluster_files_workload_counts_until_one_was_measured() -> None:
    made = observer(workload=WORKLOAD)
    assert situation(made).workload is WORKLOAD
    heard(made, batch(0))
    measured = situation(made).workload
    assert measured is not None
    assert measured is not WORKLOAD
    assert measured.turns.quantile(0.5) == pytest.approx(4.0)


def test_profiles_are_refitted_after_a_batch_and_not_in_its_middle() -> None:
    made = observer()
    heard(made, batch(0, output=300))
    first = situation(made)
    assert first.workload is not None
    assert first.workload.output_tokens.quantile(0.5) == pytest.approx(300.0)
    made.batch_began(60.0, decision())
    heard(made, batch(1, output=900, began_s=60.0))
    middle = situation(made, 90.0)
    assert middle.workload is first.workload
    assert middle.engine is first.engine
    made.batch_ended(120.0)
    after = situation(made, 120.0).workload
    assert after is not None
    assert after.output_tokens.quantile(0.9) == pytest.approx(900.0)


def test_held_back_records_come_before_the_refit() -> None:
    made = observer()
    made.on_batch_end = lambda: heard(made, batch(0))
    made.batch_began(0.0, decision())
    assert situation(made, 1.0).workload is None
    made.batch_ended(60.0)
    assert situation(made).workload is not None


def test_the_size_of_the_batch_is_the_pipelines() -> None:
    size = Size(64)
    made = observer(size=size)
    heard(made, batch(0))
    now = situation(made).workload
    assert now is not None
    assert now.trajectories == 64


def test_a_batch_that_falls_silent_is_no_data_and_the_time_between_batches_is_not() -> None:
    made = observer()
    heard(made, batch(0))
    made.batch_ended(50.0)
    assert situation(made, 100_000.0).workload is not None
    made.batch_began(100_000.0, decision())
    assert situation(made, 100_500.0).workload is not None
    assert situation(made, 101_000.0).workload is None
    heard(made, iter([arrival("late", 0, step=1, at_s=101_000.0)]))
    assert situation(made, 101_001.0).workload is not None


def test_engine_profiles_come_from_steps() -> None:
    made = observer()
    made.record(EngineRecord(worker="w0", model="8B", gpu="any", kv_tokens=1000, kv_bytes_per_token=2.0, at_s=0.0))
    for record in engine_steps(ENGINE, "w0", number=200, rng=Random(1)):
        made.record(record)
    engine = situation(made).engine
    assert engine.kv_decode_tokens == 1000
    assert engine.decode.seconds(8, 8000) == pytest.approx(ENGINE.decode.seconds(8, 8000), rel=0.05)
    assert engine.prefill.seconds(2000) == pytest.approx(ENGINE.prefill.seconds(2000), rel=0.05)


def test_makespans_correct_predictions_and_calibrate_them() -> None:
    made = observer()
    made.batch_began(0.0, decision(100.0))
    record = made.batch_ended(150.0)
    assert record is not None
    assert (record.predicted_s, record.measured_s) == (pytest.approx(100.0), 150.0)
    assert record.counts == STATE.counts
    now = situation(made, 150.0)
    assert now.corrections[Mode.COLOCATED] == pytest.approx(1.5, rel=0.02)
    assert now.calibration_error == pytest.approx(1 / 3)
    made.batch_began(200.0, decision(150.0))
    again = made.batch_ended(350.0)
    assert again is not None
    # As it was decided on, corrected, it was right.
    assert again.predicted_s == pytest.approx(150.0, rel=0.02)
    made.record(replace(again, step=7))
    assert situation(made, 350.0).calibration_error == pytest.approx(1 / 6, abs=0.01)


def test_a_change_of_mode_in_mid_batch_proves_nothing() -> None:
    made = observer()
    made.batch_began(0.0, decision(100.0))
    made.decided(50.0, decision(80.0, Counts(prefill=1, decode=2)))
    assert made.batch_ended(90.0) is None
    assert situation(made, 90.0).corrections == {}


def test_a_change_of_pool_in_mid_batch_is_predicted_piece_by_piece() -> None:
    made = observer()
    made.batch_began(0.0, decision(100.0))
    made.decided(50.0, decision(50.0, Counts(colocated=4)))
    record = made.batch_ended(75.0)
    assert record is not None
    assert record.predicted_s == pytest.approx(75.0)
    assert record.counts == Counts(colocated=4)


def test_a_batch_without_a_prediction_is_no_record() -> None:
    made = observer()
    made.batch_began(0.0, decision(None))
    assert made.batch_ended(10.0) is None
    assert made.batch_ended(20.0) is None


def test_costs_are_kept_apart_by_borrowing() -> None:
    made = observer()
    for seconds, borrowing in ((9.0, True), (3.0, False)):
        for at_s in range(40):
            record = TransitionRecord(kind=TransitionKind.DRAIN, seconds=seconds, at_s=float(at_s), borrowing=borrowing)
            made.record(record)
    borrowed = replace(STATE.workers[0], id="o", zone=Zone.OVERLAP)
    with_borrow = ClusterState(workers=(*STATE.workers, borrowed))
    assert made.situation(STATE, 60.0, {}).costs.drain_s == pytest.approx(3.0, abs=0.01)
    assert made.situation(with_borrow, 60.0, {}).costs.drain_s == pytest.approx(9.0, abs=0.01)
    assert TransitionCosts().borrow_s == made.situation(STATE, 60.0, {}).costs.borrow_s


def test_forecasts_are_those_the_policy_asks_for() -> None:
    size = Size(5)
    made = observer(size=size, sources=(Source.OVERLAP_WINDOW, Source.TRAJECTORIES_LEFT))
    made.hear(Event(kind=EventKind.TRAINING_FINISHED, at_s=10.0))
    made.hear(Event(kind=EventKind.TRAINING_STARTED, at_s=40.0))
    made.batch_began(50.0, decision())
    made.record(ArrivalRecord(trajectory="a", turn=0, new_prompt_tokens=5, at_s=51.0))
    samples = situation(made).samples
    assert samples["overlap_window"].values == (30.0,)
    assert samples["trajectories_left"].values == (4.0,)
    assert set(samples) == {"overlap_window", "trajectories_left"}


def test_a_restart_knows_what_was_known() -> None:
    before = observer()
    kept: list[Telemetry] = [
        EngineRecord(worker="w0", model="8B", gpu="any", kv_tokens=1000, kv_bytes_per_token=2.0, at_s=0.0),
        *engine_steps(ENGINE, "w0", number=200, rng=Random(1)),
        TransitionRecord(kind=TransitionKind.DRAIN, seconds=3.0, at_s=20.0),
    ]
    for step, (predicted_s, took_s) in enumerate(((100.0, 150.0), (150.0, 180.0))):
        began_s = 1000.0 * step
        kept += batch(step, began_s=began_s)
        for record in kept if step == 0 else batch(step, began_s=began_s):
            before.record(record)
        before.batch_began(began_s, decision(predicted_s))
        measured = before.batch_ended(began_s + took_s)
        assert measured is not None
        kept.append(replace(measured, step=step))
        was = situation(before, began_s + took_s)
    after = observer()
    after.restore(kept)
    now = situation(after, 2000.0)
    assert now.workload == was.workload
    assert now.costs == was.costs
    assert now.corrections == was.corrections
    assert now.calibration_error == pytest.approx(was.calibration_error)
    assert now.engine.decode.seconds(8, 8000) == pytest.approx(was.engine.decode.seconds(8, 8000), rel=0.02)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_module, "MOST_HEARD", 10)
    made = observer()
    heard(made, batch(0))
    assert len(made._heard) < 10
    assert situation(made).workload is not None
