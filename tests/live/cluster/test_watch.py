"""Watchers over fake nodes and fake workers, in virtual time. No Ray and no engine runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pearl.core.cluster import ClusterState, Status, Worker, Zone
from pearl.core.event import Event, EventKind, apply_event
from pearl.live.cluster.load import load_cluster
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.offers import capacity, offer, too_few
from pearl.live.control.fleet import Node
from pearl.live.control.watch import ANSWER_S, HealthWatcher, NodeWatcher, Seen, judge, look_at_nodes
from pearl.live.protocol import EngineFailedError, EngineLostError, EngineUnavailableError
from tests.live.control.fakes import FOREVER, FakeWorker, now_s, virtually


@pytest.fixture(scope="module")
def cluster() -> LiveCluster:
    return load_cluster("demo-cpu", {"zones": "{preemptible: {max_workers: 3, min_workers: 1}}"}, state_dir=Path("x"))


def node(name: str, id_: str = "", **workers: int) -> Node:
    return Node(name=name, id=id_ or f"id-{name}", workers=workers)


def ids(workers: Sequence[Worker]) -> list[str]:
    return [worker.id for worker in workers]


# Offers


def test_a_node_offers_what_its_resources_or_its_label_say(cluster: LiveCluster):
    by_label = replace(
        load_cluster("h100-qwen3-8b", {"zones": "{overlap: {label: team=train, workers_per_node: 8}}"}), name="x"
    )
    raw = {"Resources": {"CPU": 64.0, "pearl_reserved": 2.0, "pearl_overlap": 3.0}, "Labels": {"team": "train"}}
    assert capacity(cluster.zones, raw) == {"reserved": 2, "overlap": 3}
    assert capacity(by_label.zones, raw) == {"reserved": 2, "overlap": 8}
    assert capacity(cluster.zones, {"Resources": {"CPU": 4.0}}) == {}
    assert capacity(cluster.zones, {"Resources": {"pearl_reserved": 1e9}}) == {"reserved": 1024}


def test_workers_are_numbered_on_each_node_and_limited_by_zone(cluster: LiveCluster):
    offered = offer(cluster, [node("b", preemptible=2), node("a", preemptible=2, reserved=1)])
    assert ids(offered) == ["a/0", "a/1", "a/2", "b/0"]
    assert [worker.zone for worker in offered] == [Zone.RESERVED, *[Zone.PREEMPTIBLE] * 3]
    assert {(worker.started, worker.status, worker.gpu_type) for worker in offered} == {(False, Status.INACTIVE, "CPU")}
    assert ids(offer(cluster, [node("a", preemptible=2, reserved=1)], offered)) == []


def test_a_zone_with_too_few_workers_says_what_is_missing(cluster: LiveCluster):
    (fault,) = too_few(cluster, offer(cluster, [node("a", reserved=1)]))
    assert str(fault) == (
        "zone preemptible: the nodes offer 0 workers; expected at least 1 (start nodes with resource pearl_preemptible)"
    )
    assert too_few(cluster, offer(cluster, [node("a", preemptible=1)])) == []


# Nodes


def begin(cluster: LiveCluster, *nodes: Node) -> tuple[Seen, ClusterState]:
    seen, events = look_at_nodes(cluster, Seen(), nodes, ClusterState(workers=()), now_s=0.0)
    state = ClusterState(workers=())
    for event in events:
        state = apply_event(state, event)
    return seen, state


def test_the_same_nodes_are_no_event(cluster: LiveCluster):
    nodes = (node("a", reserved=1), node("s", preemptible=2))
    seen, state = begin(cluster, *nodes)
    assert look_at_nodes(cluster, seen, nodes, state, now_s=1.0) == (seen, ())


def test_a_node_that_joins_adds_its_workers(cluster: LiveCluster):
    seen, state = begin(cluster, node("a", reserved=1))
    seen, events = look_at_nodes(cluster, seen, (node("a", reserved=1), node("s", preemptible=2)), state, now_s=5.0)
    (event,) = events
    assert (event.kind, event.at_s, event.workers) == (EventKind.GPUS_ADDED, 5.0, ("s/0", "s/1"))
    assert ids(event.added) == ["s/0", "s/1"]


def test_a_node_that_is_gone_takes_all_its_workers_those_of_an_operator_too(cluster: LiveCluster):
    seen, state = begin(cluster, node("a", reserved=1), node("s", preemptible=1))
    by_hand = replace(state.by_id["s/0"], id="s/by-hand")
    state = state.with_workers([*state.workers, by_hand])
    seen, (event,) = look_at_nodes(cluster, seen, (node("a", reserved=1),), state, now_s=1.0)
    assert (event.kind, event.workers) == (EventKind.GPUS_LOST, ("s/0", "s/by-hand"))
    assert ids(seen.granted) == ["a/0"]


def test_a_node_that_came_back_between_two_looks_is_lost_and_then_added(cluster: LiveCluster):
    seen, state = begin(cluster, node("s", "first", preemptible=1))
    seen, events = look_at_nodes(cluster, seen, (node("s", "second", preemptible=1),), state, now_s=1.0)
    assert [(event.kind, event.workers) for event in events] == [
        (EventKind.GPUS_LOST, ("s/0",)),
        (EventKind.GPUS_ADDED, ("s/0",)),
    ]
    assert ids(seen.granted) == ["s/0"]


def test_a_worker_that_was_reclaimed_is_not_offered_again_while_its_node_lives(cluster: LiveCluster):
    nodes = (node("s", preemptible=1),)
    seen, state = begin(cluster, *nodes)
    left = apply_event(state, Event(kind=EventKind.GPUS_LOST, workers=("s/0",)))
    seen, events = look_at_nodes(cluster, seen, nodes, left, now_s=1.0)
    assert events == ()
    seen, events = look_at_nodes(cluster, seen, (), left, now_s=2.0)
    assert events == ()
    _, events = look_at_nodes(cluster, seen, nodes, left, now_s=3.0)
    assert [event.kind for event in events] == [EventKind.GPUS_ADDED]


def test_the_limit_of_a_zone_never_takes_a_worker_back_and_its_room_is_used_again(cluster: LiveCluster):
    first = node("s9", preemptible=3)
    seen, state = begin(cluster, first)
    both = (node("s1", preemptible=2), first)
    seen, events = look_at_nodes(cluster, seen, both, state, now_s=1.0)
    assert events == ()
    _, events = look_at_nodes(cluster, seen, both[:1], state, now_s=2.0)
    assert [(event.kind, len(event.workers)) for event in events] == [
        (EventKind.GPUS_LOST, 3),
        (EventKind.GPUS_ADDED, 2),
    ]


def test_the_watcher_polls_and_skips_looks_that_ray_does_not_answer(cluster: LiveCluster):
    looks: list[tuple[Node, ...] | None] = [
        (node("a", reserved=1),),
        None,
        (node("a", reserved=1), node("s", preemptible=1)),
        None,
    ]
    told: list[Event] = []

    async def nodes() -> tuple[Node, ...]:
        answer = looks.pop(0) if looks else (node("a", reserved=1),)
        if answer is None:
            raise EngineUnavailableError("Ray did not answer")
        return answer

    async def main() -> None:
        seen, state = begin(cluster, node("a", reserved=1))
        state = state.with_workers([*state.workers, *offer(cluster, [node("s", preemptible=1)])])
        watcher = NodeWatcher(
            cluster=cluster, nodes=nodes, state=lambda: state, tell=told.append, now_s=now_s, seen=seen
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watcher.run(), 10.5 * cluster.limits.health_every_s)

    virtually(main())
    every_s = cluster.limits.health_every_s
    assert [(event.kind, event.at_s) for event in told] == [
        (EventKind.GPUS_ADDED, 2 * every_s),
        (EventKind.GPUS_LOST, 4 * every_s),
    ]


# Health


@pytest.mark.parametrize("status", list(Status))
def test_a_dead_or_unfit_engine_is_sick_in_any_status(status: Status):
    assert judge(EngineLostError("w died"), status=status, silent=1) == "w died"
    report = FakeWorker("w", unfit="update failed", running=True)._report()
    assert judge(report, status=status, silent=0) == "update failed"
    assert judge(replace(report, unfit=None), status=status, silent=0) is None


@pytest.mark.parametrize(
    ("status", "silent", "expected"),
    [
        (Status.ACTIVE, 2, None),
        (Status.ACTIVE, 3, "no answer in 3 looks"),
        (Status.INACTIVE, 3, "no answer in 3 looks"),
        (Status.TRANSITIONING, 30, None),
    ],
)
def test_silence_counts_after_three_looks_and_not_in_transition(status: Status, silent: int, expected: str | None):
    assert judge(TimeoutError(), status=status, silent=silent) == expected
    failed = EngineFailedError("w: no answer to report")
    assert judge(failed, status=status, silent=silent) == (expected and str(failed))


def pool(*names: str, status: Status = Status.ACTIVE) -> tuple[dict[str, FakeWorker], ClusterState]:
    workers = {name: FakeWorker(name, running=True) for name in names}
    placed = offer(load_cluster("demo-cpu"), [node("n", reserved=1)])[0]
    state = ClusterState(workers=tuple(replace(placed, id=name, started=True, status=status) for name in names))
    return workers, state


def watch(
    workers: dict[str, FakeWorker], state: ClusterState, *, for_s: float, change: dict[float, object] | None = None
) -> dict[str, tuple[float, str]]:
    """When and why each worker was told of, within `for_s` seconds; at the times of `change` its callables run."""
    told: dict[str, tuple[float, str]] = {}

    def sick(worker_id: str, because: str) -> None:
        assert worker_id not in told, "told twice"
        told[worker_id] = (now_s(), because)

    async def main() -> None:
        watcher = HealthWatcher(started=lambda: workers, state=lambda: state, sick=sick, every_s=1.0)
        for at_s, do in (change or {}).items():
            assert callable(do)
            asyncio.get_running_loop().call_later(at_s, do)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watcher.run(), for_s)

    virtually(main())
    return told


def test_a_slow_worker_delays_no_other_and_a_dead_one_is_told_once():
    workers, state = pool("slow", "dies", "well")
    workers["slow"].delays["report"] = 0.9 * ANSWER_S
    told = watch(workers, state, for_s=20, change={4.5: lambda: setattr(workers["dies"], "dead", True)})
    assert set(told) == {"dies"}
    assert told["dies"][0] == pytest.approx(5.0)


def test_a_worker_that_never_answers_is_sick_after_three_looks():
    workers, state = pool("silent")
    workers["silent"].delays["report"] = FOREVER
    told = watch(workers, state, for_s=60)
    assert 3 * ANSWER_S <= told["silent"][0] <= 3 * ANSWER_S + 3
    assert told["silent"][1] == "no answer in 3 looks"


def test_a_good_answer_ends_a_silence():
    workers, state = pool("w")
    worker = workers["w"]
    worker.failures["report"] = EngineFailedError("busy")
    change = {second + 0.5: lambda: worker.failures.pop("report", None) for second in range(1, 30, 3)}
    back = {second + 1.5: lambda: worker.failures.update(report=EngineFailedError("b")) for second in range(1, 30, 3)}
    assert watch(workers, state, for_s=30, change={**change, **back}) == {}


def test_a_worker_that_is_not_started_yet_is_left_alone_and_a_new_handle_is_watched_afresh():
    workers, state = pool("w")
    first, second = workers.pop("w"), FakeWorker("w", running=True)
    first.dead = True
    told = watch(workers, state, for_s=5)
    assert told == {}

    workers["w"] = first
    told = watch(workers, state, for_s=9, change={0.5: lambda: workers.update(w=second)})
    assert told["w"][0] == 0.0
    assert "report" in second.calls


def test_an_answer_about_a_handle_that_was_replaced_meanwhile_counts_for_nothing():
    workers, state = pool("w")
    workers["w"].delays["report"] = 5.0
    workers["w"].failures["report"] = EngineLostError("gone")
    assert watch(workers, state, for_s=20, change={2.5: lambda: workers.update(w=FakeWorker("w", running=True))}) == {}


def test_an_engine_that_is_ended_on_purpose_during_a_look_did_not_die():
    workers, state = pool("w")
    workers["w"].delays["report"] = 0.9
    workers["w"].failures["report"] = EngineLostError("gone")
    assert watch(workers, state, for_s=20, change={0.5: lambda: workers.pop("w")}) == {}
