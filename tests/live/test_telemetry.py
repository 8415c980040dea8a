"""Telemetry of turns through the real router with stub engines, and of steps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pearl.cli.fit import fit
from pearl.core.cluster import Role
from pearl.core.telemetry import ArrivalRecord, EngineRecord, Stage, StepRecord, Telemetry, TurnRecord
from pearl.live.engine.steps import EngineStep, StepMeter
from pearl.live.protocol import Chunk, EngineLostError, FinishReason, PromptReport
from pearl.live.router.call import Call, Kind
from pearl.live.router.generation import Generation
from pearl.live.router.pool import Pool
from pearl.live.router.service import Router
from pearl.live.router.ticket import Ending, Ticket
from pearl.live.router.turns import TurnTimer
from pearl.live.telemetry import IDLE_SESSION_S, TurnTelemetry, evenly, poll_steps
from pearl.tracking.jsonl import parse_telemetry, telemetry_lines
from tests.live.router.rig import call, colocated, config, disaggregated, run
from tests.live.stub_engine import Misfortune, StubEngine, StubEngines
from tests.tracking.worlds import ENGINE, engine_steps


@dataclass(slots=True)
class Rig:
    router: Router
    engines: dict[str, StubEngine]
    telemetry: TurnTelemetry
    sent: list[Any]

    async def ask(self, prompt: list[int], *, tokens: int = 6, session: str | None = "s") -> list[int]:
        ticket = self.router.submit(call(prompt, tokens, session), None)
        try:
            await ticket.done()
            return ticket.generation.token_ids
        finally:
            self.router.leave(ticket)

    def turns(self) -> list[TurnRecord]:
        return [record for record in self.sent if isinstance(record, TurnRecord)]

    def arrivals(self) -> list[ArrivalRecord]:
        return [record for record in self.sent if isinstance(record, ArrivalRecord)]


@asynccontextmanager
async def rig(pool: Pool, *, step: int | None = 3, **fields: Any) -> AsyncIterator[Rig]:
    engines = {worker.id: StubEngine(name=worker.id, **fields) for worker in pool.state.workers}
    sent: list[Telemetry] = []
    loop = asyncio.get_running_loop()
    telemetry = TurnTelemetry(send=sent.append, now_s=loop.time, step=lambda: step)
    router = Router(config(), StubEngines(engines), turns=telemetry)
    await router.start()
    try:
        router.set_pool(pool)
        yield Rig(router, engines, telemetry, sent)
    finally:
        await router.stop()


def spent_s(record: TurnRecord) -> float:
    return record.queue_s + record.prefill_s + record.transfer_s + record.decode_s


def test_turns_of_a_session() -> None:
    async def work() -> None:
        async with rig(colocated("a"), pace_s=0.01) as r:
            first = await r.ask([1, 2, 3])
            await asyncio.sleep(0.05)
            assert r.turns() == []  # held back: it may be the last
            second = await r.ask([1, 2, 3, *first, 9, 9])
            r.telemetry.batch_ended(3)
            a, b = r.turns()
            assert [(x.trajectory, x.turn, x.step) for x in r.arrivals()] == [("s", 0, 3), ("s", 1, 3)]
            assert [x.new_prompt_tokens for x in r.arrivals()] == [3, 2]
            assert (a.turn, a.prompt_tokens, a.output_tokens, a.last) == (0, 3, 6, False)
            assert (b.turn, b.prompt_tokens, b.new_prompt_tokens, b.output_tokens, b.last) == (1, 11, 2, 6, True)
            assert a.environment_s is None
            assert b.environment_s is not None
            assert 0.05 <= b.environment_s < 0.5
            assert (a.worker, a.role, a.weight_version) == ("a", Role.COLOCATED, 1)
            assert spent_s(b) == pytest.approx(b.at_s - r.arrivals()[1].at_s, abs=0.02)
            assert b.decode_s >= 0.05
            assert b.prefill_s >= 0.01
            assert len(second) == 6
            r.telemetry.batch_ended(3)
            assert len(r.turns()) == 2

    run(work())


def test_requests_without_a_session_leave_nothing() -> None:
    async def work() -> None:
        async with rig(colocated("a")) as r:
            await r.ask([1, 2], session=None)
            r.telemetry.batch_ended(3)
            assert r.sent == []
            assert r.telemetry.lives() == ()

    run(work())


def test_an_interrupted_turn_is_one_record_whose_times_add_up() -> None:
    async def work() -> None:
        async with rig(colocated("a", "b"), pace_s=0.01) as r:
            for engine in r.engines.values():
                engine.script = deque([(3, Misfortune.CUT), (0, Misfortune.FAILED)])
            await r.ask([1, 2, 3], tokens=9)
            r.telemetry.batch_ended(3)
            (record,) = r.turns()
            assert (record.output_tokens, record.last) == (9, True)
            assert sum(len(engine.legs) for engine in r.engines.values()) >= 3
            assert spent_s(record) == pytest.approx(record.at_s - r.arrivals()[0].at_s, abs=0.02)
            assert record.decode_s >= 0.06
            assert record.prefill_s >= 0.02

    run(work())


def test_disaggregated_turns_have_transfer_time() -> None:
    async def work() -> None:
        async with rig(disaggregated(["p"], ["d"]), pace_s=0.01) as r:
            await r.ask([1, 2, 3], tokens=5)
            r.telemetry.batch_ended(3)
            (record,) = r.turns()
            assert (record.worker, record.role) == ("d", Role.DECODE)
            assert record.transfer_s >= 0.01
            assert record.prefill_s >= 0.01
            assert record.decode_s >= 0.04
            assert spent_s(record) == pytest.approx(record.at_s - r.arrivals()[0].at_s, abs=0.02)

    run(work())


def test_a_failed_turn_leaves_its_index_to_the_next() -> None:
    async def work() -> None:
        async with rig(colocated("a")) as r:
            r.engines["a"].script = deque([(0, Misfortune.REFUSED)])
            await r.ask([1, 2, 3])
            await r.ask([1, 2, 3])
            r.telemetry.batch_ended(3)
            assert [(x.turn, x.last) for x in r.turns()] == [(0, True)]

    run(work())


def test_where_trajectories_stand() -> None:
    async def work() -> None:
        async with rig(colocated("a"), pace_s=0.02) as r:
            await r.ask([1, 2, 3], session="outside", tokens=1)
            asking = asyncio.ensure_future(r.ask([4, 5], session="decodes", tokens=20))
            await asyncio.sleep(0.1)
            lives = {life.trajectory: life for life in r.telemetry.lives()}
            assert lives["outside"].stage is Stage.ENVIRONMENT
            assert lives["outside"].context_tokens == 4
            assert lives["outside"].stage_s > 0.05
            assert lives["decodes"].stage is Stage.DECODE
            assert lives["decodes"].context_tokens == 2 + lives["decodes"].output_tokens > 2
            await asking

    run(work())


def test_records_survive_as_lines() -> None:
    async def work() -> None:
        async with rig(colocated("a")) as r:
            for number in range(5):
                await r.ask([1, 2, 3], session=f"s{number}")
            r.telemetry.batch_ended(3)
            assert parse_telemetry("".join(telemetry_lines(r.sent)), file="x") == tuple(r.sent)

    run(work())


def test_what_a_live_cluster_writes_is_fitted(tmp_path: Path) -> None:
    """Turns from the real router over stub engines, and steps of a known engine."""
    lines: list[str] = []

    async def trajectory(r: Rig, number: int) -> None:
        context = [number, 1, 2, 3]
        for _ in range(3):
            context += await r.ask(context, session=f"t{number}")
            context += [9, 9, 9]
            await asyncio.sleep(0.01)

    async def work() -> None:
        async with rig(disaggregated(["p"], ["d", "e"]), pace_s=0.002) as r:
            await asyncio.gather(*(trajectory(r, number) for number in range(12)))
            r.telemetry.batch_ended(3)
            engine = EngineRecord(worker="d", model="m", gpu="g", kv_tokens=9, kv_bytes_per_token=2.0, at_s=0.0)
            steps = engine_steps(ENGINE, "d", number=80, rng=Random(1), step=3)
            lines.extend(telemetry_lines([engine, *r.sent, *steps]))

    run(work())
    file = tmp_path / "telemetry.jsonl"
    file.write_text("".join(lines))
    result = CliRunner().invoke(fit, [str(file)])
    assert result.exit_code == 0, result.output
    found = yaml.safe_load(result.output)
    assert found["workload"]["trajectories"] == 12
    assert found["workload"]["turns"] == 3
    assert found["workload"]["first_prompt_tokens"] == 4
    assert found["workload"]["new_prompt_tokens"] == 3
    assert found["workload"]["output_tokens"] == 6
    assert found["engine"]["kv_decode_tokens"] == 9


# The timer


def test_what_engines_say_divides_the_wait_for_the_first_token() -> None:
    timer = TurnTimer(since_s=0.0)
    timer.dispatched(1.0, worker="a", role=Role.COLOCATED)
    timer.answered(4.0, PromptReport(cached_tokens=7, queue_s=2.0, prefill_s=0.5))
    timer.answered(5.0, PromptReport(cached_tokens=9, queue_s=9.0, prefill_s=0.5))
    timer.ended(6.0)
    assert (timer.queue_s, timer.prefill_s, timer.decode_s, timer.cached_tokens) == (3.0, 1.0, 2.0, 7)


def test_a_pull_is_transfer_and_says_nothing_of_the_cache() -> None:
    timer = TurnTimer(since_s=0.0)
    timer.dispatched(0.0, worker="p", role=Role.PREFILL, keeps=True)
    timer.answered(1.0, PromptReport(cached_tokens=5, queue_s=0.25, prefill_s=0.75))
    timer.ended(1.5)
    timer.dispatched(2.0, worker="d", role=Role.DECODE, pulls=True)
    timer.answered(3.0, PromptReport(cached_tokens=99, queue_s=0.75, prefill_s=0.25))
    timer.ended(4.0)
    assert (timer.queue_s, timer.prefill_s, timer.transfer_s, timer.decode_s) == (0.75, 1.25, 0.75, 1.25)
    assert (timer.cached_tokens, timer.worker, timer.role) == (5, "d", Role.DECODE)


def test_a_lost_leg_is_waiting() -> None:
    timer = TurnTimer(since_s=0.0)
    timer.dispatched(1.0, worker="a", role=Role.COLOCATED)
    timer.ended(3.0)
    assert (timer.queue_s, timer.prefill_s, timer.stage) == (3.0, 0.0, Stage.QUEUED)


# Sessions by hand


@dataclass(slots=True)
class Hand:
    """Turns without a router."""

    step: int | None = 1
    now: float = 0.0
    sent: list[Any] = field(default_factory=list)
    telemetry: TurnTelemetry = field(init=False)
    asked: int = 0

    def __post_init__(self) -> None:
        self.telemetry = TurnTelemetry(send=self.sent.append, now_s=lambda: self.now, step=lambda: self.step)

    def ticket(self, prompt: int, output: int, session: str = "s") -> Ticket:
        self.asked += 1
        made: Call = call(range(prompt), output, session)
        assert made.kind is Kind.COMPLETION
        generation = Generation(prompt=made.prompt, sampling=made.sampling)
        generation.accept(generation.begin_leg(), Chunk(token_ids=tuple(range(output))), weight_version=0)
        timer = TurnTimer(since_s=self.now)
        return Ticket(
            id=str(self.asked), call=made, generation=generation, accepted_unix_s=0.0, timer=timer, keep=False
        )

    def turn(self, prompt: int, output: int, session: str = "s") -> None:
        ticket = self.ticket(prompt, output, session)
        self.telemetry.asked(ticket)
        self.now += 1
        self.telemetry.done(ticket, Ending(finish=FinishReason.LENGTH))


def test_a_shorter_prompt_than_the_context_counts_whole() -> None:
    hand = Hand()
    hand.turn(10, 5)
    hand.turn(7, 5)
    hand.telemetry.batch_ended(1)
    assert [r.new_prompt_tokens for r in hand.sent if isinstance(r, TurnRecord)] == [10, 7]


def test_a_turn_that_ends_after_its_batch_is_sent_at_once() -> None:
    hand = Hand()
    ticket = hand.ticket(4, 4)
    hand.telemetry.asked(ticket)
    hand.telemetry.batch_ended(1)
    hand.telemetry.done(ticket, Ending(finish=FinishReason.STOP))
    assert [(r.turn, r.last) for r in hand.sent if isinstance(r, TurnRecord)] == [(0, True)]
    assert hand.telemetry.lives() == ()


def test_batches_end_apart_and_sessions_keep_their_own() -> None:
    hand = Hand()
    hand.turn(4, 4, "old")
    hand.step = 2
    hand.turn(9, 4, "old")
    hand.turn(4, 4, "new")
    hand.telemetry.batch_ended(1)
    ended = [r for r in hand.sent if isinstance(r, TurnRecord)]
    assert [(r.trajectory, r.turn, r.step, r.last) for r in ended] == [("old", 0, 1, False), ("old", 1, 1, True)]
    hand.telemetry.batch_ended(2)
    last = hand.sent[-1]
    assert (last.trajectory, last.step, last.last) == ("new", 2, True)


def test_outside_of_batches_silence_ends_a_trajectory() -> None:
    hand = Hand(step=None)
    hand.turn(4, 4)
    hand.telemetry.expire()
    assert not any(isinstance(r, TurnRecord) for r in hand.sent)
    hand.now += IDLE_SESSION_S + 1
    hand.telemetry.expire()
    assert hand.sent[-1].last is True
    hand.telemetry.expire()
    assert len(hand.sent) == 2


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pearl.live.telemetry.MAX_SESSIONS", 3)
    hand = Hand()
    for number in range(5):
        hand.turn(4, 4, f"s{number}")
    assert len(hand.telemetry.lives()) == 3
    assert [(r.trajectory, r.last) for r in hand.sent if isinstance(r, TurnRecord)] == [("s0", False), ("s1", False)]


def test_a_restart_takes_trajectories_up() -> None:
    before = Hand()
    before.turn(10, 5, "between")
    before.turn(10, 5, "lost")
    open_turn = before.ticket(10, 0, "under way")
    before.telemetry.asked(open_turn)
    # Of `lost`, the last record did not reach the store.
    before.telemetry.flush()
    stored = [r for r in before.sent if not (isinstance(r, TurnRecord) and r.trajectory == "lost")]

    after = Hand()
    after.telemetry.restore(stored, step=1)
    again = after.ticket(10, 5, "under way")
    after.telemetry.resumed(again)
    after.telemetry.done(again, Ending(finish=FinishReason.STOP))
    after.turn(18, 5, "between")
    after.turn(18, 5, "lost")
    after.turn(30, 5, "lost")
    after.telemetry.batch_ended(1)
    turns = [(r.trajectory, r.turn, r.new_prompt_tokens, r.last) for r in after.sent if isinstance(r, TurnRecord)]
    assert sorted(turns) == [("between", 1, 3, True), ("lost", 2, 7, True), ("under way", 0, 10, True)]


def test_a_restart_after_which_nothing_follows_sends_the_last_turn_as_such() -> None:
    before = Hand()
    before.turn(10, 5)
    before.telemetry.flush()
    after = Hand()
    after.telemetry.restore(before.sent, step=1)
    after.telemetry.batch_ended(1)
    (record,) = after.sent
    assert record == replace(before.sent[-1], last=True)


# Steps


def scheduled(new: dict[str, int], known: dict[str, int], tokens: dict[str, int]) -> Any:
    """What vLLM's scheduler gives, as far as the meter reads it."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=n) for name, n in new.items()],
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(known), num_computed_tokens=list(known.values())),
        num_scheduled_tokens=tokens,
    )


def test_a_step_is_what_was_scheduled_and_takes_until_its_output() -> None:
    now = [10.0]
    meter = StepMeter(now_s=lambda: now[0], unix_s=lambda: 1000.0 + now[0])
    meter.scheduled(
        scheduled({"p": 32, "pulled": 99}, {"d": 50, "chunk": 64}, {"p": 8, "pulled": 1, "d": 1, "chunk": 16})
    )
    now[0] = 10.5
    step = meter.ended()
    assert step == EngineStep(
        ended_unix_s=1010.5,
        seconds=0.5,
        batch=2,
        context_tokens=100 + 51,
        prompts=2,
        new_tokens=24,
        cached_tokens=96,
    )
    assert EngineStep.of(step.row()) == step


def test_steps_composed_ahead_count_from_the_end_of_the_last_and_idle_time_counts_nowhere() -> None:
    now = [0.0]
    meter = StepMeter(now_s=lambda: now[0])
    decode = scheduled({}, {"d": 5}, {"d": 1})
    meter.scheduled(decode)
    now[0] = 1.0
    meter.scheduled(decode)
    now[0] = 3.0
    assert getattr(meter.ended(), "seconds", None) == 3.0
    now[0] = 5.0
    assert getattr(meter.ended(), "seconds", None) == 2.0
    now[0] = 50.0
    meter.scheduled(scheduled({}, {}, {}))
    now[0] = 60.0
    assert meter.ended() is None
    meter.scheduled(decode)
    now[0] = 61.0
    assert getattr(meter.ended(), "seconds", None) == 1.0
    assert meter.ended() is None


@dataclass(slots=True)
class FakeWorker:
    """A worker that measured some steps, or is dead."""

    records: tuple[StepRecord, ...] = ()
    dead: bool = False

    async def describe(self) -> EngineRecord:
        raise NotImplementedError

    async def steps(self) -> tuple[StepRecord, ...]:
        if self.dead:
            raise EngineLostError("dead")
        return self.records


def test_polled_steps_are_stamped_thinned_and_survive_a_dead_worker() -> None:
    records = tuple(StepRecord(worker="a", seconds=0.01, at_s=1000.0 + i, batch=1) for i in range(10))
    workers = {"a": FakeWorker(records), "b": FakeWorker(dead=True)}
    found = asyncio.run(poll_steps(workers, step=4, offset_s=-1000.0, most=5))
    assert [(record.at_s, record.step) for record in found] == [(0.0, 4), (2.0, 4), (4.0, 4), (6.0, 4), (8.0, 4)]


def test_evenly_keeps_what_is_few() -> None:
    assert evenly([1, 2, 3], 3) == [1, 2, 3]
