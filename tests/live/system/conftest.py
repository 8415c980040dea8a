"""One whole live system for all tests of this folder: Ray with three nodes, real vLLM workers, `pearl serve`.

It ends with the last test of the folder, not of the session: a process can be in one Ray cluster at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pearl.live.demo.processes import descendants, left_after, name_of, shared_memory
from pearl.live.demo.system import SystemPlan, live_system
from tests.live.system.bench import COLOCATED, START_S, Bench, reference, serving
from tests.live.worker.real import missing

HERE = Path(__file__).parent
SETS = {
    "engine.kv_lease": "8s",
    "engine.kv_margin": "1s",
    "router.kv_margin": "4s",
    "limits.health_every": "0.5s",
    "limits.restart_after": "0.5s",
    "ports.kv.first": "18600",
}
OPEN = pytest.StashKey[ExitStack]()


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bench:
    if reason := missing():
        pytest.skip(reason)
    stack = request.config.stash.setdefault(OPEN, ExitStack())
    return stack.enter_context(running(tmp_path_factory.mktemp("system")))


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or HERE not in nextitem.path.parents:
        item.config.stash.setdefault(OPEN, ExitStack()).close()


@contextmanager
def running(state_dir: Path) -> Iterator[Bench]:
    """The system, which leaves neither process nor shared memory."""
    before = {process.pid for process in descendants(os.getpid())}
    plan = SystemPlan(policy=COLOCATED, state_dir=state_dir, sets=SETS)
    with live_system(plan) as system, asyncio.Runner() as runner:
        system.serve()

        async def begin() -> Bench:
            await system.until(lambda state: len(serving(state)) == 3, what="three workers", limit_s=START_S)
            return Bench(system=system, runner=runner, right=await reference(system))

        bench = runner.run(begin())
        assert bench.right.losses == ()
        yield bench
        below = [process for process in descendants(os.getpid()) if process.pid not in before]
        shared = shared_memory(below)
        assert system.stop_controller(workers=True) == 0
    left = left_after(below, limit_s=20.0)
    assert [name_of(process) for process in left] == []
    assert [path for path in shared if path.exists()] == []
