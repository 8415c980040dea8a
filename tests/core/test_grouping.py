from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.grouping import ALL_TARGETS, current_role, group_workers, natural_key


def worker(name: str, role: Role = Role.DECODE, **fields: Any) -> Worker:
    status = Status.INACTIVE if role is Role.INACTIVE else Status.ACTIVE
    facts = {"node": name.partition("/")[0], "zone": Zone.PREEMPTIBLE, "status": status, **fields}
    return Worker(id=name, role=role, **facts)


def ids(*workers: Worker, by_node: bool = False, by_risk: bool = False) -> list[str]:
    return [g.group.id for g in group_workers(ClusterState(workers=workers), by_node=by_node, by_risk=by_risk)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "preemptible/decode"),
        ({"by_node": True}, "preemptible/node-3/decode"),
        ({"role": Role.INACTIVE, "started": False}, "preemptible/inactive/new"),
        ({"status": Status.TRANSITIONING}, "preemptible/decode/pinned"),
        ({"must_leave": True}, "preemptible/decode/leaving"),
        ({"status": Status.TRANSITIONING, "must_leave": True}, "preemptible/decode/leaving"),
        ({"reclaim_probability": 0.3}, "preemptible/decode"),
        ({"reclaim_probability": 0.3, "by_risk": True}, "preemptible/decode/risk=0.3"),
        ({"gpus": 2, "zone": Zone.OVERLAP}, "overlap/decode/x2"),
    ],
)
def test_ids(fields: dict[str, Any], expected: str) -> None:
    flags = {name: bool(fields.pop(name, False)) for name in ("by_node", "by_risk")}
    assert ids(worker("node-3/0", **fields), **flags) == [expected]


def test_targets_say_what_each_worker_may_become() -> None:
    state = ClusterState(
        workers=(
            worker("free"),
            worker("pinned", status=Status.TRANSITIONING, zone=Zone.RESERVED),
            worker("leaving", must_leave=True, status=Status.TRANSITIONING, zone=Zone.OVERLAP),
        )
    )
    targets = {g.workers[0]: g.group.targets for g in group_workers(state, by_node=False, by_risk=False)}
    assert targets == {"free": ALL_TARGETS, "pinned": (Role.DECODE,), "leaving": (Role.INACTIVE,)}


def test_an_inactive_status_means_the_inactive_role() -> None:
    assert current_role(worker("w", status=Status.INACTIVE)) is Role.INACTIVE
    assert current_role(worker("w", started=False)) is Role.INACTIVE
    assert current_role(worker("w", started=False, status=Status.TRANSITIONING)) is Role.DECODE


def test_workers_and_nodes_are_in_natural_order() -> None:
    names = [f"node-{i}/{j}" for i in (10, 2, 1) for j in (11, 3)]
    (group,) = group_workers(ClusterState(workers=tuple(map(worker, names))), by_node=False, by_risk=False)
    assert group.workers == ("node-1/3", "node-1/11", "node-2/3", "node-2/11", "node-10/3", "node-10/11")
    assert ids(*map(worker, names), by_node=True) == [f"preemptible/node-{i}/decode" for i in (1, 2, 10)]


def test_natural_keys_compare_across_shapes() -> None:
    assert sorted(["b", "2", "a10", "a9", ""], key=natural_key) == ["", "2", "a9", "a10", "b"]


workers = st.builds(
    worker,
    st.integers(0, 9999).map(lambda i: f"node-{i % 3}/{i}"),
    st.sampled_from(Role),
    zone=st.sampled_from(Zone),
    status=st.sampled_from(Status),
    gpus=st.sampled_from((1, 2)),
    started=st.booleans(),
    must_leave=st.booleans(),
    reclaim_probability=st.sampled_from((0.0, 0.25, 0.250001, 1 / 3)),
)


@given(
    pool=st.lists(workers, max_size=24, unique_by=lambda w: w.id),
    by_node=st.booleans(),
    by_risk=st.booleans(),
    rng=st.randoms(),
)
def test_groups_partition_the_workers_and_ignore_their_order(
    pool: list[Worker], by_node: bool, by_risk: bool, rng: random.Random
) -> None:
    groups = group_workers(ClusterState(workers=tuple(pool)), by_node=by_node, by_risk=by_risk)
    rng.shuffle(pool)
    assert groups == group_workers(ClusterState(workers=tuple(pool)), by_node=by_node, by_risk=by_risk)
    assert sorted(i for g in groups for i in g.workers) == sorted(w.id for w in pool)
    assert len({g.group.id for g in groups}) == len(groups)
    by_id = {w.id: w for w in pool}
    for g in groups:
        assert g.group.size == len(g.workers) > 0
        facts = {(m.zone, m.gpus, m.started, m.must_leave, current_role(m)) for m in map(by_id.__getitem__, g.workers)}
        assert facts == {(g.group.zone, g.group.gpus_per_worker, g.group.started, g.group.leaving, g.group.role)}
        assert {by_id[i].node for i in g.workers} == {g.group.node} or not by_node
        assert {by_id[i].reclaim_probability for i in g.workers} == {g.group.reclaim_probability} or not by_risk


def test_a_worker_changes_group_with_its_fate_alone() -> None:
    before, other = worker("node-1/0"), worker("node-1/1")
    after = replace(before, must_leave=True)
    assert ids(before, other) == ["preemptible/decode"]
    assert ids(after, other) == ["preemptible/decode", "preemptible/decode/leaving"]
