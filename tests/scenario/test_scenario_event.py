from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone, count_gpus
from pearl.core.event import Event, EventKind, apply_event
from pearl.errors import ScenarioError
from pearl.scenario.event import parse_event
from tests.scenario.cases import ENGINE, small

STATE = small().state


ROLES, ZONES, KINDS = st.sampled_from(Role), st.sampled_from(Zone), st.sampled_from(EventKind)
WITHIN_S = st.none() | st.floats(0, 60)
NAMES = st.lists(st.sampled_from([f"n/{i}" for i in range(8)]), unique=True)
"""Made once: to make a strategy takes as long as to draw from it."""


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    def worker(index: int) -> Worker:
        leaving = draw(st.booleans())
        role = draw(ROLES)
        return Worker(
            id=f"n/{index}",
            node="n",
            zone=draw(ZONES),
            role=role,
            status=Status.INACTIVE if role is Role.INACTIVE else Status.ACTIVE,
            must_leave=leaving,
            leave_within_s=draw(WITHIN_S) if leaving else None,
        )

    return ClusterState(workers=tuple(worker(i) for i in range(draw(st.integers(0, 6)))), epoch=draw(st.integers(0, 9)))


@st.composite
def events(draw: st.DrawFn) -> Event:
    new = Worker(
        id="new/0", node="new", zone=Zone.PREEMPTIBLE, role=Role.INACTIVE, status=Status.INACTIVE, started=False
    )
    return Event(
        kind=draw(KINDS),
        workers=tuple(draw(NAMES)),
        within_s=draw(WITHIN_S),
        added=(new,) if draw(st.booleans()) else (),
    )


@given(states(), events())
def test_an_event_applied_twice_changes_nothing_the_second_time(state: ClusterState, event: Event):
    once = apply_event(state, event)
    assert apply_event(once, event) is once


@given(states(), events())
def test_every_change_raises_the_epoch_and_nothing_else_does(state: ClusterState, event: Event):
    after = apply_event(state, event)
    assert after.epoch == state.epoch + (after.workers != state.workers)


@given(states(), events())
def test_an_event_touches_only_what_it_names(state: ClusterState, event: Event):
    after = apply_event(state, event)
    training = event.kind in (EventKind.TRAINING_STARTED, EventKind.TRAINING_FINISHED)
    for worker in state.workers:
        named = worker.id in event.workers or (training and not event.workers)
        if not named or (training and worker.zone is not Zone.OVERLAP):
            assert after.by_id[worker.id] == worker
        elif worker.id in after.by_id:
            changed = after.by_id[worker.id]
            assert (changed.role, changed.status, changed.zone) == (worker.role, worker.status, worker.zone)


def test_a_reclaim_notice_marks_and_a_loss_removes():
    noticed = apply_event(STATE, parse_event("reclaim_notice:spot-0/0,spot-1;within=30s", STATE))
    leaving = [worker for worker in noticed.workers if worker.must_leave]
    assert [worker.id for worker in leaving] == ["spot-0/0", "spot-1/0", "spot-1/1"]
    assert {worker.leave_within_s for worker in leaving} == {30.0}
    assert noticed.counts.label() == "1P2D"
    lost = apply_event(noticed, parse_event("gpus_lost:spot-1", noticed))
    assert [worker.node for worker in lost.workers if worker.must_leave] == ["spot-0"]
    assert lost.epoch == STATE.epoch + 2


def test_training_takes_the_overlap_zone_and_gives_it_back():
    started = apply_event(STATE, parse_event("training_started;within=20s", STATE))
    assert all(worker.must_leave == (worker.zone is Zone.OVERLAP) for worker in started.workers)
    assert {w.leave_within_s for w in started.workers if w.must_leave} == {20.0}
    finished = apply_event(started, parse_event("training_finished", started))
    assert finished.workers == STATE.workers


def test_training_leaves_workers_under_a_reclaim_notice_as_they_are():
    name = next(worker.id for worker in STATE.workers if worker.zone is Zone.OVERLAP)
    notice = Event(kind=EventKind.RECLAIM_NOTICE, workers=(name,), within_s=30.0)
    for kind in (EventKind.TRAINING_STARTED, EventKind.TRAINING_FINISHED):
        noticed = apply_event(STATE, notice)
        after = apply_event(noticed, Event(kind=kind, within_s=20.0), leaving={name})
        assert after.by_id[name] == noticed.by_id[name]


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
def test_added_gpus_are_inactive_preemptible_workers_of_the_clusters_size(tensor_parallel: int):
    state = small(
        ("engine: qwen3-8b-h200", f"engine: {ENGINE % tensor_parallel}"),
        ("tensor_parallel: 1", f"tensor_parallel: {tensor_parallel}"),
        ("gpus_per_node: 2, role: decode", "gpus_per_node: 4, role: decode"),
        ("gpus_per_node: 2, role: prefill", "gpus_per_node: 4, role: prefill"),
    ).state
    event = parse_event("gpus_added:4;node=spot-9;at=3s", state)
    assert event.at_s == 3.0
    assert event.workers == tuple(worker.id for worker in event.added)
    assert count_gpus(event.added) == 4
    assert {w.gpus for w in event.added} == {tensor_parallel}
    assert all(
        (w.zone, w.role, w.status, w.started, w.gpu_type)
        == (Zone.PREEMPTIBLE, Role.INACTIVE, Status.INACTIVE, False, "X")
        for w in event.added
    )
    assert count_gpus(apply_event(state, event).workers) == count_gpus(state.workers) + 4


def test_added_gpus_take_free_ids_of_their_node():
    event = parse_event("gpus_added:2;node=spot-0", STATE)
    assert event.workers == ("spot-0/2", "spot-0/3")
    assert {worker.reclaim_probability for worker in event.added} == {0.05}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown kind ''"),
        ("reclaim:spot-0", "unknown kind 'reclaim'"),
        ("reclaim_notic:spot-0", "did you mean 'reclaim_notice'"),
        ("reclaim_notice;within=30s", "needs the workers"),
        ("reclaim_notice:spot-7/0", "no worker or node 'spot-7/0' (did you mean 'spot-1/0'?)"),
        ("reclaim_notice:spot-0;within=30", "a time needs a unit"),
        ("reclaim_notice:spot-0;within=-3s", "must not be negative"),
        ("reclaim_notice:spot-0;whithin=3s", "did you mean 'within'"),
        ("reclaim_notice:spot-0;within=3s;within=4s", "given twice"),
        ("reclaim_notice:spot-0;within", "is not KEY=VALUE"),
        ("gpus_lost:spot-0;within=3s", "has no deadline"),
        ("gpus_added:4", "needs gpus and node"),
        ("gpus_added:-4;node=x", "needs a number of GPUs"),
        ("gpus_added:999999;node=x", "needs a number of GPUs"),
        ("gpus_added:2;node=reserved-0", "is not preemptible"),
        ("operator;node=x", "belong to gpus_added"),
        ("operator:spot-0", "names no workers"),
        ("training_started:spot-0", "touches the overlap zone alone"),
    ],
)
def test_a_malformed_event_is_one_clear_error(text: str, message: str):
    with pytest.raises(ScenarioError) as error:
        parse_event(text, STATE)
    assert message in str(error.value)
    assert "such as reclaim_notice:node-2/0;within=30s" in str(error.value)


@given(st.sampled_from(EventKind), st.text(max_size=30))
def test_any_text_is_an_event_or_a_scenario_error(kind: EventKind, tail: str):
    try:
        event = parse_event(f"{kind}{tail}", STATE)
    except ScenarioError:
        return
    assert event.kind in EventKind


def test_workers_of_two_gpus_leave_no_gpu_over():
    state = small(
        ("engine: qwen3-8b-h200", f"engine: {ENGINE % 2}"), ("tensor_parallel: 1", "tensor_parallel: 2")
    ).state
    with pytest.raises(ScenarioError, match="3 GPUs leave 1 over"):
        parse_event("gpus_added:3;node=spot-9", state)
