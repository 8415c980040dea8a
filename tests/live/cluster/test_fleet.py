"""Parts of the fleet that need no Ray: names of nodes, what an engine is told, ports, and the actor's start."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from pearl.errors import UsageError
from pearl.live.cluster.load import load_cluster
from pearl.live.cluster.offers import offer
from pearl.live.control.fleet import Node
from pearl.live.engine import vllm_backend
from pearl.live.engine.ports import claim_ports
from pearl.live.fleet import engine_config, name_nodes
from pearl.live.protocol import EngineUnavailableError
from pearl.live.worker import WorkerActor
from tests.live.worker.fake_backend import FakeBackend

LOOPBACK = "127.0.0.1"


def raw(id_: str, name: str = "", *, label: str | None = None, alive: bool = True) -> dict[str, Any]:
    labels = {} if label is None else {"pearl-node": label}
    return {"NodeID": id_ * 14, "NodeName": name, "Labels": labels, "Alive": alive, "Resources": {}}


def named(*nodes: dict[str, Any], known: dict[str, str] | None = None) -> dict[str, str]:
    return {name: node["NodeID"][:4] for name, node in name_nodes(nodes, known or {}).items()}


def test_a_node_goes_by_its_label_then_by_rays_name_then_by_its_id():
    assert named(raw("aaaa", "10.0.0.1", label="n0"), raw("bbbb", "10.0.0.2"), raw("cccc", "fe80::1")) == {
        "n0": "aaaa",
        "10.0.0.2": "bbbb",
        "cccccccccccc": "cccc",
    }
    assert named(raw("aaaa", "x", alive=False)) == {}


def test_a_node_keeps_its_name_when_another_of_that_name_joins():
    known = {"bbbb" * 14: "n"}
    assert named(raw("aaaa", "n"), raw("bbbb", "n"), known=known) == {"n": "bbbb", "aaaaaaaaaaaa": "aaaa"}
    assert named(raw("aaaa", "n"), known={"aaaa" * 14: "aaaaaaaaaaaa"}) == {"aaaaaaaaaaaa": "aaaa"}


def test_an_engine_is_told_what_the_cluster_file_says():
    cluster = load_cluster("demo-cpu", {"ports.kv": "{first: 7000, count: 8}", "engine.kv_lease": "20s"})
    (worker,) = offer(cluster, [Node(name="n", id="i", workers={"reserved": 1})])
    config = engine_config(cluster, worker, kv_host="10.1.2.3")
    assert (config.worker, config.model, config.weight_version) == ("n/0", cluster.model.path, 0)
    assert (config.kv_host, config.kv_port, config.kv_port_count, config.kv_lease_s) == ("10.1.2.3", 7000, 8, 20)


# Ports


def free_range(size: int) -> range:
    """Consecutive ports that nothing listens at."""
    for first in range(21_000, 30_000, size):
        try:
            claim_ports(LOOPBACK, range(first, first + size), size).close()
        except EngineUnavailableError:
            continue
        return range(first, first + size)
    raise AssertionError("no free ports")


def test_a_claimed_port_is_not_chosen_again_until_it_is_given_up():
    ports = free_range(3)
    first = claim_ports(LOOPBACK, ports)
    second = claim_ports(LOOPBACK, ports)
    assert (first.ports[0], second.ports[0]) == (ports[0], ports[1])
    first.close()
    first.close()
    third = claim_ports(LOOPBACK, ports)
    assert third.ports[0] == ports[0]
    second.close()
    third.close()


def test_a_port_that_someone_listens_at_is_not_chosen():
    ports = free_range(2)
    with socket.create_server((LOOPBACK, ports[0])):
        claim = claim_ports(LOOPBACK, ports)
        assert list(claim.ports) == [ports[1]]
        with pytest.raises(EngineUnavailableError, match=rf"{ports[0]} to {ports[1]} are taken; widen ports\.kv"):
            claim_ports(LOOPBACK, ports)
        claim.close()


def test_tensor_parallel_workers_take_consecutive_ports():
    ports = free_range(4)
    first, second = claim_ports(LOOPBACK, ports, 2), claim_ports(LOOPBACK, ports, 2)
    assert (list(first.ports), list(second.ports)) == (list(ports[:2]), list(ports[2:]))
    first.close()
    second.close()


@pytest.mark.skipif(sys.platform != "linux", reason="claims are of Linux")
def test_the_claim_of_a_process_that_is_killed_ends_with_it():
    ports = free_range(1)
    code = (
        "import time; from pearl.live.engine.ports import claim_ports;"
        f"claim = claim_ports('{LOOPBACK}', range({ports[0]}, {ports[0] + 1})); print('held', flush=True);"
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(EngineUnavailableError):
        claim_ports(LOOPBACK, ports)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    claim_ports(LOOPBACK, ports).close()


# The actor, over a fake of vLLM


def actor(monkeypatch: pytest.MonkeyPatch, start: Any) -> WorkerActor:
    monkeypatch.setattr(vllm_backend, "start_vllm", start)
    ports = free_range(1)
    cluster = load_cluster("demo-cpu", {"ports.kv": f"{{first: {ports[0]}, count: 1}}"})
    (worker,) = offer(cluster, [Node(name="n", id="i", workers={"reserved": 1})])
    return WorkerActor(engine_config(cluster, worker, kv_host=LOOPBACK))


def test_starts_at_once_share_one_engine_and_close_waits_for_it(monkeypatch: pytest.MonkeyPatch):
    starts: list[FakeBackend] = []

    async def start(config: Any, roles: Any) -> FakeBackend:
        await asyncio.sleep(0.05)
        starts.append(FakeBackend())
        return starts[-1]

    async def main() -> None:
        worker = actor(monkeypatch, start)
        first = asyncio.create_task(worker.start())
        given_up = asyncio.create_task(worker.start())
        await asyncio.sleep(0)
        given_up.cancel()
        closing = asyncio.create_task(worker.close())
        assert (await first).worker == "n/0"
        await closing
        assert len(starts) == 1
        assert worker._engine is not None
        assert worker._engine.unfit == "stopped"

    asyncio.run(main())


def test_a_start_that_failed_is_not_tried_again_in_the_same_process(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    async def start(config: Any, roles: Any) -> FakeBackend:
        tried.append(config.worker)
        raise EngineUnavailableError("vLLM did not start")

    async def main() -> None:
        worker = actor(monkeypatch, start)
        for _ in range(2):
            with pytest.raises(EngineUnavailableError, match="vLLM did not start"):
                await worker.start()
        with pytest.raises(EngineUnavailableError, match="has not started"):
            await worker.report()
        await worker.close()
        assert tried == ["n/0"]

    asyncio.run(main())


def test_ports_must_hold_a_worker():
    cluster = load_cluster("demo-cpu")
    (worker,) = offer(cluster, [Node(name="n", id="i", workers={"reserved": 1})])
    config = engine_config(cluster, worker, kv_host=LOOPBACK)
    with pytest.raises(UsageError, match="kv_port_count is 3; expected at least tensor_parallel"):
        replace(config, kv_port_count=3, tensor_parallel=4)
