"""A real Ray cluster of several nodes on loopback, with real vLLM workers placed on them.

The order of the tests matters: the later ones remove a node, stop a worker, and close the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pearl.core.cluster import ClusterState, Status, Worker, Zone
from pearl.core.event import Event, EventKind, apply_event
from pearl.errors import UsageError
from pearl.live.cluster.load import load_cluster
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.offers import offer
from pearl.live.cluster.prepare import prepare_model
from pearl.live.control.watch import HealthWatcher, NodeWatcher, Seen, look_at_nodes
from pearl.live.embedded import EmbeddedRay, connected
from pearl.live.fleet import RayFleet
from pearl.live.protocol import EngineUnavailableError
from pearl.live.worker import RayWorker
from tests.live.worker.real import START_S, missing

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

FIRST_PORT = 17_600
NODES = "[{name: node-0, zone: reserved, workers: 2}, {name: spot-0, zone: preemptible, workers: 1}]"


@dataclass(kw_only=True)
class Rig:
    """One embedded cluster, its fleet, and the workers that live."""

    cluster: LiveCluster
    embedded: EmbeddedRay
    fleet: RayFleet
    stack: ExitStack
    runner: asyncio.Runner
    workers: dict[str, RayWorker] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, work: Any, timeout_s: float = START_S) -> Any:
        return self.runner.run(asyncio.wait_for(work, timeout_s))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if reason := missing():
        pytest.skip(reason)
    state_dir = tmp_path_factory.mktemp("state")
    sets = {"ray.nodes": NODES, "ports.kv.first": str(FIRST_PORT), "limits.health_every": "0.5s"}
    cluster = load_cluster("demo-cpu", sets, state_dir=state_dir)
    prepare_model(cluster)
    began_s = time.monotonic()
    with asyncio.Runner() as runner, ExitStack() as stack:
        embedded = stack.enter_context(connected(cluster))
        assert embedded is not None
        rig = Rig(cluster=cluster, embedded=embedded, fleet=RayFleet(cluster), stack=stack, runner=runner)
        rig.seconds["Ray, two nodes"] = time.monotonic() - began_s
        yield rig
        for worker in rig.workers.values():
            rig.run(worker.stop())
    print({what: round(seconds, 1) for what, seconds in rig.seconds.items()})


def placed(rig: Rig) -> dict[str, Worker]:
    return {worker.id: worker for worker in offer(rig.cluster, rig.run(rig.fleet.nodes()))}


def test_nodes_are_named_and_offer_workers_by_zone(rig: Rig) -> None:
    nodes = {node.name: dict(node.workers) for node in rig.run(rig.fleet.nodes())}
    assert nodes == {"head": {}, "node-0": {"reserved": 2}, "spot-0": {"preemptible": 1}}
    assert {worker.id: worker.zone for worker in placed(rig).values()} == {
        "node-0/0": Zone.RESERVED,
        "node-0/1": Zone.RESERVED,
        "spot-0/0": Zone.PREEMPTIBLE,
    }


def test_an_actor_on_no_node_is_refused(rig: Rig) -> None:
    stray = replace(placed(rig)["node-0/0"], id="node-9/0", node="node-9")
    with pytest.raises(EngineUnavailableError, match="no node 'node-9' is alive"):
        rig.fleet.launch(stray)


def test_two_workers_start_on_their_nodes_and_each_starts_one_engine(rig: Rig) -> None:
    import psutil

    async def start(worker: Worker) -> None:
        handle = rig.workers[worker.id] = rig.fleet.launch(worker)
        assert rig.fleet.launch(worker).actor._actor_id == handle.actor._actor_id
        first, again = await asyncio.gather(handle.start(START_S), handle.actor.start.remote())
        assert (first.pid, first.worker) == (again.pid, worker.id)
        children = psutil.Process(first.pid).children(recursive=True)
        assert len([child for child in children if "EngineCor" in child.name()]) == 1  # Linux cuts names at 15

    workers = placed(rig)

    async def main() -> None:
        await asyncio.gather(*(start(workers[worker_id]) for worker_id in ("node-0/0", "spot-0/0")))

    began_s = time.monotonic()
    rig.run(main())
    rig.seconds["two engines"] = time.monotonic() - began_s


def test_each_worker_lives_on_its_node_with_a_port_of_its_own_and_kv_moves_between_them(rig: Rig) -> None:
    import psutil
    import ray

    async def main() -> None:
        ids = {node.name: node.id for node in await rig.fleet.nodes()}
        ports = set()
        for worker_id, worker in rig.workers.items():
            where = await worker.actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())
            assert where == ids[worker_id.split("/", maxsplit=1)[0]]
            pid = (await worker.report()).pid
            processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            held = {c.laddr.port for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"}
            ports |= held & set(rig.cluster.kv_ports)
        assert ports == {FIRST_PORT, FIRST_PORT + 1}
        await rig.workers["node-0/0"].canary_from(rig.workers["spot-0/0"], id="join", timeout_s=60)

    rig.run(main())


def test_workers_are_found_again_by_their_own_cluster_alone(rig: Rig) -> None:
    other = RayFleet(replace(rig.cluster, name="other"))
    assert rig.run(other.living()) == {}
    assert other.find("node-0/0") is None
    again = RayFleet(rig.cluster)
    assert set(rig.run(again.living())) == {"node-0/0", "spot-0/0"}
    assert rig.run(again.engines(worker="node-0/0", url="ray:node-0/0").worker.report()).worker == "node-0/0"


def test_a_node_that_joins_and_one_that_dies_become_events(rig: Rig) -> None:
    events: list[tuple[Event, float]] = []
    sick: dict[str, str] = {}
    state = ClusterState(workers=tuple(replace(w, started=True, status=Status.INACTIVE) for w in placed(rig).values()))

    def happen(event: Event) -> None:
        nonlocal state
        state = apply_event(state, event)
        events.append((event, time.monotonic()))

    async def until(kind: EventKind) -> float:
        while not any(event.kind is kind for event, _ in events):
            await asyncio.sleep(0.1)
        return next(at_s for event, at_s in events if event.kind is kind)

    async def main() -> None:
        seen, _ = look_at_nodes(rig.cluster, Seen(), await rig.fleet.nodes(), state, now_s=0.0)
        nodes = NodeWatcher(
            cluster=rig.cluster,
            nodes=rig.fleet.nodes,
            state=lambda: state,
            tell=happen,
            now_s=time.monotonic,
            seen=seen,
        )
        health = HealthWatcher(
            started=lambda: rig.workers, state=lambda: state, sick=sick.__setitem__, every_s=0.5, answer_s=5.0
        )
        watching = [asyncio.create_task(nodes.run()), asyncio.create_task(health.run())]
        began_s = time.monotonic()
        await asyncio.to_thread(rig.embedded.add_node, "spot-1", Zone.PREEMPTIBLE, 2)
        rig.seconds["node joined, then told"] = await until(EventKind.GPUS_ADDED) - began_s
        began_s = time.monotonic()
        await asyncio.to_thread(rig.embedded.remove_node, "spot-0", graceful=False)
        while "spot-0/0" not in sick and not any(e.kind is EventKind.GPUS_LOST for e, _ in events):
            await asyncio.sleep(0.05)
        rig.seconds["node killed, then known"] = time.monotonic() - began_s
        rig.seconds["node killed, then gpus_lost"] = await until(EventKind.GPUS_LOST) - began_s
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    rig.run(main(), 90)
    added, lost = (event for event, _ in events)
    assert [worker.id for worker in added.added] == ["spot-1/0", "spot-1/1"]
    assert lost.workers == ("spot-0/0",)
    assert set(sick) <= {"spot-0/0"}
    assert rig.embedded.nodes == ("node-0", "spot-1")


def test_a_worker_that_stopped_is_gone_and_one_on_a_dead_node_can_be_stopped(rig: Rig) -> None:
    async def main() -> None:
        began_s = time.monotonic()
        await asyncio.gather(*(worker.stop() for worker in rig.workers.values()))
        rig.seconds["stop"] = time.monotonic() - began_s
        assert await rig.fleet.living() == {}
        assert rig.fleet.find("node-0/0") is None

    rig.run(main(), 120)


def test_a_node_of_a_taken_name_is_refused_and_removal_is_idempotent(rig: Rig) -> None:
    with pytest.raises(UsageError, match="runs already"):
        rig.embedded.add_node("node-0", Zone.RESERVED)
    rig.embedded.remove_node("spot-0")


def test_closing_leaves_no_process_and_no_shared_memory(rig: Rig) -> None:
    import psutil

    rig.workers.clear()
    ours = psutil.Process().children(recursive=True)
    shared = {path for process in ours for path in shared_memory(process)}
    assert ours
    assert shared
    began_s = time.monotonic()
    rig.stack.close()
    rig.seconds["close"] = time.monotonic() - began_s
    _, alive = psutil.wait_procs(ours, timeout=15)
    assert alive == []
    assert [path for path in shared if path.exists()] == []


def shared_memory(process: Any) -> set[Path]:
    """Files in /dev/shm that the process has mapped."""
    try:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return set()
    found = (line.split(maxsplit=5) for line in maps.splitlines())
    return {Path(parts[5]) for parts in found if len(parts) == 6 and parts[5].startswith("/dev/shm/")}
