from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import EventKind
from pearl.errors import UsageError
from pearl.sim.arrivals import events_of
from pearl.sim.traces.availability import AvailabilityEvent, AvailabilityTrace, Change
from pearl.sim.traces.formats import read_availability
from pearl.sim.traces.recording import ReadOptions


def trace(*events: tuple[float, Change, tuple[str, ...]], gpus: int = 2) -> AvailabilityTrace:
    made = tuple(
        AvailabilityEvent(
            at_s=at_s, kind=kind, nodes=nodes, gpus_per_node=gpus, grace_s=30.0 * (kind is Change.RECLAIM)
        )
        for at_s, kind, nodes in events
    )
    return AvailabilityTrace(events=made, horizon_s=100.0)


def test_nodes_bring_workers_and_take_the_same_away():
    came, went = events_of(trace((1.0, Change.ADD, ("n", "m")), (5.0, Change.RECLAIM, ("m",))), gpu_type="H200")
    assert [w.id for w in came.added] == ["n/0", "n/1", "m/0", "m/1"]
    assert all(w.zone is Zone.PREEMPTIBLE and not w.started and w.gpu_type == "H200" for w in came.added)
    assert (went.kind, went.workers, went.within_s) == (EventKind.RECLAIM_NOTICE, ("m/0", "m/1"), 30.0)


def test_a_node_that_comes_back_brings_new_workers():
    back = [(1.0, Change.ADD, ("n",)), (5.0, Change.RECLAIM, ("n",)), (6.0, Change.ADD, ("n",))]
    _, _, again, gone = events_of(trace(*back, (9.0, Change.RECLAIM, ("n",)), gpus=1))
    assert [w.id for w in again.added] == ["n+1/0"]
    assert gone.workers == ("n+1/0",)


def test_a_worker_holds_all_its_gpus_and_none_is_left_over():
    (event,) = events_of(trace((0.0, Change.ADD, ("n",)), gpus=8), tensor_parallel=4)
    assert [(w.id, w.gpus) for w in event.added] == [("n/0", 4), ("n/1", 4)]
    with pytest.raises(UsageError, match=r"node 'n' has 6 GPUs: .* expected a multiple .* 4 \(in the trace given\)"):
        list(events_of(trace((0.0, Change.ADD, ("n",)), gpus=6), tensor_parallel=4))


FILES = {
    "rows.csv": ("at_s,event,node,gpus,grace_s\n0,add,a,4,\n# spare\n5,add,odd,3,\n9,reclaim,odd,3,30\n", 4),
    "late.csv": ("at_s,event,node,gpus,grace_s\n0,add,odd,4,\n2,reclaim,odd,4,0\n5,add,odd,3,\n9,end,,,\n", 4),
    "bamboo.csv": ("0,add,odd\n9000,add,even\n", 1),
    "parcae.txt": ('[0, "no-op", {"nodes": [], "duration": 1}]\n[5000, "add", {"nodes": ["odd"], "duration": 1}]\n', 2),
}


@pytest.mark.parametrize("name", FILES)
def test_a_node_of_a_file_whose_gpus_are_left_over_is_named_with_its_line(name, tmp_path):
    text, line = FILES[name]
    (tmp_path / name).write_text(text)
    read = read_availability(tmp_path / name, options=ReadOptions(gpus_per_node=3))
    for part in (read, read.segment(0.0, read.horizon_s)):
        with pytest.raises(UsageError) as raised:
            list(events_of(part, tensor_parallel=2))
        assert str(raised.value).startswith(f"{tmp_path / name}:{line}:1: node 'odd' has 3 GPUs")


def test_a_node_that_comes_back_is_not_taken_for_another_of_its_new_name():
    """`n+1` may be a node's own name, known already or only later; every arrival keeps workers of its own."""
    back = [(0.0, Change.ADD, ("n",)), (1.0, Change.RECLAIM, ("n",)), (3.0, Change.ADD, ("n",))]
    others = [(4.0, Change.ADD, ("n+1", "n+1+")), (5.0, Change.RECLAIM, ("n+1",)), (6.0, Change.ADD, ("n+1",))]
    events = list(events_of(trace(*back, *others, (7.0, Change.RECLAIM, ("n", "n+1")), gpus=1)))
    arrived = [worker.id for event in events for worker in event.added]
    assert len(arrived) == len(set(arrived)) == 5
    assert events[-1].workers == (events[2].added[0].id, events[5].added[0].id)
    assert {worker.node for worker in events[2].added} == {"n"}


@given(
    names=st.lists(st.text("n+1/", min_size=1, max_size=5), unique=True, min_size=1, max_size=6),
    times=st.integers(1, 4),
)
def test_no_two_arrivals_share_a_worker(names, times):
    kinds = [Change.ADD, Change.RECLAIM] * times
    events = list(events_of(trace(*((float(i), kind, tuple(names)) for i, kind in enumerate(kinds)))))
    arrived = [worker.id for event in events for worker in event.added]
    assert len(set(arrived)) == len(arrived) == 2 * times * len(names)
    assert arrived == [name for event in events for name in event.workers]


def test_a_node_of_the_cluster_cannot_come_and_go(tmp_path):
    (tmp_path / "t.csv").write_text("at_s,event,node,gpus,grace_s\n0,add,a,1,\n5,add,res-0,1,\n9,end,,,\n")
    here = Worker(id="res-0/0", node="res-0", zone=Zone.RESERVED, role=Role.COLOCATED, status=Status.ACTIVE)
    with pytest.raises(UsageError, match=r"t\.csv:3:1: node 'res-0' is in the reserved zone of the cluster; expected"):
        list(events_of(read_availability(tmp_path / "t.csv"), beside=(here,)))
    with pytest.raises(UsageError, match=r"node 'res-0' is in the reserved zone .*\(in the trace given\)"):
        list(events_of(trace((0.0, Change.ADD, ("res-0",))), beside=(here,)))
