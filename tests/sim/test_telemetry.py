from __future__ import annotations

import pytest

from pearl.core.cluster import Role, Zone
from pearl.core.event import Event, EventKind
from pearl.core.plan import Borrow
from pearl.core.telemetry import ArrivalRecord, Life, Stage, Telemetry, TransitionKind, TransitionRecord, TurnRecord
from pearl.sim.rollout import Rollout, TrainingCost
from tests.sim.sim_cluster import COSTS, pool_of, worker
from tests.sim.sim_samples import profile, turn, workload

ENGINE = profile()


def rollout(*trajectories, state=None, heard=None) -> Rollout:
    return Rollout(
        state=state or pool_of(worker("a")),
        workload=workload(),
        engine=ENGINE,
        costs=COSTS,
        training=TrainingCost(step_s=1000.0),
        draw=lambda _: trajectories,
        telemetry=heard,
        max_batches=1,
    )


def heard_from(*trajectories, state=None, event: Event | None = None) -> list[Telemetry]:
    heard: list[Telemetry] = []
    run = rollout(*trajectories, state=state, heard=heard.append)
    run.schedule([event] if event else [])
    run.run(until_s=100.0)
    return heard


def test_lives_say_where_each_trajectory_stands():
    long, short = (turn(1000, 2000),), (turn(500, 10, 9.0), turn(10, 10))
    run = rollout(long, short)
    run.run(until_s=0.001)
    assert [(life.stage, life.prompt_left_tokens) for life in run.lives()] == [
        (Stage.PREFILL, 1000),
        (Stage.PREFILL, 500),
    ]
    run.run(until_s=3.0)
    decoding, waiting = run.lives()
    assert decoding.stage is Stage.DECODE
    steps = [ENGINE.decode.seconds(1, 1000 + i) for i in range(1, 2000)]
    by_now = sum(sum(steps[:i]) < 2.95 for i in range(2000))
    assert decoding.output_tokens == pytest.approx(by_now, abs=10)
    assert decoding.context_tokens == 1000 + decoding.output_tokens
    assert waiting == Life(
        trajectory="1",
        turn=0,
        stage=Stage.ENVIRONMENT,
        context_tokens=510,
        output_tokens=10,
        stage_s=waiting.stage_s,
    )
    assert 2.8 < waiting.stage_s < 3.0
    run.run(until_s=100.0)
    assert run.lives() == ()


def test_turns_are_reported_as_they_are_asked_for_and_done():
    asked, done, asked_again, done_again = heard_from((turn(500, 10, 2.5), turn(30, 20)))
    assert asked == ArrivalRecord(trajectory="0", turn=0, new_prompt_tokens=500, at_s=0.0)
    assert isinstance(done, TurnRecord)
    assert (done.worker, done.role, done.prompt_tokens, done.cached_tokens) == ("a", Role.COLOCATED, 500, 0)
    assert done.prefill_s == pytest.approx(ENGINE.prefill.seconds(500))
    assert done.decode_s == pytest.approx(sum(ENGINE.decode.seconds(1, 500 + i) for i in range(1, 10)))
    assert (done.queue_s, done.transfer_s, done.environment_s, done.last) == (0.0, 0.0, None, False)
    assert asked_again.at_s == done.at_s + 2.5
    assert isinstance(done_again, TurnRecord)
    assert (done_again.prompt_tokens, done_again.cached_tokens) == (540, 509)
    assert (done_again.environment_s, done_again.last) == (2.5, True)


def test_a_hand_over_is_told_apart_from_waiting():
    split = pool_of(worker("p", Role.PREFILL), worker("d", Role.DECODE))
    first, second = [
        r for r in heard_from((turn(500, 10),), (turn(500, 10),), state=split) if isinstance(r, TurnRecord)
    ]
    assert (first.worker, first.role) == ("d", Role.DECODE)
    assert first.transfer_s == pytest.approx(ENGINE.transfer.seconds(500))
    assert second.transfer_s > first.transfer_s, "the link sends one cache at a time"


def test_an_interrupted_turn_sums_its_attempts():
    lost = Event(kind=EventKind.GPUS_LOST, workers=("a",), at_s=2.0)
    (done,) = [
        r
        for r in heard_from((turn(1000, 1000),), state=pool_of(worker("a"), worker("b")), event=lost)
        if isinstance(r, TurnRecord)
    ]
    assert done.worker == "b"
    assert done.prefill_s > 2 * ENGINE.prefill.seconds(1000)
    assert done.at_s == pytest.approx(done.queue_s + done.prefill_s + done.decode_s)


def test_transitions_are_samples_of_their_costs():
    heard: list[Telemetry] = []
    run = rollout(
        (turn(10, 10),), state=pool_of(worker("a"), worker("o", Role.INACTIVE, Zone.OVERLAP)), heard=heard.append
    )
    run.executor.apply(Borrow(worker="o", role=Role.COLOCATED, estimated_s=1.0))
    run.run(until_s=8.0)
    run.run(until_s=8.0)  # the batch, of one turn, ends before the transition does
    assert next(r for r in heard if isinstance(r, TransitionRecord)) == TransitionRecord(
        kind=TransitionKind.BORROW, seconds=COSTS.borrow_s, at_s=COSTS.borrow_s, borrowing=True, workers=("o",)
    )
