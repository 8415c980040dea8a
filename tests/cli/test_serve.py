from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from pearl.cli.main import run
from pearl.errors import ScenarioError
from pearl.live.cluster.load import builtin_clusters
from pearl.live.control.logs import set_up_logs
from pearl.live.control.options import LogFormat, ServeOptions
from pearl.live.router.log import log


def test_a_dry_run_says_what_would_be_done_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["serve", "--cluster", "demo-cpu", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "nodes: node-0 (1 reserved), spot-0 (1 preemptible), train-0 (1 overlap)",
        "First: the reserved workers start, about 62.0 s",
        "  start        node-0/0  colocated",
        "  admit_group  node-0/0",
    ]
    assert lines[5:7] == ["Then:", "switch to 2C (colocated, 0 borrowed, 1 inactive)"]
    assert list(tmp_path.iterdir()) == [], "nothing is started, nothing is written"


def test_a_dry_run_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["serve", "--cluster", "demo-cpu", "--policy", "roll-fixed", "--dry-run", "--format", "json"]
    assert run(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["decision"]["kind"], found["decision"]["inputs"]["policy"]) == (
        "Preview",
        "Decision",
        "roll-fixed",
    )
    assert [step["kind"] for step in found["bootstrap"]["steps"]] == ["start", "admit_group"]


def test_a_dry_run_without_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(builtin_clusters()["demo-cpu"].read_text())
    del document["spec"]["workload"]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(document))
    assert run(["serve", "--cluster", str(path), "--dry-run"]) == 0
    assert "No workload is known before one is measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cluster", "demo-cpuu"], "no cluster 'demo-cpuu': neither a file nor a built-in one (did you mean"),
        (["--cluster", "demo-cpu", "--policy", "nonsense"], "no policy 'nonsense'"),
        (["--cluster", "demo-cpu", "--cluster-set", "nonsense=1"], "unknown key 'nonsense'"),
        (["--cluster", "demo-cpu", "--set", "nonsense=1"], "unknown param 'nonsense'"),
        (["--cluster", "demo-cpu", "--forecaster", "nonsense"], "unknown forecaster 'nonsense'"),
        (["--cluster", "demo-cpu", "--host", 'x", expose: true, y: "'], "host: string should match pattern"),
        (["--cluster", "demo-cpu", "--host", "a\nb"], "host: string should match pattern"),
        (
            ["--cluster", "demo-cpu", "--cluster-set", "zones.reserved.min_workers=3"],
            "zone reserved: the nodes offer 1 workers; expected at least 3",
        ),
    ],
)
def test_what_does_not_hold(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *args, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_a_full_disk_behind_standard_output_is_no_fault_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pearl", "policy", "list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (1, "error: cannot write: No space left on device\n")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="what is missing elsewhere is here")
def test_what_is_not_installed_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["serve", "--cluster", "demo-cpu"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: not installed: ")
    assert 'pip install "pearl[live]"' in error
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_given_is_meant(tmp_path: Path) -> None:
    asked = ServeOptions(cluster="demo-cpu", policy="pearl", host="0.0.0.0", port=0, state_dir=tmp_path / "s")
    cluster = asked.load()
    assert (cluster.http.host, cluster.http.port, cluster.state_dir) == ("0.0.0.0", 0, tmp_path / "s")
    sets = {"ports.http.host": '"0.0.0.0"'}
    with pytest.raises(ScenarioError, match="expected expose: true"):
        ServeOptions(cluster="demo-cpu", policy="pearl", cluster_sets=sets).load()


@pytest.fixture
def _loggers() -> Iterator[None]:
    """Loggers as they were."""
    names = ("pearl", "pearl.router")
    before = [
        (logging.getLogger(n).level, logging.getLogger(n).handlers, logging.getLogger(n).propagate) for n in names
    ]
    yield
    for name, (level, handlers, propagate) in zip(names, before, strict=True):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers, logger.propagate = handlers, propagate


@pytest.mark.usefixtures("_loggers")
@pytest.mark.parametrize(
    ("verbosity", "shown"), [(0, {"bad"}), (1, {"bad", "decision"}), (2, {"bad", "decision", "accepted"})]
)
def test_logs_are_quiet_unless_asked_for(verbosity: int, shown: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(LogFormat.JSON, verbosity=verbosity)
    control = logging.getLogger("pearl.control")
    control.info("decision", extra={"fields": {"plan": "p-000001"}})
    control.warning("bad")
    log("accepted", request_id="r")
    captured = capsys.readouterr()
    assert {json.loads(line)["event"] for line in captured.err.splitlines()} == shown
    assert captured.out == ""


@pytest.mark.usefixtures("_loggers")
def test_a_log_line_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(LogFormat.TEXT, verbosity=2)
    log("accepted", request_id="r\n12:00:00 error: all is lost", seconds=1.5, empty="")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r"accepted request_id='r\n12:00:00 error: all is lost' seconds=1.5 empty=''")
