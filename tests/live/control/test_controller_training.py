"""The trainer's calls and an operator's drains: what they mark, what they wait for, and what undoes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pearl.core.cluster import Zone
from pearl.errors import UsageError
from pearl.live.control.pipeline import StaleError
from tests.live.control.rig import POOL, beginning, lent, make, run


def test_training_gets_the_overlap_zone_and_gives_it_back(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1"), lent("o2")))
        await rig.start(beginning(*POOL, lent("o1"), lent("o2")))
        trainer = rig.controller.trainer
        handover = await trainer.begin(step=7, deadline_s=10, force=True)
        assert set(handover.released) == {"o1", "o2"}
        assert await trainer.begin(step=7, deadline_s=10, force=True) == handover
        assert trainer.running
        assert all(w.must_leave for w in rig.ledger.state.workers if w.zone is Zone.OVERLAP)
        with pytest.raises(StaleError):
            await trainer.begin(step=6, deadline_s=10, force=True)
        assert trainer.finish(step=7, window_s=60)
        assert not trainer.finish(step=7, window_s=60)
        assert not any(w.must_leave for w in rig.ledger.state.workers)
        with pytest.raises(StaleError, match="training step 7 is over"):
            await trainer.begin(step=7, deadline_s=10, force=True)
        with pytest.raises(StaleError):
            trainer.finish(step=6, window_s=None)
        await rig.idle()
        kinds = [e.kind for e in rig.store.events(after=0, limit=9)]
        assert kinds == ["training_started", "training_finished"]
        await rig.aclose()

    run(work())


def test_calls_of_a_trainer_out_of_order(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        trainer = rig.controller.trainer
        assert trainer.finish(step=3, window_s=None), "the finish overtook the begin"
        with pytest.raises(StaleError):
            await trainer.begin(step=3, deadline_s=1, force=True)
        assert not trainer.running
        await trainer.begin(step=4, deadline_s=1, force=True)
        await trainer.begin(step=6, deadline_s=1, force=True)
        assert trainer.training.running == 6, "the finish of step 4 was lost"
        with pytest.raises(StaleError):
            trainer.finish(step=4, window_s=None)
        assert trainer.running
        await rig.aclose()

    run(work())


def test_a_begin_that_times_out_or_is_cancelled_is_rolled_back(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        trainer, rig.executor.slow_s = rig.controller.trainer, 60.0
        with pytest.raises(TimeoutError):
            await trainer.begin(step=1, deadline_s=0.05, force=False)
        assert not trainer.running
        assert not rig.ledger.state.by_id["o1"].must_leave

        one = asyncio.create_task(trainer.begin(step=1, deadline_s=50, force=False))
        two = asyncio.create_task(trainer.begin(step=1, deadline_s=50, force=False))
        await asyncio.sleep(0.05)
        assert rig.ledger.state.by_id["o1"].must_leave
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert trainer.running, "the other one still waits"
        two.cancel()
        await asyncio.gather(two, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert not trainer.running
        assert rig.executor.cancelled == 1
        assert not rig.ledger.state.by_id["o1"].must_leave

        waiting = asyncio.create_task(trainer.begin(step=1, deadline_s=50, force=False))
        await asyncio.sleep(0.05)
        trainer.finish(step=1, window_s=None)
        with pytest.raises(StaleError, match="finished before it began"):
            await waiting
        assert not rig.ledger.state.by_id["o1"].must_leave
        await rig.aclose()

    run(work())


def test_callers_of_a_step_that_was_overtaken_are_not_counted_for_the_newer_one(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        trainer, rig.executor.slow_s = rig.controller.trainer, 0.1
        older = asyncio.create_task(trainer.begin(step=4, deadline_s=50, force=False))
        await asyncio.sleep(0.05)
        rig.executor.slow_s = 40.0
        newer = asyncio.create_task(trainer.begin(step=6, deadline_s=50, force=False))
        await older
        assert trainer.training.running == 6
        newer.cancel()
        await asyncio.gather(newer, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert not trainer.running, "nobody waits for step 6 any more"
        assert not rig.ledger.state.by_id["o1"].must_leave
        await rig.aclose()

    run(work())


def test_training_undoes_neither_a_drain_nor_a_reclaim(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1"), lent("o2"), lent("o3")))
        await rig.start(beginning(*POOL, lent("o1"), lent("o2"), lent("o3")))
        drains, trainer, ledger = rig.controller.drains, rig.controller.trainer, rig.ledger

        def told(name: str) -> tuple[bool, float | None]:
            return ledger.state.by_id[name].must_leave, ledger.state.by_id[name].leave_within_s

        rig.controller.reclaim(workers=["o1"], grace_s=60)
        await trainer.begin(step=1, deadline_s=5, force=True)
        await drains.drain("o2", deadline_s=5)
        assert (told("o1"), told("o2"), told("o3")) == ((True, 60.0), (True, None), (True, 5.0))
        trainer.finish(step=1, window_s=None)
        assert (told("o1"), told("o2"), told("o3")) == ((True, 60.0), (True, None), (False, None))
        await trainer.begin(step=2, deadline_s=5, force=True)
        assert drains.undo("o2")
        assert told("o2") == (True, None), "the trainer has it"
        trainer.finish(step=2, window_s=None)
        assert (told("o1"), told("o2")) == ((True, 60.0), (False, None))
        await rig.idle()
        await rig.aclose()

    run(work())


def test_an_operator_drains_and_takes_it_back(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        drains, trainer = rig.controller.drains, rig.controller.trainer
        await drains.drain("w1", deadline_s=10)
        assert not rig.ledger.state.by_id["w1"].started
        await drains.drain("w1", deadline_s=10)
        await drains.drain("o1", deadline_s=10)
        await trainer.begin(step=1, deadline_s=1, force=True)
        trainer.finish(step=1, window_s=None)
        assert rig.ledger.state.by_id["o1"].must_leave, "the end of training does not undo a drain"
        assert drains.undo("o1")
        assert not drains.undo("o1")
        assert not rig.ledger.state.by_id["o1"].must_leave
        rig.controller.reclaim(workers=["w1"], grace_s=60)
        assert not drains.undo("w1"), "it is reclaimed by now, which nobody can take back"
        assert rig.ledger.state.by_id["w1"].must_leave
        with pytest.raises(UsageError, match="no worker 'x'"):
            drains.undo("x")
        await rig.idle()
        await rig.aclose()

    run(work())


def test_undoing_a_drain_while_the_trainer_has_the_zone_lends_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL, lent("o1")))
        await rig.start(beginning(*POOL, lent("o1")))
        await rig.controller.drains.drain("o1", deadline_s=10)
        await rig.controller.trainer.begin(step=1, deadline_s=1, force=True)
        assert rig.controller.drains.undo("o1")
        assert rig.ledger.state.by_id["o1"].must_leave
        rig.controller.trainer.finish(step=1, window_s=None)
        assert not rig.ledger.state.by_id["o1"].must_leave
        await rig.aclose()

    run(work())


def test_a_drain_waits_until_its_deadline(tmp_path: Path) -> None:
    async def work() -> None:
        rig = make(tmp_path, beginning(*POOL), held=True)
        await rig.start(beginning(*POOL))
        with pytest.raises(TimeoutError):
            await rig.controller.drains.drain("w1", deadline_s=0.1)
        assert rig.ledger.state.by_id["w1"].must_leave
        await rig.aclose()

    run(work())
