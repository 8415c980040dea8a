from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pearl.core.cluster import Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.live.control.api import MAX_BODY_BYTES, AdminApi
from pearl.live.control.ledger import Record
from pearl.live.control.recovery import Beginning
from pearl.live.router.admin import Extension
from pearl.live.router.config import RouterConfig
from pearl.live.router.server import running_router
from pearl.live.router.service import Router
from tests.live.control.rig import POOL, Rig, make, run, snapshot, state, worker
from tests.live.stub_engine import StubEngines

TOKEN = "a-secret-of-tests"


@dataclass(eq=False)
class Client:
    rig: Rig
    url: str
    http: aiohttp.ClientSession
    api: AdminApi
    stops: list[bool]

    async def __call__(
        self, method: str, path: str, data: Any = None, *, token: str | None = TOKEN, key: str | None = None
    ) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= {} if key is None else {"Idempotency-Key": key}
        url = f"{self.url}/pearl/v1{path}"
        async with self.http.request(method, url, json=data, headers=headers) as response:
            return response.status, await response.json()


@asynccontextmanager
async def client(directory: Path, *workers: Worker, token: str | None = TOKEN, **given: Any) -> AsyncIterator[Client]:
    """A controller over fakes, behind the real HTTP service of the router, which has no engine."""
    start = Beginning(record=Record(state=state(*(workers or POOL))))
    stops: list[bool] = []
    made: list[tuple[Rig, AdminApi]] = []

    @asynccontextmanager
    async def mount(router: Router) -> AsyncIterator[Extension]:
        rig = make(directory, start, **given)
        await rig.start(start)
        api = AdminApi(rig.controller, token=token, cluster="test", stop=stops.append)
        made.append((rig, api))
        yield api.extension()
        await api.aclose()
        await rig.aclose()

    config = RouterConfig(model="stub", port=0, admin_token=token, shutdown_grace_s=0.0)
    async with (
        running_router(config, StubEngines({}), mount=mount) as (_, url),
        aiohttp.ClientSession() as http,
    ):
        ((rig, api),) = made
        yield Client(rig, url, http, api, stops)


def test_who_may_call(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            for method, path in (("GET", "/state"), ("POST", "/workers"), ("PUT", "/policy"), ("POST", "/stop")):
                for token in (None, "wrong", TOKEN + "x", ""):
                    status, body = await call(method, path, {} if method != "GET" else None, token=token)
                    assert (status, body["error"]["code"]) == (401, "unauthorised"), (method, path, token)
            assert call.stops == []
            for path in ("/health", "/metrics"):
                async with call.http.get(call.url + path) as response:
                    assert response.status == 200
        async with client(tmp_path, token=None) as call:
            status, body = await call("GET", "/state", token=TOKEN)
            assert (status, body["error"]["code"]) == (403, "no_admin")

    run(work())


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/workers", {"workers": []}, "workers"),
        ("/workers", {"workers": [{"id": "a", "node": "n", "zone": "nowhere"}]}, "zone"),
        ("/workers", {"workers": [{"id": "a b", "node": "n", "zone": "reserved"}]}, "id"),
        ("/workers", {"workers": [{"id": "a", "node": "n", "zone": "reserved"}] * 2}, "unique"),
        ("/workers", {"workers": [{"id": "a", "node": "n", "zone": "reserved", "gpus": 0}]}, "gpus"),
        ("/workers/reclaim", {"grace_s": 1.0}, "either workers or a node"),
        ("/workers/reclaim", {"workers": ["w0"], "node": "n", "grace_s": 1.0}, "either workers or a node"),
        ("/workers/reclaim", {"workers": ["nobody"], "grace_s": 1.0}, "no worker 'nobody'"),
        ("/workers/reclaim", {"workers": ["w0"], "grace_s": -1.0}, "grace_s"),
        ("/drain", {"worker": "nobody"}, "no worker 'nobody'"),
        ("/drain", {"worker": "w0", "deadline_s": 0}, "deadline_s"),
        ("/training/begin", {"step": -1}, "step"),
        ("/training/begin", {"step": 1, "fast": True}, "fast"),
        ("/training/begin", {"step": "1"}, "step"),
        ("/batches", {"step": 1, "trajectories": 0}, "trajectories"),
        ("/weights", {"version": 1, "directory": "/etc"}, "outside of the weight store"),
        ("/stop", {"workers": "yes"}, "workers"),
    ],
)
def test_wrong_bodies_change_nothing(tmp_path: Path, path: str, body: Any, said: str) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            status, answer = await call("POST", path, body)
            assert status == 400
            assert said in answer["error"]["message"]
            assert call.rig.store.events(after=0, limit=9) == []
            assert call.stops == []

    run(work())


def test_bodies_that_are_no_json_or_too_large(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            target = f"{call.url}/pearl/v1/training/begin"
            for raw in (b"{", b"[1]", b'{"step": NaN}', b"", b"\xff"):
                async with call.http.post(target, data=raw, headers=headers) as response:
                    assert response.status == 400, raw
            async with call.http.post(target, data=b"x" * (MAX_BODY_BYTES + 1), headers=headers) as response:
                assert response.status == 413

            async def endless() -> AsyncIterator[bytes]:
                for _ in range(100):
                    yield b"x" * (1 << 17)

            async with call.http.post(target, data=endless(), headers=headers) as response:
                assert response.status == 413

    run(work())


def test_the_routers_own_ways_to_change_the_pool_are_shut(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            assert (await call("PUT", "/pool", {"epoch": 99, "workers": []}))[0] == 405
            status, pool = await call("GET", "/pool")
            assert (status, pool["workers"]) == (200, [])

    run(work())


def test_state_decisions_plans_and_events(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            call.rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
            await call.rig.idle()
            status, shown = await call("GET", "/state")
            assert status == 200
            assert shown.keys() == {
                *("cluster", "policy", "shadow", "epoch", "mode", "counts", "workers", "weights", "training", "batch"),
                *("plan", "calibration_error", "uptime_s"),
            }
            assert (shown["cluster"], shown["mode"], shown["calibration_error"]) == ("test", "disaggregated", 0.125)
            assert shown["counts"] == {"colocated": 0, "prefill": 1, "decode": 3, "inactive": 0, "borrowed": 0}
            assert shown["workers"][0].keys() == {
                *("id", "node", "zone", "role", "status", "gpus", "started", "must_leave", "leave_within_s"),
                "weight_version",
            }
            assert shown["plan"]["id"] == "p-000001"
            assert shown["plan"]["done"] == shown["plan"]["steps"] > 0

            _, listed = await call("GET", "/decisions?limit=5")
            _, one = await call("GET", "/decisions/d-000001")
            assert listed == {"decisions": [one]}
            assert one["decision"]["outcome"] == "switch"
            assert one["plan"] == "p-000001"
            assert (await call("GET", "/decisions?after=d-000001"))[1] == {"decisions": []}
            _, plans = await call("GET", "/plans?limit=5")
            _, plan = await call("GET", "/plans/p-000001")
            assert plans == {"plans": [plan]}
            assert {step["phase"] for step in plan["steps"]} == {"ended"}
            assert plan["decision"] == "d-000001"
            _, events = await call("GET", "/events")
            assert [(e["seq"], e["kind"], e["workers"]) for e in events["events"]] == [(1, "batch_started", [])]

            for path in ("/decisions/d-000009", "/plans/p-9"):
                assert (await call("GET", path))[0] == 404
            for path in ("/decisions/9", "/plans/p-x", "/decisions?limit=x", "/events?wait_s=-1", "/events?wait_s=1e9"):
                assert (await call("GET", path))[0] == 400, path

    run(work())


def test_a_long_poll_answers_when_something_happens(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            waiting = asyncio.create_task(call("GET", "/events?after=0&wait_s=20"))
            await asyncio.sleep(0.05)
            call.rig.controller.raise_event(Event(kind=EventKind.OPERATOR))
            _, found = await waiting
            assert [event["kind"] for event in found["events"]] == ["operator"]
            assert (await call("GET", "/events?after=1&wait_s=0.05"))[1] == {"events": []}

    run(work())


def test_workers_join_and_are_reclaimed(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            body = {"workers": [{"id": "n2/0", "node": "n2", "zone": "preemptible"}]}
            assert await call("POST", "/workers", body) == (202, {"seq": 1})
            joined = call.rig.ledger.state.by_id["n2/0"]
            assert (joined.zone, joined.started) == (Zone.PREEMPTIBLE, False)
            status, _ = await call("POST", "/workers/reclaim", {"node": "n2", "grace_s": 30})
            assert status == 202
            assert call.rig.ledger.state.by_id["n2/0"].must_leave
            await call.rig.idle()

    run(work())


def test_a_repeated_key_is_answered_as_the_first_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            body = {"workers": ["w0"], "grace_s": 30}
            first = await call("POST", "/workers/reclaim", body, key="k-1")
            assert await call("POST", "/workers/reclaim", body, key="k-1") == first
            assert call.rig.store.last("events") == 1
            status, answer = await call("POST", "/workers/reclaim", {**body, "grace_s": 31}, key="k-1")
            assert (status, answer["error"]["code"]) == (409, "key_conflict")
            assert (await call("POST", "/training/finish", {"step": 1}, key="not a key"))[0] == 400

            refused = await call("POST", "/drain", {"worker": "later"}, key="k-2")
            assert refused[0] == 400
            await call("POST", "/workers", {"workers": [{"id": "later", "node": "n", "zone": "reserved"}]})
            assert await call("POST", "/drain", {"worker": "later"}, key="k-2") == refused
            await call.rig.idle()

    run(work())


JOIN = {"workers": [{"id": "new", "node": "n", "zone": "reserved"}]}


def test_a_call_with_a_key_is_not_begun_where_the_store_cannot_be_read(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            call.rig.store._db.execute("DROP TABLE answers")
            status, answer = await call("POST", "/workers", JOIN, key="k")
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            assert "cannot read the controller's store" in answer["error"]["message"]
            assert "new" not in call.rig.ledger.state.by_id

    run(work())


def test_a_call_with_a_key_is_answered_where_its_answer_cannot_be_kept_and_nothing_follows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            call.rig.store._db.execute(
                "CREATE TRIGGER full BEFORE INSERT ON answers BEGIN SELECT RAISE(ABORT, 'disk full'); END"
            )
            assert await call("POST", "/workers", JOIN, key="k") == (202, {"seq": 1})
            assert "new" in call.rig.ledger.state.by_id
            status, answer = await call("POST", "/workers", JOIN, key="k")
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            assert "disk full" in answer["error"]["message"]
            assert call.rig.store.last("events") == 1

    run(work())
    assert "answer_not_kept" in [record.getMessage() for record in caplog.records]


def test_with_a_key_a_call_goes_on_without_its_client_and_without_one_it_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path, *POOL, worker("o1", zone=Zone.OVERLAP)) as call:
            call.rig.executor.slow_s = 0.3
            trainer, body = call.rig.controller.trainer, {"step": 1, "deadline_s": 20}
            for key, running in ((None, False), ("k", True)):
                gone = asyncio.create_task(call("POST", "/training/begin", body, key=key))
                await asyncio.sleep(0.1)
                assert trainer.running
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                await asyncio.sleep(0.1)
                assert trainer.running is running, key
            both = await asyncio.gather(*(call("POST", "/training/begin", body, key="k") for _ in range(2)))
            assert both[0] == both[1] == (200, {"step": 1, "released": ["o1"], "forced": [], "seconds": 0.3})
            await call.rig.idle()

    run(work())


def test_training_and_batches(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path, *POOL, worker("o1", zone=Zone.OVERLAP)) as call:
            assert (await call("POST", "/training/begin", {"step": 3}))[0] == 200
            assert (await call("GET", "/state"))[1]["training"] == {"running": True, "step": 3}
            assert await call("POST", "/training/finish", {"step": 3, "window_s": 20}) == (
                202,
                {"step": 3, "new": True},
            )
            status, answer = await call("POST", "/training/begin", {"step": 3})
            assert (status, answer["error"]["code"]) == (409, "stale")
            call.rig.executor.slow_s = 10
            status, answer = await call("POST", "/training/begin", {"step": 4, "deadline_s": 0.05, "force": False})
            assert (status, answer["error"]["code"]) == (504, "deadline")
            assert not call.rig.controller.trainer.running

            status, begun = await call("POST", "/batches", {"step": 0, "trajectories": 16})
            assert (status, begun["step"], begun["weights"]) == (200, 0, 0)
            assert (await call("POST", "/batches", {"step": 1, "trajectories": 16}))[0] == 409
            status, ended = await call("POST", "/batches/finish", {"step": 0})
            assert (status, ended["predicted_s"]) == (200, 10.0)
            assert ended["makespan_s"] >= 0
            assert await call("POST", "/batches/finish", {"step": 0}) == (status, ended)
            status, answer = await call("POST", "/batches", {"step": 2, "trajectories": 16, "deadline_s": 0.05})
            assert status == 504
            assert "still waits for weights 1" in answer["error"]["message"]

            call.rig.executor.slow_s = 0
            body = {"version": 1, "directory": str(snapshot(tmp_path, 1))}
            waiting = asyncio.create_task(call("POST", "/batches", {"step": 2, "trajectories": 16, "deadline_s": 10}))
            await asyncio.sleep(0.05)
            status, published = await call("POST", "/weights", body)
            assert (status, published["version"], published["left"]) == (200, 1, [])
            assert (await waiting)[0] == 200
            assert (await call("GET", "/state"))[1]["weights"] == {"latest": 1, "oldest": 0}
            await call.rig.idle()

    run(work())


def test_a_drain_and_its_undoing(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            status, answer = await call("POST", "/drain", {"worker": "w0", "deadline_s": 10})
            assert (status, answer["worker"]) == (200, "w0")
            assert not call.rig.ledger.state.by_id["w0"].started
            undone = await call("POST", "/drain", {"worker": "w0", "undo": True})
            assert undone == (200, {"worker": "w0", "undone": True})
            await call.rig.idle()

    run(work())


def test_a_policy_with_faults_is_refused_with_their_places(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            text = (
                "apiVersion: pearl.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: x}\nspec: {let: {a: b +}}\n"
            )
            status, answer = await call("PUT", "/policy", {"text": text, "name": "mine.yaml"})
            assert (status, answer["error"]["code"]) == (400, "bad_policy")
            fault = answer["error"]["faults"][0]
            assert (fault["file"], fault["line"]) == ("mine.yaml", 4)
            text = text.replace("spec: {let: {a: b +}}", "extends: [builtin/pearl]\nspec: {}")
            status, answer = await call("PUT", "/policy", {"text": text})
            assert (status, answer["policy"]["name"]) == (200, "x")
            assert (await call("GET", "/state"))[1]["policy"] == "x"
            await call.rig.idle()

    run(work())


def test_stop_and_what_waits_then(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            assert await call("POST", "/stop", {"workers": True}) == (202, {"stopping": True, "workers": True})
            assert call.stops == [True]
            polls = [asyncio.create_task(call("GET", "/events?after=0&wait_s=30", key=key)) for key in (None, "k")]
            batch = {"step": 9, "trajectories": 4, "deadline_s": 30}
            polls.append(asyncio.create_task(call("POST", "/batches", batch, key="b")))
            await asyncio.sleep(0.1)
            await call.api.aclose()
            answers = await asyncio.gather(*polls)
            assert [(status, body["error"]["code"]) for status, body in answers] == [(503, "stopping")] * 3

    run(work())


def test_metrics_of_both_planes_are_on_one_page(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            call.rig.controller.raise_event(Event(kind=EventKind.BATCH_STARTED))
            await call.rig.idle()
            async with call.http.get(f"{call.url}/metrics") as response:
                lines = (await response.text()).splitlines()
            assert 'pearl_decisions_total{outcome="switch"} 1' in lines
            assert 'pearl_events_total{kind="batch_started"} 1' in lines
            assert 'pearl_workers{role="decode",status="active",zone="reserved"} 3' in lines
            assert 'pearl_mode{mode="disaggregated"} 1' in lines
            assert 'pearl_plan_steps_total{kind="change_role",phase="ended"} 2' in lines
            assert 'pearl_worker_weight_version{worker="w0"} 0' in lines
            assert {"pearl_lease_term 1", "pearl_training_running 0", "pearl_calibration_error 0.125"} <= set(lines)
            assert any(line.startswith("pearl_router_pool_epoch") for line in lines)
            names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
            assert len(names) == len(set(names))

    run(work())
