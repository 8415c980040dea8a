"""The whole service over HTTP, with the real router, controller, executor and client; workers and engines are fakes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pearl.api import choose_predictor, choose_solver
from pearl.cli.main import run
from pearl.errors import InputError, PearlError
from pearl.live.client import AdminClient, NotRunningError, RejectedError
from pearl.live.cluster.load import load_cluster
from pearl.live.cluster.model import LiveCluster
from pearl.live.control.decider import Rulebook
from pearl.live.control.fleet import Node
from pearl.live.control.lease import LeaseError, LeaseTable
from pearl.live.control.service import Service, run_service
from pearl.live.control.store import ControlStore
from pearl.live.endpoint import read_endpoint
from pearl.live.journal import Store
from pearl.live.preview import file_nodes
from pearl.live.recording import read_store
from pearl.live.training import Trainer
from pearl.live.weights import WeightStore
from pearl.policy.load import load_policy
from pearl.tracking.forecasters import get_forecaster
from tests.live.control.fakes import FakeFleet, FakeWorker
from tests.live.control.rig import LocalLeases
from tests.live.stub_engine import StubEngine, continuation

TOKEN = "secret"


@dataclass(eq=False)
class Fleet(FakeFleet):
    """Fakes on the nodes of a cluster file."""

    there: tuple[Node, ...] = ()

    async def nodes(self) -> tuple[Node, ...]:
        return self.there

    async def living(self) -> Mapping[str, FakeWorker]:
        return {name: worker for name, worker in self.workers.items() if not worker.dead}


@dataclass(eq=False)
class Bench:
    """A state folder, fake workers that outlive controllers, and the cluster's lease."""

    directory: Path
    fleet: Fleet
    cluster: LiveCluster
    leases: LocalLeases = field(default_factory=lambda: LocalLeases(table=LeaseTable()))

    def service(self, **fields: Any) -> Service:
        policy = load_policy("pearl")
        made = Service(
            cluster=self.cluster,
            rules=Rulebook(
                policy=policy, solver=choose_solver(policy, "enumerate"), predictor=choose_predictor(policy, None)
            ),
            fleet=self.fleet,
            engines=lambda *, worker, url: StubEngine(name=worker, weight_version=None),
            leases=self.leases,
            token=TOKEN,
            forecaster=get_forecaster("observed"),
        )
        return replace(made, **fields)

    @asynccontextmanager
    async def running(self, *, stopped: bool = True, **fields: Any) -> AsyncIterator[AdminClient]:
        """The service while it runs; in the end it is stopped, or killed."""
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run_service(self.service(**fields), ready=ready.set_result))
        try:
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            endpoint = read_endpoint(self.directory)
            assert endpoint is not None
            assert endpoint.url in ready.result()
            client = AdminClient(url=endpoint.url, token=TOKEN)
            yield client
            if stopped:
                await asyncio.to_thread(client.stop, workers=False)
                await asyncio.wait_for(task, 10)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def bench_in(directory: Path) -> Bench:
    sets = {"ports.http.port": "0", "limits.health_every": "100ms"}
    cluster = load_cluster("demo-cpu", sets, state_dir=directory)
    return Bench(directory=cluster.state_dir, fleet=Fleet(there=file_nodes(cluster)), cluster=cluster)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return bench_in(tmp_path)


def live(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


async def until(holds: Callable[[Any], bool], client: AdminClient) -> Any:
    async with asyncio.timeout(10):
        while not holds(state := await asyncio.to_thread(client.state)):
            await asyncio.sleep(0.01)
    return state


def _serving(number: int) -> Callable[[Any], bool]:
    return lambda state: sum(worker["status"] == "active" for worker in state["workers"]) >= number


async def _decided_on(kind: str, client: AdminClient) -> Any:
    """The newest decision, once it is on such an event."""
    async with asyncio.timeout(10):
        while True:
            newest = (await asyncio.to_thread(client.decisions, limit=1))["decisions"][-1]
            if newest["event"] and newest["event"]["kind"] == kind:
                return newest
            await asyncio.sleep(0.01)


def _generate(url: str, prompt: list[int]) -> list[int]:
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 5, "ignore_eos": True}).encode()
    call = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=10) as answer:
        return list(json.load(answer)["choices"][0]["token_ids"])


def test_it_starts_serves_decides_and_stops(bench: Bench) -> None:
    async def work() -> None:
        async with bench.running() as client:
            state = await until(_serving(2), client)
            assert (state["cluster"], state["policy"], state["mode"]) == ("demo-cpu", "pearl", "colocated")
            assert [worker["id"] for worker in state["workers"]] == ["node-0/0", "spot-0/0", "train-0/0"]
            assert await asyncio.to_thread(_generate, client.url, [1, 2, 3]) == continuation([1, 2, 3], 5)
            trainer = Trainer(client=client)
            await asyncio.to_thread(trainer.begin_batch, 0, trajectories=12)
            batch = (await asyncio.to_thread(client.state))["batch"]
            assert (batch["step"], batch["trajectories"], batch["since_s"] < 10) == (0, 12, True)
            newest = await _decided_on("batch_started", client)
            assert newest["decision"]["configuration"] == "2C"
            ended = await asyncio.to_thread(trainer.finish_batch, 0)
            assert ended.makespan_s > 0
            events = (await asyncio.to_thread(client.events))["events"]
            assert {"batch_started", "profile_updated"} <= {event["kind"] for event in events}
        assert read_endpoint(bench.directory) is None
        assert not any(worker.dead for worker in bench.fleet.workers.values())

    live(work())


def test_the_next_controller_finds_the_workers(bench: Bench) -> None:
    async def work() -> None:
        async with bench.running(stopped=False) as client:
            before = await until(_serving(1), client)
        launched = list(bench.fleet.launched)
        async with bench.running() as client:
            after = await until(_serving(1), client)
            assert after["epoch"] > before["epoch"]
            assert bench.fleet.launched == launched or bench.fleet.launched[: len(launched)] == launched
            assert await asyncio.to_thread(_generate, client.url, [4]) == continuation([4], 5)

    live(work())


def test_a_trainer_gets_its_gpus_and_lends_them(bench: Bench) -> None:
    async def work() -> None:
        async with bench.running() as client:
            await until(_serving(1), client)
            trainer = Trainer(client=client)
            released = await asyncio.to_thread(trainer.begin_training, 0, deadline_s=5.0)
            assert released.forced == ()
            assert (await asyncio.to_thread(client.state))["training"] == {"running": True, "step": 0}
            await asyncio.to_thread(trainer.finish_training, 0, window_s=1000.0)
            with pytest.raises(RejectedError) as caught:
                await asyncio.to_thread(trainer.begin_training, 0)
            assert caught.value.status == 409

    live(work())


def _snapshot(root: Path, version: int) -> Path:
    with WeightStore(root=root).publish(version) as directory:
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(b"")
    return root / f"v{version:08d}"


def test_weights_are_published_kept_and_taken_up_again(bench: Bench) -> None:
    async def work() -> None:
        root = bench.cluster.weights.root
        async with bench.running(stopped=False) as client:
            await until(_serving(2), client)
            for version in range(1, 6):
                trainer = Trainer(client=client)
                directory = _snapshot(root, version)
                done = await asyncio.to_thread(trainer.publish_weights, version=version, directory=directory)
                assert (done.updated, done.left) == (("node-0/0", "spot-0/0"), ())
            async with asyncio.timeout(5):
                while WeightStore(root=root).versions() != (3, 4, 5):
                    await asyncio.sleep(0.01)
            with pytest.raises(RejectedError, match="outside"):
                await asyncio.to_thread(trainer.publish_weights, version=6, directory=bench.directory.parent)
        bench.fleet.workers["node-0/0"].version = 4  # as if the controller had died in the middle of the publication
        async with bench.running() as client:
            state = await until(lambda state: state["workers"][0]["weight_version"] == 5, client)
            assert state["weights"]["latest"] == 5

    live(work())


def test_a_worker_that_dies_is_replaced(bench: Bench) -> None:
    async def work() -> None:
        sets = {"ports.http.port": "0", "limits.health_every": "50ms", "limits.restart_after": "50ms"}
        bench.cluster = load_cluster("demo-cpu", sets, state_dir=bench.directory)
        async with bench.running() as client:
            await until(_serving(1), client)
            first = bench.fleet.workers["node-0/0"]
            first.dead = True
            async with asyncio.timeout(10):
                while bench.fleet.workers["node-0/0"] is first:
                    await asyncio.sleep(0.02)
            await until(lambda state: state["counts"]["colocated"] >= 1, client)

    live(work())


def test_a_node_that_joins_and_one_that_goes(bench: Bench) -> None:
    async def work() -> None:
        spot = Node(name="spot-1", id="spot-1", workers={"preemptible": 1})
        async with bench.running() as client:
            await until(_serving(1), client)
            bench.fleet.there = (*bench.fleet.there, spot)
            state = await until(lambda state: len(state["workers"]) == 4, client)
            assert state["workers"][-1]["id"] == "spot-1/0"
            bench.fleet.there = bench.fleet.there[:-1]
            await until(lambda state: len(state["workers"]) == 3, client)

    live(work())


def test_it_is_stopped_with_its_workers(bench: Bench) -> None:
    async def work() -> None:
        async with bench.running(stopped=False) as client:
            await until(_serving(1), client)
            await asyncio.to_thread(client.stop, workers=True)
            async with asyncio.timeout(60):
                while True:
                    try:
                        await asyncio.to_thread(client.state)
                    except NotRunningError:
                        break
                    except RejectedError:
                        pass  # it says that it stops
            while not bench.fleet.workers["node-0/0"].dead:
                await asyncio.sleep(0.01)

    live(work())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_the_workers(bench: Bench, number: signal.Signals) -> None:
    async def work() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run_service(bench.service(), ready=ready.set_result))
        await ready
        os.kill(os.getpid(), number)
        await asyncio.wait_for(task, 10)
        assert not any(worker.dead for worker in bench.fleet.workers.values())
        assert read_endpoint(bench.directory) is None

    live(work())


def test_shadow_decides_and_does_nothing(bench: Bench) -> None:
    async def work() -> None:
        async with bench.running(shadow=True) as client:
            await until(_serving(1), client)
            await asyncio.to_thread(Trainer(client=client).begin_batch, 0, trajectories=12)
            newest = await _decided_on("batch_started", client)
            assert newest["shadow"]
            assert newest["decision"]["outcome"] == "switch"
            assert newest["plan"]
            assert bench.fleet.launched == ["node-0/0"]

    live(work())


def test_one_controller_at_a_time(bench: Bench) -> None:
    async def work() -> None:
        async with bench.running() as client:
            await until(_serving(1), client)
            other = replace(bench.cluster, state_dir=bench.directory / "other")
            other.state_dir.mkdir()
            with pytest.raises(LeaseError, match="another controller"):
                await run_service(bench.service(cluster=other), ready=print)
            assert read_endpoint(other.state_dir) is None

    live(work())


def test_the_lease_of_a_controller_that_was_killed_here_is_waited_for(bench: Bench) -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    owner = f"{socket.gethostname()}:{child.pid}:x"
    bench.leases.table.acquire(owner, 0.3, 0)

    async def work() -> None:
        async with bench.running() as client:
            await until(_serving(1), client)

    live(work())


def test_a_lost_lease_ends_it_and_leaves_the_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pearl.live.control.service.LEASE_S", 0.3)

    async def work() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run_service(bench.service(ends_workers=True), ready=ready.set_result))
        await ready
        bench.leases.table = LeaseTable()
        bench.leases.table.acquire("another", 60.0, 0)
        with pytest.raises(LeaseError, match="lost its lease"):
            await asyncio.wait_for(task, 10)
        assert not any(worker.dead for worker in bench.fleet.workers.values())

    live(work())


@pytest.mark.parametrize("file", ["store", "journal"])
def test_a_full_disk_ends_it_with_that_error_and_leaves_the_workers(bench: Bench, file: str) -> None:
    """Nothing is decided meanwhile: it ends by itself."""
    made: list[Any] = []

    async def work() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run_service(bench.service(), ready=ready.set_result))
        await ready
        endpoint = read_endpoint(bench.directory)
        assert endpoint is not None
        client = AdminClient(url=endpoint.url, token=TOKEN)
        await until(_serving(2), client)
        for database in made:
            pages = database._db.execute("PRAGMA page_count").fetchone()[0]
            database._db.execute(f"PRAGMA max_page_count = {pages}")
        for number in range(1000):
            with suppress(PearlError, OSError):
                if file == "journal":
                    await asyncio.to_thread(_generate, endpoint.url, [1] * 1000)
                else:
                    await asyncio.to_thread(client.call, "POST", "/training/finish", {"step": number})
            if task.done():
                break
        with pytest.raises(PearlError, match=rf"cannot write the .*{file}.*: database or disk is full"):
            await asyncio.wait_for(task, 10)
        assert read_endpoint(bench.directory) is None
        assert not any(worker.dead for worker in bench.fleet.workers.values())

    kind = ControlStore if file == "store" else Store
    with pytest.MonkeyPatch.context() as patch:
        opened = kind.__init__
        patch.setattr(kind, "__init__", lambda self, *args, **more: (opened(self, *args, **more), made.append(self))[0])
        live(work())


def test_a_connection_without_a_request_does_not_hold_up_the_end(bench: Bench) -> None:
    async def work() -> None:
        async with bench.running() as client:
            await until(_serving(1), client)
            _, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
            writer.write(b"POST /pearl/v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n")
            await writer.drain()

    live(work())


def test_too_few_nodes_and_an_address_in_use(bench: Bench) -> None:
    async def work() -> None:
        sets = {"ports.http.port": "0", "zones.reserved.min_workers": "2"}
        few = load_cluster("demo-cpu", sets, state_dir=bench.directory)
        with pytest.raises(InputError, match="zone reserved: the nodes offer 1 workers; expected at least 2"):
            await run_service(bench.service(cluster=few), ready=print)
        async with bench.running() as client:
            port = client.url.rpartition(":")[2]
            other = load_cluster("demo-cpu", {"ports.http.port": port}, state_dir=bench.directory / "other")
            other.state_dir.mkdir()
            service = bench.service(cluster=other, leases=LocalLeases(), fleet=Fleet(there=bench.fleet.there))
            with pytest.raises(PearlError, match=f"cannot listen on 127.0.0.1:{port}"):
                await run_service(service, ready=print)

    live(work())


def test_what_was_recorded_can_be_read_back_and_replayed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with bench.running() as client:
            await until(_serving(1), client)
            trainer = Trainer(client=client)
            await asyncio.to_thread(trainer.begin_batch, 0, trajectories=2)
            for session in ("a", "b"):
                body = {"model": "tiny", "prompt": [1, 2], "max_tokens": 3, "session_id": session, "ignore_eos": True}
                call = urllib.request.Request(
                    f"{client.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
                )
                await asyncio.to_thread(lambda call=call: urllib.request.urlopen(call, timeout=10).read())
            await asyncio.to_thread(trainer.finish_batch, 0)
        records, events = read_store(bench.directory)
        turns = [record for record in records if type(record).__name__ == "TurnRecord"]
        assert {(turn.trajectory, turn.last) for turn in turns} == {("a", True), ("b", True)}
        assert "profile_updated" in [event.kind for event in events]

    live(work())
    assert run(["replay", str(bench.directory), "--cluster", "demo-cpu", "--solver", "enumerate"]) == 0
    out = capsys.readouterr().out
    assert "batch_started" in out
    assert "profile_updated" in out
