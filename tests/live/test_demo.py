"""Parts of the demonstration that need neither Ray nor vLLM; the whole is run by `make demo-live`."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pearl.api import choose_predictor, choose_solver
from pearl.core.cluster import ClusterState, Mode, Role, Status, Worker, Zone
from pearl.live.cluster.load import load_cluster
from pearl.live.demo import __main__ as command
from pearl.live.demo.figures import KvTally, Summary, Watch, parse_page, steps_ended, summarise
from pearl.live.demo.processes import descendants, left_after, name_of, shared_memory
from pearl.live.demo.steering import steering_policy
from pearl.live.demo.system import LiveSystem, SystemFailedError
from pearl.live.rollout import Answer, Ask, Environment, Outcome, Session, Turn
from pearl.policy.load import load_policy
from pearl.scheduler import deliberate

NODES = {"node-0": Zone.RESERVED, "spot-0": Zone.PREEMPTIBLE, "train-0": Zone.OVERLAP}
P, D, C = Role.PREFILL, Role.DECODE, Role.COLOCATED


def pool(*roles: Role) -> ClusterState:
    workers = (
        Worker(id=f"{node}/0", node=node, zone=zone, role=role, status=Status.ACTIVE)
        for (node, zone), role in zip(NODES.items(), roles, strict=True)
    )
    return ClusterState(workers=tuple(workers), epoch=1)


def decided(text: str, state: ClusterState, tmp_path: Path) -> tuple[str, set[str]]:
    """The configuration that a steering policy leads to, and the workers whose role it changes."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    policy = load_policy(str(path), sets={})
    situation = load_cluster("demo-cpu", state_dir=tmp_path).situation(state)
    tick = deliberate(situation, policy, predictor=choose_predictor(policy, None), solver=choose_solver(policy, None))
    changed = {step.worker for step in tick.plan.steps if type(step).__name__ == "ChangeRole"}
    return tick.decision.counts.label(), changed


@pytest.mark.parametrize(
    ("wanted", "before", "after", "changed"),
    [
        ({"spot-0": P, "node-0": D, "train-0": D}, (C, C, C), "1P2D", {*NODES}),
        ({"spot-0": D, "node-0": P, "train-0": P}, (D, P, D), "2P1D", {*NODES}),
        ({"spot-0": P, "node-0": D, "train-0": D}, (D, P, D), "1P2D", set()),
        ({}, (P, D, P), "3C", {*NODES}),
    ],
)
def test_a_steering_policy_leads_to_the_roles_that_it_names(
    wanted: Mapping[str, Role], before: tuple[Role, ...], after: str, changed: set[str], tmp_path: Path
) -> None:
    mode = Mode.DISAGGREGATED if wanted else Mode.COLOCATED
    label, moved = decided(steering_policy("p", mode, wanted), pool(*before), tmp_path)
    assert label == after
    assert moved == {f"{node}/0" for node in changed}


def test_a_steering_policy_may_limit_who_serves(tmp_path: Path) -> None:
    assert decided(steering_policy("two", Mode.COLOCATED, most=2), pool(C, C, C), tmp_path)[0] == "2C"


def test_a_metrics_page_is_read_as_the_service_writes_it() -> None:
    page = parse_page('# HELP a_total A.\na_total 3\nb_total{kind="x",why="y"} 2\nb_total{kind="z"} 0.5\n')
    assert page.total("a_total") == 3
    assert page.total("b_total") == 2.5
    assert page.total("b_total", kind="x") == 2
    assert page.total("b_total", kind="none") == 0 == page.total("c_total")


def test_steps_are_counted_where_they_ended() -> None:
    steps = [
        {"kind": "drain", "phase": "ended"},
        {"kind": "drain", "phase": "dropped"},
        {"kind": "start", "phase": "began"},
    ]
    assert steps_ended([{"steps": steps}, {"steps": steps[:1]}]) == {"drain": 2}


def test_transferred_tokens_are_counted_over_restarts() -> None:
    def report(pid: int, tokens: int) -> Any:
        return SimpleNamespace(worker="w", pid=pid, counters=SimpleNamespace(transferred=tokens))

    tally = KvTally()
    for seen in (report(1, 10), report(1, 30), report(2, 5)):
        tally.note({"w": seen})
    assert tally.tokens == 35


def test_mode_changes_are_those_between_modes() -> None:
    states = [
        {"mode": mode, "workers": [], "weights": {"latest": 0}, "training": {"running": False}}
        for mode in (None, "colocated", None, "colocated", "disaggregated", None, "colocated")
    ]
    shown = []

    class System:
        async def state(self) -> dict[str, Any]:
            if not states:
                raise SystemFailedError("over")
            return states.pop(0)

    watch = Watch(cast(LiveSystem, System()), lambda _, after: shown.append(after["mode"]))
    with pytest.raises(SystemFailedError):
        asyncio.run(watch.run())
    assert watch.mode_changes == 2
    assert shown == [None, "colocated", None, "colocated", "disaggregated", None, "colocated"]


def outcome(*answers: tuple[int, ...], budget: int = 2) -> Outcome:
    environment = Environment()
    session = Session(environment=environment, index=0, turns=len(answers))
    for number, tokens in enumerate(answers):
        ask = Ask(id=str(number), session="s", prompt=(1,), max_tokens=budget)
        session.done.append(Turn(ask=ask, answer=Answer(token_ids=tokens, weight_versions=(0,) * len(tokens))))
    return Outcome(sessions=(session,), seconds=1.0)


def summary(accepted: int, ran: Outcome, right: Outcome) -> Summary:
    page = parse_page(
        f'pearl_router_requests_accepted_total {accepted}\npearl_events_total{{kind="reclaim_notice"}} 1\n'
    )
    watch = Watch(cast(LiveSystem, None), lambda *_: None, mode_changes=2)
    return summarise(page=page, plans=[], outcome=ran, reference=right, watch=watch, kv=7, seconds=1.23)


def test_a_summary_is_good_only_if_all_is_well() -> None:
    right = outcome((1, 2), (3, 4))
    good = summary(2, right, right)
    assert good.good
    assert json.loads(json.dumps(good.document()))["preemptions"] == 1
    twice = summary(3, right, right)
    assert (twice.duplicated, twice.good) == (1, False)
    other = summary(2, right, outcome((1, 2), (3, 5)))
    assert (other.tokens_identical, other.good) == (False, False)
    long = outcome((1, 2), (3, 4, 5))
    assert (summary(2, long, long).duplicated, summary(2, long, long).good) == (1, False)
    with pytest.raises(SystemFailedError, match="counted 1"):
        summary(1, right, right)


def test_processes_below_are_found_with_their_shared_memory_and_seen_to_end() -> None:
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        below = [p for p in descendants(os.getpid()) if p.pid == child.pid] + list(descendants(child.pid))
        try:
            assert [name_of(process).split()[0].rpartition("/")[2][:6] for process in below] == ["python", "sleep"]
            assert left_after(below, limit_s=0.0) == tuple(below)
        finally:
            for process in below:
                os.kill(process.pid, signal.SIGKILL)
        assert left_after(below, limit_s=10.0) == ()
        assert name_of(below[0]) in ("gone", "")


def test_shared_memory_that_a_process_maps_is_named(tmp_path: Path) -> None:
    path = Path("/dev/shm") / f"pearl-test-{os.getpid()}"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            here = type(descendants(os.getppid())[0])(pid=os.getpid(), started=0)
            assert path in shared_memory([here])
    finally:
        path.unlink()


def test_without_its_libraries_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert command.main([]) == 2
    assert "make demo-live" in capsys.readouterr().err
