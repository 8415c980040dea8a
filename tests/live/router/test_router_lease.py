"""KV handles: given up before the engine gives them up, used once, and only for the weights they were made with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import Role, Status
from pearl.live.protocol import KvHandle
from pearl.live.router.lease import Lease, LeaseTable, Refusal, lease_end_s, refusal
from tests.live.router.rig import disaggregated, pool, worker

HANDLE = KvHandle(params={"id": 1})
LEASE = Lease(handle=HANDLE, source="p", weight_version=1, expires_s=50.0)
POOL = disaggregated(["p"], ["d"])


@given(
    dispatched_s=st.floats(0, 1e6),
    prefill_s=st.floats(0, 1e3),
    announced_s=st.none() | st.floats(1, 100),
    engine_lease_s=st.floats(1, 100),
    margin_s=st.floats(0.1, 10),
)
def test_a_lease_always_ends_before_the_engines(
    dispatched_s: float, prefill_s: float, announced_s: float | None, engine_lease_s: float, margin_s: float
) -> None:
    """The engine's clock starts some time after the dispatch, and the pull takes up to the margin."""
    handle = KvHandle(params={}, lease_s=announced_s)
    end_s = lease_end_s(handle, dispatched_s=dispatched_s, engine_lease_s=engine_lease_s, margin_s=margin_s)
    engine_ends_s = dispatched_s + prefill_s + (engine_lease_s if announced_s is None else announced_s)
    assert end_s + margin_s <= engine_ends_s + 1e-6


def test_a_live_lease_is_dispatched_once() -> None:
    table = LeaseTable()
    table.grant("r", LEASE)
    assert table.take("r", pool=POOL, decode="d", now_s=49.9) == HANDLE
    assert table.take("r", pool=POOL, decode="d", now_s=49.9) is Refusal.NONE


def test_an_expired_lease_is_refused_and_forgotten() -> None:
    table = LeaseTable()
    table.grant("r", LEASE)
    assert table.take("r", pool=POOL, decode="d", now_s=50.0) is Refusal.EXPIRED
    assert len(table) == 0


def test_a_lease_needs_its_source_though_that_may_drain() -> None:
    draining = pool(worker("p", Role.PREFILL, Status.TRANSITIONING), worker("d", Role.DECODE))
    asleep = pool(worker("p", Role.PREFILL, Status.INACTIVE), worker("d", Role.DECODE))
    assert refusal(LEASE, pool=draining, decode="d", now_s=0) is None
    assert refusal(LEASE, pool=asleep, decode="d", now_s=0) is Refusal.SOURCE_GONE
    assert refusal(LEASE, pool=disaggregated(["q"], ["d"]), decode="d", now_s=0) is Refusal.SOURCE_GONE


def test_a_lease_needs_its_weights_on_both_sides() -> None:
    for changed in ("p", "d"):
        endpoints = {**POOL.endpoints, changed: replace(POOL.endpoints[changed], weight_version=2)}
        updated = replace(POOL, endpoints=endpoints)
        assert refusal(LEASE, pool=updated, decode="d", now_s=0) is Refusal.WEIGHT_VERSION


def test_leases_of_a_lost_worker_go_with_it() -> None:
    table = LeaseTable()
    table.grant("r", LEASE)
    table.grant("s", replace(LEASE, source="q"))
    table.drop_from("p")
    assert table.take("r", pool=POOL, decode="d", now_s=0) is Refusal.NONE
    assert len(table) == 1
