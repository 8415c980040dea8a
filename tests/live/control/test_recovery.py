from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pearl.core.cluster import Status, Zone
from pearl.core.event import Event, EventKind
from pearl.core.problem import Change
from pearl.errors import PolicyError
from pearl.live.control.ledger import Record
from pearl.live.control.policies import PolicyShelf
from pearl.live.control.recovery import LOOK_S, Beginning, begin, change_ages, look, shortened
from pearl.live.control.store import AddDecision, AddEvent, ControlStore
from pearl.policy.load import load_policy
from tests.live.control.fakes import FOREVER, FakeFleet, FakeWorker, now_s, virtually
from tests.live.control.rig import idle, make, run, state, worker


def notice(number: int, at_unix_s: float, within_s: float, *names: str) -> AddEvent:
    data = {"within_s": within_s}
    return AddEvent(number=number, at_unix_s=at_unix_s, kind="reclaim_notice", workers=names, data=data)


def test_a_grace_counts_from_its_notice() -> None:
    leaving = [worker(name, must_leave=True, leave_within_s=30.0) for name in "abc"]
    free = worker("d", must_leave=True)
    record = Record(state=state(*leaving, free))
    notices = [notice(1, 100.0, 30.0, "a", "b", "d"), notice(2, 110.0, 30.0, "b")]
    after = shortened(record, notices, now_unix_s=135.0).state.by_id
    assert [after[name].leave_within_s for name in "abcd"] == [0.0, 5.0, 30.0, None]
    assert shortened(record, notices, now_unix_s=90.0).state.by_id["a"].leave_within_s == 30.0, "clocks may go back"


def test_cooldowns_outlive_the_controller() -> None:
    store = ControlStore(None)
    for number, changes in ((1, ["mode"]), (2, ["ratio"]), (3, [])):
        decision = AddDecision(number=number, at_unix_s=10.0 * number, event=number, document={"changes": changes})
        store.write(AddEvent(number=number, at_unix_s=0, kind="batch_started", workers=(), data={}), decision)
    ages = change_ages(store, now_unix_s=50.0)
    assert {kind: (age.steps, age.seconds) for kind, age in ages.items()} == {
        Change.MODE: (2, 40.0),
        Change.RATIO: (1, 30.0),
    }


def test_looking_waits_for_a_transition_and_for_nobody_too_long() -> None:
    async def work() -> None:
        fleet = FakeFleet()
        for name, status in (("busy", Status.TRANSITIONING), ("ok", Status.ACTIVE), ("hangs", Status.ACTIVE)):
            fleet.workers[name] = FakeWorker(name=name, status=status, running=True)
        fleet.workers["hangs"].delays["report"] = FOREVER
        asyncio.get_running_loop().call_later(3.0, lambda: setattr(fleet.workers["busy"], "status", Status.INACTIVE))
        found = await look(fleet, ["busy", "ok", "hangs", "absent"])
        assert now_s() == pytest.approx(LOOK_S)
        assert found.keys() == {"busy", "ok", "hangs"}
        assert found["hangs"] is None
        assert found["busy"] is not None
        assert found["busy"].status is Status.INACTIVE

    virtually(work())


def test_a_first_start_ends_what_an_unknown_controller_left() -> None:
    async def work() -> None:
        fleet = FakeFleet()
        fleet.workers["old"] = FakeWorker(name="old", running=True)
        found = await begin(ControlStore(None), fleet, offered=[idle("old")], orphans=["old"], epoch=6)
        assert fleet.workers["old"].dead
        assert (found.resumed, found.record.state.epoch) == (False, 7)
        assert not found.record.state.by_id["old"].started

    virtually(work())


def test_a_worker_that_cannot_be_stopped_does_not_stop_the_start() -> None:
    async def work() -> None:
        fleet = FakeFleet()
        fleet.workers["old"] = FakeWorker(name="old", running=True, failures={"stop": RuntimeError("no")})
        found = await begin(ControlStore(None), fleet, offered=(), orphans=["old"])
        assert found.record.state.workers == ()

    virtually(work())


def test_the_newest_change_of_the_ledger_is_stored_in_the_next_turn(tmp_path: Path) -> None:
    async def work() -> None:
        start = Beginning(record=Record(state=state(worker("a"), worker("p", zone=Zone.PREEMPTIBLE))))
        rig = make(tmp_path, start)
        await rig.start(start)
        rig.controller.raise_event(Event(kind=EventKind.RECLAIM_NOTICE, workers=("p",), within_s=60.0))
        rig.ledger.put(replace(rig.ledger.state.by_id["a"], status=Status.TRANSITIONING))
        await asyncio.sleep(0)
        rig.kill()
        fleet = FakeFleet(alive={"n"})
        fleet.adopt(rig.ledger.state)
        fleet.workers["a"].status = Status.INACTIVE
        store = ControlStore(tmp_path / "controller.db")
        found = await begin(store, fleet, offered=())
        assert found.record.state.by_id["p"].must_leave
        left_s = found.record.state.by_id["p"].leave_within_s
        assert left_s is not None
        assert 50.0 < left_s < 60.0
        assert found.record.state.by_id["a"].status is Status.INACTIVE
        store.close()

    run(work())


HEAD = "apiVersion: pearl.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: x}\n"


@pytest.mark.parametrize("parent", ["/etc/passwd", "../other.yaml", "policy.yaml", "~/x"])
def test_a_policy_that_was_sent_reads_no_files(tmp_path: Path, parent: str) -> None:
    shelf = PolicyShelf(directory=tmp_path, store=ControlStore(None), started=load_policy("pearl"))
    with pytest.raises(PolicyError, match=r"^sent\.yaml:4:11: extends: .* is not at hand here; expected a built-in"):
        shelf.read(f"{HEAD}extends: [{parent}]\nspec: {{}}\n", name="sent.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_was_set_holds_until_the_controller_is_started_with_another(tmp_path: Path) -> None:
    store, started = ControlStore(None), load_policy("pearl")
    shelf = PolicyShelf(directory=tmp_path, store=store, started=started)
    policy, path = shelf.read(f"{HEAD}extends: [builtin/energy, pearl]\nspec: {{}}\n", name="sent.yaml")
    assert shelf.in_force() is started
    shelf.keep(path)
    assert PolicyShelf(directory=tmp_path, store=store, started=started).in_force().sha256 == policy.sha256
    other = load_policy("energy")
    assert PolicyShelf(directory=tmp_path, store=store, started=other).in_force() is other
    path.unlink()
    assert shelf.in_force() is started
