from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pearl.cli.main import run
from pearl.live.endpoint import Endpoint, publish_endpoint
from pearl.policy.load import load_policy
from tests.live.stub_controller import TOKEN, StubController, error, stub_controller

STATE = {
    "cluster": "demo",
    "policy": "pearl",
    "shadow": False,
    "epoch": 41,
    "mode": "disaggregated",
    "counts": {"colocated": 0, "prefill": 1, "decode": 2, "inactive": 1, "borrowed": 1},
    "workers": [
        {"id": "n0/0", "node": "n0", "zone": "reserved", "role": "prefill", "status": "active", "gpus": 1,
         "started": True, "must_leave": False, "leave_within_s": None, "weight_version": 12},
        {"id": "s0/0", "node": "s0", "zone": "preemptible", "role": "decode", "status": "active", "gpus": 1,
         "started": True, "must_leave": True, "leave_within_s": 30.0, "weight_version": 9},
        {"id": "s1/0", "node": "s1", "zone": "preemptible", "role": "inactive", "status": "inactive", "gpus": 1,
         "started": False, "must_leave": False, "leave_within_s": None, "weight_version": 0},
    ],
    "weights": {"latest": 12, "oldest": 11},
    "training": {"running": True, "step": 12},
    "batch": {"step": 13, "trajectories": 64, "since_s": 42.0},
    "plan": {"id": "p-000007", "done": 2, "steps": 5},
    "calibration_error": 0.083,
    "uptime_s": 11_530.0,
}  # fmt: skip
DECISION = {
    "id": "d-000012",
    "at_unix_s": 1_700_000_000.0,
    "event": {"kind": "batch_started", "seq": 40, "workers": []},
    "policy": {"name": "pearl", "sha256": "0"},
    "shadow": False,
    "calibration_error": 0.05,
    "seconds": 0.0274,
    "plan": "p-000007",
    "decision": {
        "outcome": "switch",
        "mode": "disaggregated",
        "configuration": "1P2D",
        "counts": {"colocated": 0, "prefill": 1, "decode": 2, "inactive": 0, "borrowed": 0},
        "forced_by": [],
        "reasons": [{"code": "best", "text": "1P2D is predicted 20.0 s sooner", "data": {}}],
    },
    "predicted": {
        "makespan_s": 100.0,
        "stay_s": 120.0,
        "runner_up": None,
        "margin_s": None,
        "rejected": {"configuration": "2P1D", "makespan_s": 99.0},
    },
    "metrics": {"usd_rate": 12.5},
    "forecasts": [
        {"name": "window", "source": "overlap_window", "value": 153.2, "unit": "s", "age_s": 40.0, "stale": False,
         "samples": 8, "text": "153.2 s (source overlap_window, 8 samples, the newest 40 s old)"}
    ],
    "rules": [
        {"name": "kv", "file": "p.yaml", "line": 7, "text": "…", "slack": 2.0, "unit": "tokens", "active": True,
         "binding": True, "violation": 0.0}
    ],
}  # fmt: skip
PLAN = {
    "id": "p-000007",
    "steps": [
        {"kind": "drain", "worker": "n0/0", "phase": "ended", "seconds": 1.5, "because": ""},
        {"kind": "change_role", "worker": "n0/0", "before": "colocated", "after": "prefill", "phase": "dropped",
         "seconds": 0.0, "because": "the worker is gone"},
        {"kind": "stop", "worker": "n1/0", "phase": None, "seconds": None, "because": None},
    ],
}  # fmt: skip


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubController]:
    """A stub of the controller, known in the default state folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PEARL_ADMIN_TOKEN", raising=False)
    folder = tmp_path / "pearl-state"
    folder.mkdir()
    with stub_controller() as made:
        (folder / "token").write_text(TOKEN)
        publish_endpoint(folder, Endpoint(url=made.url, pid=1, started_unix_s=0.0))
        yield made


def test_status_shows_what_runs(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers["GET /state"] = (200, STATE)
    assert run(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "demo: 1P2D (1 borrowed, 1 inactive), epoch 41, policy pearl, up 3 h 12 min",
        "  weights 12, at least 11 may generate",
        "  training step 12 runs",
        "  batch 13: 64 trajectories for 42 s",
        "  plan p-000007: 2 of 5 steps done",
        "  predicted makespans are off by 8% of the measured ones",
    ]
    assert " ".join(lines[-2].split()) == (
        "s0/0 s0 preemptible decode active 9 must leave within 30 s, weights too old to serve"
    )
    assert lines[-1].endswith("not started")


def test_status_for_scripts(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers["GET /state"] = (200, STATE)
    assert run(["status", "--format", "json", "--state", "pearl-state"]) == 0
    assert json.loads(capsys.readouterr().out) == STATE
    assert run(["status", "--format", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == STATE


def test_status_again_and_again_until_the_controller_is_gone(
    stub: StubController, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /state"] = lambda _: (200, STATE) if len(stub.calls) < 3 else None
    assert run(["status", "--watch", "--every", "0.01"]) == 5
    captured = capsys.readouterr()
    assert captured.out.count("demo: 1P2D") == 2
    assert "no controller answers" in captured.err


@pytest.mark.parametrize(
    "args",
    [["status"], ["events"], ["explain"], ["drain", "a"], ["stop"], ["policy", "set", "pearl"]],
)
def test_without_a_controller(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(args) == 5
    assert capsys.readouterr().err == (
        "error: no controller is known in pearl-state (start one with `pearl serve … --state pearl-state`, or say where"
        " it is with --state or --url)\n"
    )


def test_a_wrong_token(
    stub: StubController, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEARL_ADMIN_TOKEN", "other")
    assert run(["status", "--url", stub.url]) == 2
    assert "PEARL_ADMIN_TOKEN" in capsys.readouterr().err


def test_events_page_by_page(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    first = {"seq": 1, "at_unix_s": 1_700_000_000.0, "kind": "gpus_added", "workers": ["a", "b"], "data": {}}
    second = {"seq": 2, "at_unix_s": 1_700_000_001.0, "kind": "reclaim_notice", "workers": ["a"],
              "data": {"within_s": 30.0}}  # fmt: skip
    pages = {"0": [first], "1": [second], "2": []}
    stub.answers["GET /events"] = lambda call: (200, {"events": pages[call.query["after"]]})
    assert run(["events"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "     1  2023-11-14 22:13:20Z  gpus_added  a, b",
        "     2  2023-11-14 22:13:21Z  reclaim_notice  a  within_s=30",
    ]
    assert run(["events", "--after", "1", "--format", "jsonl"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [second]


def test_following_events_waits_at_the_controller(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"seq": 5, "kind": "operator", "workers": []}
    stub.answers["GET /events"] = lambda _: (
        (200, {"events": [event]})
        if len(stub.calls) == 2
        else ((200, {"events": []}) if len(stub.calls) == 1 else None)
    )
    assert run(["events", "--follow"]) == 5
    assert "operator" in capsys.readouterr().out
    assert [(call.query["after"], call.query["wait_s"]) for call in stub.calls] == [
        ("0", "20"),
        ("0", "20"),
        ("5", "20"),
    ]


def test_explain_the_newest_decision(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers |= {
        "GET /decisions": (200, {"decisions": [{"id": "d-000012"}]}),
        "GET /decisions/d-000012": (200, DECISION),
        "GET /plans/p-000007": (200, PLAN),
    }
    assert run(["explain"]) == 0
    assert capsys.readouterr().out == (
        "d-000012 2023-11-14 22:13:20Z, after event 40, batch_started: switch to 1P2D (0 borrowed,"
        " 0 inactive)\n"
        "  predicted makespan 100.0 s; staying 120.0 s; turned down 2P1D at 99.0 s\n"
        "  policy pearl; predictions are off by 5%; decided in 27 ms\n"
        "\n"
        "Why\n"
        "  best  1P2D is predicted 20.0 s sooner\n"
        "\n"
        "Forecasts\n"
        "  window: 153.2 s (source overlap_window, 8 samples, the newest 40 s old)\n"
        "\n"
        "Metrics: usd_rate = 12.5\n"
        "\n"
        "Rules (* binding)\n"
        "  *  kv  slack 2  tokens  p.yaml:7\n"
        "\n"
        "Plan p-000007: 3 steps\n"
        "  1  drain        n0/0                       ended    1.5 s\n"
        "  2  change_role  n0/0  colocated → prefill  dropped         the worker is gone\n"
        "  3  stop         n1/0                       waits\n"
    )
    assert run(["explain", "d-000012", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**DECISION, "plan": PLAN}


def test_nothing_to_explain(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers["GET /decisions"] = (200, {"decisions": []})
    assert run(["explain"]) == 2
    assert capsys.readouterr().err == "error: nothing has been decided yet\n"
    stub.answers["GET /decisions/d-9"] = (404, error("unknown_decision", "no decision 'd-9'"))
    assert run(["explain", "d-9"]) == 2
    assert capsys.readouterr().err == "error: no decision 'd-9'\n"


def test_a_tick_that_failed_and_the_first_start(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    reason = {"code": "failed", "text": "SolverUnavailableError: none is here", "data": {}}
    failed = {"id": "d-3", "at_unix_s": None, "event": {"seq": 2, "kind": "operator"}, "plan": None, "shadow": True,
              "decision": {"outcome": "failed", "reasons": [reason]}}  # fmt: skip
    first = {"id": "d-1", "at_unix_s": None, "event": None, "plan": None,
             "decision": {"outcome": "bootstrap", "reasons": []}}  # fmt: skip
    stub.answers |= {"GET /decisions/d-3": (200, failed), "GET /decisions/d-1": (200, first)}
    assert run(["explain", "d-3"]) == 0
    assert run(["explain", "d-1"]) == 0
    out = capsys.readouterr().out
    assert "after event 2, operator: no decision; workers that must leave do, all others stay; shadow: nothing" in out
    assert "failed  SolverUnavailableError: none is here" in out
    assert "after the start: the reserved workers start" in out


def test_drain_and_undo(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers["POST /drain"] = (200, {})
    assert run(["drain", "n0/0", "--deadline", "5"]) == 0
    assert run(["drain", "n0/0", "--undo"]) == 0
    assert capsys.readouterr().out == "n0/0 serves nothing\nn0/0 may serve again\n"
    assert [call.body for call in stub.calls] == [
        {"worker": "n0/0", "deadline_s": 5.0},
        {"worker": "n0/0", "undo": True},
    ]
    stub.answers["POST /drain"] = (404, error("unknown_worker", "no worker 'x'"))
    assert run(["drain", "x"]) == 2


POLICY = """# a comment, so that lines are those of the author
apiVersion: pearl.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: mine}
extends: [PARENT]
spec:
  params:
    most: {value: 40}
  constraints:
    - {name: few, require: N_P <= most}
"""


@pytest.mark.parametrize("parent", ["builtin/pearl", "./parent.yaml"])
@pytest.mark.parametrize("sets", [[], ["--set", "most=3"]])
def test_a_policy_is_sent_whole(
    stub: StubController, tmp_path: Path, parent: str, sets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["PUT /policy"] = (200, {"policy": {"name": "mine", "sha256": "0"}})
    parent_text = yaml.safe_dump(dict(load_policy("pearl").document))
    (tmp_path / "parent.yaml").write_text(parent_text)
    (tmp_path / "mine.yaml").write_text(POLICY.replace("PARENT", parent))
    assert run(["policy", "set", "mine.yaml", *sets]) == 0
    assert capsys.readouterr().out == "policy mine is in force\n"
    body = stub.calls[0].body
    assert body["name"] == "mine.yaml"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "p.yaml").write_text(body["text"])
    arrived, meant = load_policy(elsewhere / "p.yaml"), load_policy("mine.yaml", sets={"most": "3"} if sets else {})
    assert dict(arrived.document) == dict(meant.document)
    assert body["text"].startswith("# a comment") == (parent == "builtin/pearl" and not sets)


def test_a_policy_that_does_not_hold_is_not_sent(stub: StubController, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("kind: nonsense\n")
    assert run(["policy", "set", "bad.yaml"]) == 2
    assert stub.calls == []


def test_a_built_in_policy_by_name(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers["PUT /policy"] = (400, error("bad_policy", "rlboost-plus:1:1: no overlap zone"))
    assert run(["policy", "set", "rlboost-plus"]) == 2
    assert capsys.readouterr().err == "error: rlboost-plus:1:1: no overlap zone\n"


@pytest.mark.parametrize(("args", "workers"), [([], True), (["--keep-workers"], False)])
def test_stop_waits_until_the_controller_is_gone(stub: StubController, args: list[str], workers: bool) -> None:
    stub.answers |= {
        "POST /stop": (202, {}),
        "GET /state": lambda _: (200, STATE) if len(stub.calls) < 3 else None,
    }
    assert run(["stop", *args]) == 0
    assert stub.calls[0].body == {"workers": workers}
    assert len(stub.calls) == 3


def test_stop_waits_while_the_controller_says_that_it_stops(stub: StubController) -> None:
    """It answers so for as long as an engine takes that is just starting."""
    stopping = (503, error("stopping", "the controller stops"))
    stub.answers |= {"POST /stop": (202, {}), "GET /state": lambda _: stopping if len(stub.calls) < 4 else None}
    assert run(["stop"]) == 0
    assert len(stub.calls) == 4


def test_a_controller_that_does_not_stop(stub: StubController, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers |= {"POST /stop": (202, {}), "GET /state": (200, STATE)}
    assert run(["stop", "--wait", "0.1"]) == 5
    assert "still runs after 0.1 s" in capsys.readouterr().err
