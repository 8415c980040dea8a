"""A state folder that something damaged: the service says what, with one error, and starts nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pearl.errors import PearlError
from pearl.live.endpoint import read_endpoint
from pearl.live.training import Trainer
from tests.live.test_service import Bench, _generate, _serving, _snapshot, bench_in, live, until

Damage = Callable[[Path], object]


def controller(change: str) -> Damage:
    return lambda folder: _sql(folder / "controller.db", change)


def router(change: str) -> Damage:
    return lambda folder: _sql(folder / "router.db", change)


def fact(name: str, document: str) -> Damage:
    return controller(f"INSERT OR REPLACE INTO meta VALUES ('{name}', '{document}')")


def cut(name: str, size: int) -> Damage:
    return lambda folder: os.truncate(folder / name, size)


def copied(source: str, name: str) -> Damage:
    return lambda folder: shutil.copy(folder / source, folder / name)


OPEN = "INSERT INTO requests SELECT 'open', call, accepted_unix_s, NULL, NULL FROM requests LIMIT 1;"

DAMAGES: dict[str, tuple[Damage, str]] = {
    **{
        f"{name} is {text}": (fact(name, text), f"fact '{name}'")
        for name in ("batch", "training", "drains", "policy", "weights", "lease")
        for text in ("{", '{"open": 5, "running": "x"}')
    },
    "record": (fact("record", "{}"), "ledger record"),
    "data of events": (controller("UPDATE events SET data = '{'"), "event 1"),
    "workers of events": (controller("UPDATE events SET workers = '5'"), "event 1"),
    "kind of events": (controller("UPDATE events SET kind = 'x'"), "event 1"),
    "grace of a notice": (
        controller("""UPDATE events SET kind = 'reclaim_notice', data = '{"within_s": "x"}'"""),
        "event 1",
    ),
    "no steps": (controller("UPDATE plans SET document = '{}'"), "plan 1"),
    "no plan": (controller("UPDATE plans SET document = '[1]'"), "plan 1"),
    "phase": (controller("UPDATE OR IGNORE progress SET phase = 'x'"), "progress of plan"),
    "no decision": (controller("UPDATE decisions SET document = '[1]'"), "decision 1"),
    "changes": (controller("""UPDATE decisions SET document = '{"changes": ["x"]}'"""), "decision 1"),
    "telemetry": (controller("INSERT INTO telemetry (line) VALUES ('{')"), "not valid JSON"),
    "a table": (controller("DROP TABLE events"), "no such table"),
    "another program's": (
        lambda folder: (
            (folder / "controller.db").unlink(),
            _sql(folder / "controller.db", "CREATE TABLE mine (a)"),
        ),
        "no controller's store",
    ),
    "cut": (cut("controller.db", 5000), "malformed"),
    "journal for store": (copied("router.db", "controller.db"), "no such table"),
    "pool": (router("UPDATE pool SET document = '{'"), "the pool in the router's journal"),
    "pool without workers": (router("UPDATE pool SET document = '{}'"), "the pool in the router's journal"),
    "call": (router("INSERT INTO requests VALUES ('a', '{', 1.0, NULL, NULL)"), "request 'a'"),
    "tokens": (router(f"{OPEN} INSERT INTO segments VALUES ('open', 0, '[', '[]', 0)"), "request 'open'"),
    "a gap": (router(f"{OPEN} INSERT INTO segments VALUES ('open', 5, '[1]', '[0.1]', 0)"), "request 'open'"),
    "journal cut": (cut("router.db", 6000), "malformed"),
    "another program's journal": (
        lambda folder: ((folder / "router.db").unlink(), _sql(folder / "router.db", "CREATE TABLE mine (a)")),
        "no router's journal",
    ),
    "store for journal": (copied("controller.db", "router.db"), "no such table"),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Path]:
    """What a service left that ran once for all of these tests, and a copy of its folder."""
    root = tmp_path_factory.mktemp("damage")
    bench = bench_in(root / "state")

    async def before() -> None:
        async with bench.running() as client:
            await until(_serving(2), client)
            trainer = Trainer(client=client)
            await asyncio.to_thread(trainer.begin_batch, 0, trajectories=4)
            await asyncio.to_thread(_generate, client.url, [1, 2])
            directory = _snapshot(bench.cluster.weights.root, 1)
            await asyncio.to_thread(trainer.publish_weights, version=1, directory=directory)

    bench.directory.mkdir()
    live(before())
    shutil.copytree(bench.directory, root / "copy")
    return bench, root / "copy"


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_one_error_and_nothing_starts(left: tuple[Bench, Path], what: str) -> None:
    bench, copy = left
    shutil.rmtree(bench.directory)
    shutil.copytree(copy, bench.directory)

    async def after(said: str) -> None:
        launched, calls = list(bench.fleet.launched), dict(bench.fleet.asked())
        with pytest.raises(PearlError, match=said):
            async with bench.running(stopped=False):
                pass
        assert (bench.fleet.launched, dict(bench.fleet.asked())) == (launched, calls)
        assert not any(worker.dead for worker in bench.fleet.workers.values())
        assert read_endpoint(bench.directory) is None

    damage, said = DAMAGES[what]
    damage(bench.directory)
    live(after(said))


def _sql(path: Path, changes: str) -> None:
    db = sqlite3.connect(path)
    db.executescript(changes)
    db.close()
