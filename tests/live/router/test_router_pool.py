"""The pool: replaced as a whole, by newer epochs alone, and the same after a round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import Role, Status
from pearl.errors import UsageError
from pearl.live.router.pool import Pool, StalePoolError, drain_worker, replace_pool
from pearl.live.router.pool_wire import pool_from_json, pool_to_json
from tests.live.router.rig import colocated, pool, worker


@given(st.permutations(range(1, 7)), st.integers(0, 5))
def test_out_of_order_and_repeated_states_end_at_the_newest(order: list[int], again: int) -> None:
    states = {epoch: colocated(*"abcdefg"[:epoch], epoch=epoch) for epoch in order}
    current = Pool()
    for epoch in [*order, order[again]]:
        before = current.epoch
        try:
            current = replace_pool(current, states[epoch])
        except StalePoolError:
            assert epoch < before
        assert current.epoch >= before
    assert current == states[6]


def test_another_state_under_the_same_epoch_is_refused() -> None:
    with pytest.raises(StalePoolError, match="propose epoch 2 or later"):
        replace_pool(colocated("a"), colocated("b"))


def test_draining_raises_the_epoch_once() -> None:
    once = drain_worker(colocated("a", "b"), "a")
    assert once.epoch == 2
    assert [w.id for w in once.dispatchable] == ["b"]
    assert once.may_run("a")
    assert drain_worker(once, "a") is once


def test_what_runs_may_go_on_where_the_worker_still_serves() -> None:
    current = pool(
        worker("leaving", must_leave=True),
        worker("asleep", status=Status.INACTIVE),
        worker("idle", Role.INACTIVE),
        worker("old"),
        versions={"leaving": 2, "asleep": 2, "idle": 2, "old": 1},
        oldest=2,
    )
    assert [w.id for w in current.state.workers if current.may_run(w.id)] == ["leaving"]
    assert current.dispatchable == ()
    assert not current.may_run("unknown")


@given(
    st.lists(st.tuples(st.sampled_from(Role), st.sampled_from(Status), st.booleans(), st.integers(0, 9)), max_size=5),
    st.integers(0, 9),
)
def test_json_keeps_the_pool(facts: list[tuple[Role, Status, bool, int]], oldest: int) -> None:
    workers = [worker(f"w{i}", role, status, must_leave=leaving) for i, (role, status, leaving, _) in enumerate(facts)]
    before = pool(*workers, epoch=3, versions={f"w{i}": f[3] for i, f in enumerate(facts)}, oldest=oldest)
    assert pool_from_json(pool_to_json(before)) == before


def test_every_fault_of_a_pool_is_told() -> None:
    data = pool_to_json(colocated("a", "b"))
    data["workers"][0]["role"] = "boss"
    data["workers"][1]["wieght_version"] = 1
    with pytest.raises(UsageError) as caught:
        pool_from_json(data)
    assert "workers.0.role" in str(caught.value)
    assert "workers.1.wieght_version" in str(caught.value)
    twice = pool_to_json(colocated("a", "b"))
    twice["workers"][1]["id"] = "a"
    with pytest.raises(UsageError, match="twice: a"):
        pool_from_json(twice)
