from __future__ import annotations

import pytest

from pearl.sim.rollout import Rollout, TrainingCost
from pearl.sim.telemetry import Life, Stage, TurnSample
from tests.sim.sim_cluster import COSTS, pool_of, worker
from tests.sim.sim_samples import profile, turn, workload


def rollout(*trajectories, heard=None) -> Rollout:
    return Rollout(
        state=pool_of(worker("a")),
        workload=workload(),
        engine=profile(),
        costs=COSTS,
        training=TrainingCost(step_s=1000.0),
        draw=lambda _: trajectories,
        turn_ended=heard,
        max_batches=1,
    )


def test_lives_say_where_each_trajectory_stands():
    long, short = (turn(1000, 2000),), (turn(500, 10, 9.0), turn(10, 10))
    run = rollout(long, short)
    run.run(until_s=0.001)
    assert [life.stage for life in run.lives()] == [Stage.PREFILL, Stage.PREFILL]
    run.run(until_s=3.0)
    decoding, waiting = run.lives()
    assert decoding.stage is Stage.DECODE
    assert waiting == Life(trajectory=1, turn=0, stage=Stage.ENVIRONMENT, context_tokens=510)
    engine = profile()
    steps = [engine.decode.seconds(1, 1000 + i) for i in range(1, 2000)]
    assert decoding.context_tokens == pytest.approx(1000 + sum(sum(steps[:i]) < 2.95 for i in range(2000)), abs=10)
    run.run(until_s=100.0)
    assert run.lives() == ()


def test_turns_are_reported_as_they_end():
    heard: list[TurnSample] = []
    rollout((turn(500, 10, 2.5), turn(30, 20)), heard=heard.append).run(until_s=60.0)
    first, second = heard
    assert (first.environment_s, first.new_prompt_tokens, first.context_tokens, first.last) == (None, 500, 510, False)
    assert (second.environment_s, second.output_tokens, second.context_tokens, second.last) == (2.5, 20, 560, True)
    assert second.at_s > first.at_s + 2.5
