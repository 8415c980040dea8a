from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.event import Event, EventKind
from pearl.core.telemetry import BatchRecord
from pearl.live.control.pipeline import Batch, Batches, PipelineScheduler, Rules, StaleError, waits_for
from pearl.live.control.store import ControlStore
from tests.live.control.fakes import now_s, virtually
from tests.live.control.rig import FixedObserver, world


@given(step=st.integers(0, 50), latest=st.integers(0, 50), stale=st.integers(0, 5), training=st.booleans())
def test_staleness_is_bounded(step: int, latest: int, stale: int, training: bool) -> None:
    rules = Rules(max_staleness=stale, synchronous=False)
    may = waits_for(step, rules, latest=latest, training=training) is None
    assert may == (step - latest <= stale)


def test_synchronous_rollout_waits_for_training() -> None:
    assert waits_for(1, Rules(), latest=1, training=True) == "the training step that runs"
    assert waits_for(1, Rules(), latest=1, training=False) is None
    assert waits_for(1, Rules(max_staleness=1, synchronous=False), latest=0, training=True) is None


def test_one_batch_at_a_time_and_none_twice() -> None:
    batches = Batches().begun(Batch(step=3, trajectories=8, since_s=10.0))
    batches.check(3)
    with pytest.raises(StaleError, match="batch 3 is open: finish it before batch 4 begins"):
        batches.check(4)
    with pytest.raises(StaleError, match="batch 2 is not open"):
        batches.finished(2, at_s=11.0, predicted_s=None)
    over = batches.finished(3, at_s=12.5, predicted_s=2.0)
    assert over.last is not None
    assert (over.last.makespan_s, over.last.predicted_s) == (2.5, 2.0)
    assert over.finished(3, at_s=99.0, predicted_s=9.0) is over
    with pytest.raises(StaleError, match="batch 3 is over"):
        over.check(3)
    over.check(4)


@dataclass
class VirtualClock:
    now_s: Callable[[], float] = now_s


@dataclass
class Pipe:
    store: ControlStore = field(default_factory=lambda: ControlStore(None))
    latest: int = 0
    training: bool = False
    events: list[Event] = field(default_factory=list)
    records: list[BatchRecord] = field(default_factory=list)

    def scheduler(self, rules: Rules) -> PipelineScheduler:
        return PipelineScheduler(
            rules=rules,
            store=self.store,
            observer=FixedObserver(world=world()),
            clock=VirtualClock(),
            latest=lambda: self.latest,
            training=lambda: self.training,
            raise_event=self._raise,
            record=self.records.append,
        )

    def _raise(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events)


def test_a_batch_begins_when_its_weights_are_out() -> None:
    async def work() -> None:
        pipe = Pipe()
        pipeline = pipe.scheduler(Rules())
        await pipeline.begin(step=0, trajectories=4, deadline_s=1)
        await asyncio.sleep(7)
        assert pipeline.finish(step=0).makespan_s == pytest.approx(7)
        waiting = asyncio.create_task(pipeline.begin(step=1, trajectories=4, deadline_s=100))
        twice = asyncio.create_task(pipeline.begin(step=1, trajectories=4, deadline_s=100))
        await asyncio.sleep(50)
        pipe.latest, pipe.training = 1, True
        pipeline.look()
        await asyncio.sleep(1)
        assert not waiting.done()
        pipe.training = False
        pipeline.look()
        assert await waiting == await twice
        assert pipeline.batches.step == 1
        kinds = [event.kind for event in pipe.events]
        assert kinds == [EventKind.BATCH_STARTED, EventKind.PROFILE_UPDATED, EventKind.BATCH_STARTED]
        assert [(r.predicted_s, r.step) for r in pipe.records] == [(10.0, 0)]

    virtually(work())


def test_a_batch_that_waits_too_long_says_for_what() -> None:
    async def work() -> None:
        pipeline = Pipe().scheduler(Rules(max_staleness=1, synchronous=False))
        with pytest.raises(TimeoutError, match=r"batch 4 still waits for weights 3 \(newest: 0\)"):
            await pipeline.begin(step=4, trajectories=4, deadline_s=9)
        assert now_s() == pytest.approx(9)
        await pipeline.begin(step=1, trajectories=4, deadline_s=9)

    virtually(work())


def test_finishing_twice_is_one_answer_and_a_restart_knows_the_batch() -> None:
    async def work() -> None:
        pipe = Pipe()
        pipeline = pipe.scheduler(Rules())
        begun = await pipeline.begin(step=0, trajectories=4, deadline_s=1)
        await asyncio.sleep(3)
        again = pipe.scheduler(Rules())
        assert again.batches.open == begun
        first = again.finish(step=0)
        await asyncio.sleep(3)
        assert pipe.scheduler(Rules()).finish(step=0) == first
        assert len(pipe.records) == 1

    virtually(work())
