"""What users of other systems met (the project's lessons on deciding), through the whole tick."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from pearl.api import choose_policy, choose_predictor, choose_solver, situation_of
from pearl.core.cluster import Counts
from pearl.core.decision import Outcome, ReasonCode
from pearl.core.situation import Situation
from pearl.core.telemetry import BatchRecord
from pearl.scenario.load import load_scenario
from pearl.scheduler import Tick, deliberate
from pearl.tracking.engine import EngineTracker
from pearl.tracking.tracker import RuntimeTracker
from pearl.tracking.workload import MAX_SILENCE_S, WorkloadSettings, WorkloadTracker
from tests.tracking.worlds import batch

SCENARIO = Path(__file__).parents[2] / "scenarios" / "qwen3-8b-swe.yaml"


@cache
def described() -> Situation:
    return situation_of(load_scenario(SCENARIO))


def decided(situation: Situation) -> Tick:
    policy = choose_policy(load_scenario(SCENARIO), None, {})
    return deliberate(
        situation, policy, predictor=choose_predictor(policy, None), solver=choose_solver(policy, "enumerate")
    )


def codes(tick: Tick) -> set[ReasonCode]:
    return {reason.code for reason in tick.decision.reasons}


def after(*batches: tuple[float, float]) -> RuntimeTracker:
    """A tracker that saw batches of (predicted, measured) seconds."""
    ended = [
        BatchRecord(predicted_s=predicted, measured_s=measured, at_s=float(i), counts=Counts(colocated=12))
        for i, (predicted, measured) in enumerate(batches)
    ]
    return RuntimeTracker().update(ended, float(len(batches)))


def test_the_scenario_asks_for_a_switch_while_predictions_hold() -> None:
    error = after((100.0, 100.5), (100.0, 99.5)).calibration.error()
    tick = decided(replace(described(), calibration_error=error))
    assert tick.decision.outcome is Outcome.SWITCH


def test_no_optional_change_while_predictions_miss_by_more_than_it_gains() -> None:
    """aiconfigurator#1396: 884 tokens/s predicted, 192 measured."""
    error = after((192.0, 884.0)).calibration.error()
    tick = decided(replace(described(), calibration_error=error))
    assert tick.decision.outcome is Outcome.KEEP
    assert ReasonCode.CALIBRATION in codes(tick)
    assert tick.plan.steps == ()


def test_changes_come_back_once_predictions_hold_again() -> None:
    error = after((192.0, 884.0), *[(100.0, 100.0)] * 30).calibration.error()
    assert decided(replace(described(), calibration_error=error)).decision.outcome is Outcome.SWITCH


def test_missing_telemetry_keeps_and_says_that_there_is_no_data() -> None:
    """aibrix#1713: missing telemetry was read as zero load."""
    tick = decided(RuntimeTracker().inform(described(), borrowing=False))
    assert tick.decision.outcome is Outcome.KEEP
    assert codes(tick) == {ReasonCode.NO_DATA}
    assert tick.plan.steps == ()


def test_telemetry_that_falls_silent_keeps_as_well() -> None:
    records = batch(0, size=64)
    last_s = max(record.at_s for record in records)
    tracker = RuntimeTracker(engine=EngineTracker(prior=described().engine)).update(records, last_s)
    assert tracker.inform(described(), borrowing=False).workload is not None
    silent = tracker.update([], last_s + 2 * MAX_SILENCE_S)
    assert codes(decided(silent.inform(described(), borrowing=False))) == {ReasonCode.NO_DATA}


def test_halved_capacity_at_constant_offered_load_does_not_move_the_decision() -> None:
    """dynamo#12230: demand was inferred from completions."""
    settings = WorkloadSettings(max_context_tokens=32_768)
    offered = batch(0, size=128)
    full = RuntimeTracker(workload=WorkloadTracker(settings=settings)).update(offered, 100.0)
    unserved = [r for r in offered if hasattr(r, "output_tokens") and int(r.trajectory.split("/")[1]) % 2]
    halved = RuntimeTracker(workload=WorkloadTracker(settings=settings)).update(
        [r for r in offered if r not in unserved], 100.0
    )
    targets = [decided(t.inform(described(), borrowing=False)).decision.counts for t in (full, halved)]
    assert targets[0].mode == targets[1].mode
    assert abs(targets[0].serving - targets[1].serving) <= 1
    assert abs(targets[0].prefill - targets[1].prefill) <= 1


def test_a_stale_long_prompt_mean_does_not_hold_workers_for_ever() -> None:
    """dynamo#11624: ten steps after the prompts became short again, the decision is that of short prompts."""

    def target(*scales: float) -> Counts:
        tracker = RuntimeTracker()
        for step, scale in enumerate(scales):
            tracker = tracker.update(batch(step, size=64, prompt_scale=scale), 1000.0 * step)
        informed = tracker.inform(described(), borrowing=False)
        assert informed.workload is not None
        return decided(
            replace(informed, workload=replace(informed.workload, max_context_tokens=32_768))
        ).decision.counts

    assert target(4.0, 4.0, 4.0, *[1.0] * 10) == target(*[1.0] * 13)


def test_the_tracker_informs_of_everything_that_it_knows() -> None:
    informed = after((110.0, 100.0)).inform(described(), borrowing=True)
    assert informed.calibration_error is not None
    assert abs(informed.calibration_error - 0.1) < 1e-9
    assert informed.engine == described().engine
    assert informed.samples == described().samples
