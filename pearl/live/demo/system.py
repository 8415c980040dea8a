"""A whole live system on this machine: an embedded Ray cluster in this process, and `pearl serve` as a child of it.

The child joins the Ray cluster by its address, so that it can be killed and started again while the workers live on,
and nodes can be taken away and added under it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.errors import PearlError
from pearl.live.client import AdminClient, ClientError
from pearl.live.cluster.load import load_cluster
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.prepare import prepare_model
from pearl.live.embedded import EmbeddedRay, connected
from pearl.live.endpoint import read_endpoint
from pearl.live.engine.engine import EngineReport
from pearl.live.fleet import RayFleet
from pearl.live.protocol import EngineError
from pearl.live.training import Trainer

READY_S = 120.0
"""A controller answers by then: imports, joining Ray, and a look at the workers that it finds."""
STOP_S = 60.0
"""A controller that is told to stop has ended by then."""
POLL_S = 0.1
LOG = "serve.log"
LOG_TAIL = 15
"""Lines of the child's log that an error shows."""


class SystemFailedError(PearlError):
    """The system did not come to the state that was waited for."""


@dataclass(frozen=True, kw_only=True)
class SystemPlan:
    """What system to make."""

    cluster: str = "demo-cpu"
    sets: Mapping[str, str] = field(default_factory=dict)
    """Values of the cluster file to override."""
    policy: str
    """Policy to begin with: the text of a policy file."""
    state_dir: Path


class LiveSystem:
    """One system that runs. Made by `live_system`; all waits are bounded."""

    def __init__(self, plan: SystemPlan, cluster: LiveCluster, ray: EmbeddedRay) -> None:
        self.cluster = cluster
        self.ray = ray
        self.fleet = RayFleet(cluster)
        self._plan = plan
        self._policy = plan.state_dir / "first-policy.yaml"
        self._policy.write_text(plan.policy, encoding="utf-8")
        self._child: subprocess.Popen[bytes] | None = None
        self._port = 0

    # The controller

    def serve(self) -> None:
        """Start `pearl serve` and wait until it answers; at the same address as before. Raises `SystemFailedError`."""
        assert self._child is None, "it runs"
        with (self.state_dir / LOG).open("ab") as log:
            self._child = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until_s = time.monotonic() + READY_S
        while not self._answers():
            if (code := self._running().poll()) is not None:
                self._child = None
                self._fail(f"pearl serve ended with {code}")
            if time.monotonic() > until_s:
                self.close()
                self._fail(f"pearl serve does not answer after {READY_S:g} s")
            time.sleep(POLL_S)
        self._port = int(self.url.rpartition(":")[2])

    def kill_controller(self) -> None:
        """SIGKILL, and nothing else: what it was doing is left as it was."""
        child = self._running()
        child.kill()
        child.wait()
        self._child = None

    def stop_controller(self, *, workers: bool) -> int:
        """Ask it to stop, with or without its workers; returns its exit code."""
        child = self._running()
        self.client.stop(workers=workers)
        try:
            code = child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._fail(f"pearl serve has not stopped after {STOP_S:g} s")
        self._child = None
        return code

    @property
    def state_dir(self) -> Path:
        """Folder of journal, token and log."""
        return self._plan.state_dir

    @property
    def url(self) -> str:
        """Base URL of router and admin plane."""
        endpoint = read_endpoint(self.state_dir)
        assert endpoint is not None, "no controller runs"
        return endpoint.url

    @property
    def pid(self) -> int:
        """Of the controller."""
        return self._running().pid

    @property
    def client(self) -> AdminClient:
        """A client of its admin plane."""
        return AdminClient.find(state_dir=self.state_dir)

    @property
    def trainer(self) -> Trainer:
        """A trainer's way to it."""
        return Trainer(client=self.client)

    # What is

    async def state(self) -> dict[str, Any]:
        """The controller's state."""
        return await asyncio.to_thread(self.client.state)

    async def until(
        self, holds: Callable[[dict[str, Any]], bool], *, what: str, limit_s: float, every_s: float = 0.2
    ) -> dict[str, Any]:
        """Wait until the state is as asked for; returns it. Raises `SystemFailedError`."""
        until_s = time.monotonic() + limit_s
        while True:
            state = await self.state()
            if holds(state):
                return state
            if time.monotonic() > until_s:
                shown = {w["id"]: f"{w['role']} {w['status']}" for w in state["workers"]}
                self._fail(f"waited {limit_s:g} s for {what}; mode {state['mode']}, workers {shown}")
            await asyncio.sleep(every_s)

    async def reports(self) -> dict[str, EngineReport]:
        """What each living worker says of itself; those that do not answer are left out."""
        living = await self.fleet.living()

        async def ask(worker_id: str) -> EngineReport | None:
            with contextlib.suppress(EngineError):
                return await living[worker_id].report()
            return None

        answers = await asyncio.gather(*map(ask, living))
        return {report.worker: report for report in answers if report is not None}

    def log_tail(self) -> str:
        """The last lines of the controller's log."""
        try:
            lines = (self.state_dir / LOG).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_TAIL:])

    # Its end

    def close(self) -> None:
        """End the controller, however it is. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _answers(self) -> bool:
        """Whether this very child answers, and not the endpoint of one before it."""
        endpoint = read_endpoint(self.state_dir)
        if endpoint is None or endpoint.pid != self._running().pid:
            return False
        with contextlib.suppress(ClientError):
            self.client.state()
            return True
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, "no controller runs"
        return self._child

    def _command(self) -> list[str]:
        sets = {**self._plan.sets, "ray.address": self.ray.address, "ray.nodes": "[]"}
        pairs = [part for name, value in sets.items() for part in ("--cluster-set", f"{name}={value}")]
        places = ["--policy", str(self._policy), "--state", str(self.state_dir), "--port", str(self._port)]
        logs = ["-v", "--log-format", "json"]
        return [sys.executable, "-m", "pearl", "serve", "--cluster", self._plan.cluster, *pairs, *places, *logs]

    def _fail(self, why: str) -> Any:
        raise SystemFailedError(f"{why}; the end of {self.state_dir / LOG}:\n{self.log_tail()}")


@contextlib.contextmanager
def live_system(plan: SystemPlan) -> Iterator[LiveSystem]:
    """Ray with the cluster's nodes; `serve` then starts the controller. On leaving nothing of it is left."""
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    cluster = load_cluster(plan.cluster, plan.sets, state_dir=plan.state_dir)
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    prepare_model(cluster)
    with connected(cluster) as ray:
        assert ray is not None, "the cluster file says local"
        system = LiveSystem(plan, cluster, ray)
        try:
            yield system
        finally:
            system.close()
