"""The lease in its real Ray actor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pearl.live.control.lease import LEASE_S, Lease, LeaseError, RayLeases

pytestmark = [pytest.mark.live, pytest.mark.slow]

ray: Any = pytest.importorskip("ray", reason="Ray is not installed")
CLUSTER = "lease-test"
NAMESPACE = "pearl-lease-test"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


def lease(owner: str, lease_s: float = 3.0) -> Lease:
    return Lease(authority=RayLeases(cluster=CLUSTER, namespace=NAMESPACE), owner=owner, lease_s=lease_s)


def actors() -> list[str]:
    return [str(actor["name"]) for actor in ray.util.list_named_actors(all_namespaces=True)]


def test_it_passes_from_one_to_the_next_and_leaves_nothing() -> None:
    async def work() -> None:
        first, second = lease("a"), lease("b")
        assert await first.acquire(after_term=6) == 7
        with pytest.raises(LeaseError, match="another controller, a, holds the lease"):
            await second.acquire()
        await asyncio.sleep(4)
        assert first.valid, "renewed"
        await first.release()
        assert await second.acquire(after_term=7) == 8
        await second.release()
        async with asyncio.timeout(10):
            while actors():
                await asyncio.sleep(0.1)

    asyncio.run(work())


def test_a_lease_outlives_its_actor() -> None:
    async def work() -> None:
        mine = lease("a", LEASE_S)
        term = await mine.acquire()
        ray.kill(ray.get_actor(f"{CLUSTER}.lease", namespace=NAMESPACE))
        await asyncio.sleep(LEASE_S + 1)
        assert mine.valid
        assert mine.term == term
        with pytest.raises(LeaseError, match="another controller, a, holds the lease"):
            await lease("b").acquire()
        await mine.release()

    asyncio.run(work())
