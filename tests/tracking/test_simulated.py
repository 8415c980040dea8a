"""The tracker and the forecasters on the telemetry of the simulator, whose workload is known."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.telemetry import ArrivalRecord, Telemetry, TurnRecord
from pearl.scenario.engines import load_profile
from pearl.scenario.load import load_scenario
from pearl.sim.rollout import Rollout, TrainingCost, draw_batches
from pearl.tracking.forecasters import get_forecaster
from pearl.tracking.history import History, Source
from pearl.tracking.tracker import RuntimeTracker
from tests.tracking.test_lessons import SCENARIO

HORIZON_S = 30.0
LOAD = replace(load_scenario(SCENARIO).workload, trajectories=32)


def pool(workers: int) -> ClusterState:
    return ClusterState(
        workers=tuple(
            Worker(id=f"n/{i}", node="n", zone=Zone.RESERVED, role=Role.COLOCATED, status=Status.ACTIVE)
            for i in range(workers)
        )
    )


def rolled(workers: int, heard: list[Telemetry]) -> Rollout:
    return Rollout(
        state=pool(workers),
        workload=LOAD,
        engine=load_profile("qwen3-8b-h200"),
        costs=TransitionCosts(),
        training=TrainingCost(step_s=10.0),
        draw=draw_batches(LOAD, 3),
        telemetry=heard.append,
    )


@pytest.mark.parametrize("workers", [2, 8])
def test_the_profile_is_the_workload_on_a_large_pool_as_on_a_small_one(workers: int) -> None:
    heard: list[Telemetry] = []
    rolled(workers, heard).run(until_s=900.0)
    profile = RuntimeTracker().update(heard, 900.0).workload.profile()
    assert profile is not None
    assert profile.trajectories == LOAD.trajectories
    assert profile.output_tokens.expected == pytest.approx(LOAD.output_tokens.expected, rel=0.05)
    assert profile.new_prompt_tokens.expected == pytest.approx(LOAD.new_prompt_tokens.expected, rel=0.06)
    assert profile.first_prompt_tokens.expected == pytest.approx(LOAD.first_prompt_tokens.expected, rel=0.12)
    assert profile.environment_s.expected == pytest.approx(LOAD.environment_s.expected, rel=0.06)


def test_life_cycle_beats_the_last_value_on_the_simulator() -> None:
    """What the batch under way asks for in the next 30 s, asked every 20 s once a batch has been seen.

    When the next batch begins is the Pipeline Scheduler's choice, and no forecaster's to know.
    """
    heard: list[Telemetry] = []
    run = rolled(8, heard)
    run.run(until_s=150.0)
    said: list[tuple[str, float, float]] = []
    for now_s in [150.0 + 20.0 * i for i in range(20)]:
        run.run(until_s=now_s)
        history = History(
            arrivals=tuple(r for r in heard if isinstance(r, ArrivalRecord)),
            turns=tuple(r for r in heard if isinstance(r, TurnRecord)),
            lives=run.lives(),
            lives_at_s=now_s,
        )
        for name in ("life_cycle", "last_value", "moving_average"):
            values = get_forecaster(name).samples(Source.PREFILL_DEMAND, history, now_s).values
            said.append((name, now_s, fmean(values)))
    run.run(until_s=said[-1][1] + HORIZON_S)
    errors: dict[str, list[float]] = {}
    for name, now_s, value in said:
        asked = [r for r in heard if isinstance(r, ArrivalRecord)]
        batch = max(r.step for r in asked if r.at_s <= now_s)
        came = [r for r in asked if now_s < r.at_s <= now_s + HORIZON_S and r.step == batch]
        errors.setdefault(name, []).append(abs(value - sum(r.new_prompt_tokens for r in came) / HORIZON_S))
    mean = {name: fmean(each) for name, each in errors.items()}
    assert mean["life_cycle"] < 0.5 * min(mean["last_value"], mean["moving_average"])
