from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.event import EventKind, apply_event
from pearl.live.control.ledger import Record
from pearl.live.control.reconcile import Reconciled, reconcile
from pearl.live.engine.backend import Counters
from pearl.live.engine.engine import EngineReport
from tests.live.control.rig import idle, worker


def report(name: str, status: Status = Status.ACTIVE, **fields: object) -> EngineReport:
    counters = Counters(computed=0, cached=0, transferred=0, kv_usage=0.0)
    facts = {"weight_version": 0, "asleep": False, "open_legs": 0, "unfit": None, **fields}
    return EngineReport(worker=name, pid=1, status=status, counters=counters, **facts)  # type: ignore[arg-type]


def record(*workers: Worker, **fields: object) -> Record:
    return Record(state=ClusterState(workers=workers, epoch=5), **fields)  # type: ignore[arg-type]


def after(outcome: Reconciled, name: str) -> Worker:
    return outcome.record.state.by_id[name]


def test_a_worker_that_serves_goes_on() -> None:
    before = record(worker("a", Role.PREFILL), worker("b", Role.DECODE))
    outcome = reconcile(before, found={"a": report("a", weight_version=3), "b": report("b")}, nodes={"n"})
    assert outcome.record.state.workers == before.state.workers
    assert outcome.record.state.epoch > before.state.epoch
    assert outcome.record.versions == {"a": 3, "b": 0}
    assert (outcome.stop, outcome.events, dict(outcome.because)) == ((), (), {})


def test_a_drain_in_the_middle_is_taken_back_unless_it_must_leave() -> None:
    draining = worker("a", Role.DECODE, Status.TRANSITIONING)
    leaving = worker("b", Role.DECODE, Status.TRANSITIONING, must_leave=True, leave_within_s=9.0)
    outcome = reconcile(record(draining, leaving), found={"a": report("a"), "b": report("b")}, nodes={"n"})
    assert after(outcome, "a").status is Status.ACTIVE
    assert after(outcome, "b") == leaving


def test_what_is_not_admitted_is_idle_and_what_sleeps_sleeps() -> None:
    up = worker("a", Role.COLOCATED, Status.TRANSITIONING)
    lent = worker("b", Role.DECODE, zone=Zone.OVERLAP)
    found = {"a": report("a", Status.INACTIVE), "b": report("b", Status.INACTIVE, asleep=True)}
    outcome = reconcile(record(up, lent), found=found, nodes={"n"})
    assert outcome.stop == ()
    assert [(w.role, w.status, w.started) for w in outcome.record.state.workers] == [
        (Role.INACTIVE, Status.INACTIVE, True)
    ] * 2


def test_an_overlap_worker_that_is_awake_and_does_not_serve_frees_its_memory() -> None:
    lent = worker("a", Role.DECODE, Status.TRANSITIONING, zone=Zone.OVERLAP)
    outcome = reconcile(record(lent), found={"a": report("a", Status.INACTIVE)}, nodes={"n"})
    assert outcome.stop == ("a",)
    assert not after(outcome, "a").started


def test_gone_unfit_silent_and_unknown_workers() -> None:
    before = record(worker("gone"), worker("unfit"), worker("silent"), worker("far", node="dead"), idle("off"))
    found = {"unfit": report("unfit", unfit="update failed"), "silent": None, "stranger": report("stranger")}
    outcome = reconcile(before, found=found, nodes={"n"}, offered=[idle("off"), idle("new")])
    assert not any(w.started for w in outcome.record.state.workers)
    assert set(outcome.stop) == {"unfit", "silent", "stranger"}
    lost, added = outcome.events
    assert (lost.kind, lost.workers) == (EventKind.GPUS_LOST, ("far",))
    assert (added.kind, [w.id for w in added.added]) == (EventKind.GPUS_ADDED, ["new"])
    assert "update failed" in outcome.because["unfit"]
    assert "off" not in outcome.because


def test_too_old_weights_do_not_serve() -> None:
    outcome = reconcile(
        record(worker("a"), latest=4, oldest=3), found={"a": report("a", weight_version=2)}, nodes={"n"}
    )
    assert after(outcome, "a").role is Role.INACTIVE
    assert after(outcome, "a").started
    assert outcome.record.versions == {"a": 2}


def test_a_group_comes_up_as_a_whole_or_not_at_all() -> None:
    starting = [worker(name, Role.DECODE, Status.TRANSITIONING) for name in "abc"]
    before = record(worker("s"), *starting)
    half = {"s": report("s"), "a": report("a", Status.INACTIVE), "b": None}
    outcome = reconcile(before, found=half, nodes={"n"}, groups=[("a", "b"), ("c",)])
    assert set(outcome.stop) == {"a", "b"}
    assert [w.id for w in outcome.record.state.workers if w.started] == ["s"]

    whole = {name: report(name, Status.INACTIVE) for name in "sabc"} | {"s": report("s")}
    outcome = reconcile(before, found=whole, nodes={"n"}, groups=[("a", "b"), ("c",)])
    assert outcome.stop == ()
    assert all(w.started for w in outcome.record.state.workers)


def test_a_member_that_serves_is_in_whatever_became_of_its_group() -> None:
    before = record(worker("a", Role.DECODE), worker("b", Role.DECODE, Status.TRANSITIONING))
    outcome = reconcile(before, found={"a": report("a")}, nodes={"n"}, groups=[("a", "b")])
    assert after(outcome, "a").status is Status.ACTIVE


_NAMES = "abcde"


@st.composite
def situations(draw: st.DrawFn) -> tuple[Record, dict[str, EngineReport | None], set[str], list[list[str]]]:
    workers = []
    for name in draw(st.lists(st.sampled_from(_NAMES), unique=True)):
        started = draw(st.booleans())
        role = draw(st.sampled_from(list(Role))) if started else Role.INACTIVE
        status = draw(st.sampled_from(list(Status))) if role is not Role.INACTIVE else Status.INACTIVE
        facts = {"started": started, "must_leave": draw(st.booleans()), "node": draw(st.sampled_from(["n", "m"]))}
        workers.append(worker(name, role, status, zone=draw(st.sampled_from(list(Zone))), **facts))
    found: dict[str, EngineReport | None] = {}
    for name in draw(st.lists(st.sampled_from([*_NAMES, "x"]), unique=True)):
        asleep = draw(st.booleans())
        status = Status.INACTIVE if asleep else draw(st.sampled_from(list(Status)))
        unfit = draw(st.sampled_from([None, None, "broken"]))
        version = draw(st.integers(0, 3))
        said = report(name, status, asleep=asleep, unfit=unfit, weight_version=version)
        found[name] = draw(st.sampled_from([said, said, None]))
    nodes = set(draw(st.lists(st.sampled_from(["n", "m"]), unique=True)))
    groups = draw(st.lists(st.lists(st.sampled_from(_NAMES), min_size=1, unique=True), max_size=2))
    return record(*workers, oldest=draw(st.integers(0, 2))), found, nodes, groups


@given(situations())
def test_what_holds_of_every_beginning(
    situation: tuple[Record, dict[str, EngineReport | None], set[str], list[list[str]]],
) -> None:
    remembered, found, nodes, groups = situation
    outcome = reconcile(remembered, found=found, nodes=nodes, groups=groups)
    state = outcome.record.state
    assert [w.id for w in state.workers] == [w.id for w in remembered.state.workers]
    kept = {name: said for name, said in found.items() if name not in outcome.stop}
    assert kept.keys() == {w.id for w in state.workers if w.started}, "a process lives exactly where the record says so"
    for w in state.workers:
        before = remembered.state.by_id[w.id]
        assert (w.must_leave, w.node, w.zone) == (before.must_leave, before.node, before.zone)
        assert not (w.started and w.node not in nodes)
        said = kept.get(w.id)
        if w.started:
            assert said is not None
            assert said.unfit is None
            assert outcome.record.versions[w.id] == said.weight_version
        if w.role is not Role.INACTIVE:
            assert said is not None
            assert said.status is Status.ACTIVE
            assert w.role is before.role
            assert said.weight_version >= remembered.oldest
        if w.zone is Zone.OVERLAP and w.started and w.role is Role.INACTIVE:
            assert said is not None
            assert said.asleep, "the trainer's memory is free"
        serving = before.status is Status.ACTIVE and before.role is not Role.INACTIVE and w.started
        if serving and said is not None and said.status is Status.ACTIVE and said.weight_version >= remembered.oldest:
            assert w == before, "who serves goes on"
    for event in outcome.events:
        state = apply_event(state, event)
    assert all(w.node in nodes for w in state.workers)


@given(situations())
def test_reconciling_again_changes_nothing(
    situation: tuple[Record, dict[str, EngineReport | None], set[str], list[list[str]]],
) -> None:
    remembered, found, nodes, groups = situation
    once = reconcile(remembered, found=found, nodes=nodes, groups=groups)
    left = {name: said for name, said in found.items() if name not in once.stop}
    again = reconcile(once.record, found=left, nodes=nodes, groups=[])
    assert again.stop == ()
    assert again.record.state.workers == once.record.state.workers
    assert replace(again.record, state=once.record.state) == once.record
