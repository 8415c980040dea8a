"""The embedded Ray's host over a fake of Ray, and what its owner says when it fails. No Ray runs here."""

from __future__ import annotations

import importlib.util
import io
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from pearl.core.cluster import Zone
from pearl.errors import UsageError
from pearl.live import embedded, ray_host
from pearl.live.cluster.load import load_cluster
from pearl.live.embedded import EmbeddedRay, RayStartError, connected

NO_RAY = importlib.util.find_spec("ray") is None

SCRIPT = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request.get("add") == "slow":
        time.sleep(60)
    answer = {"error": "no room"} if request.get("add") == "bad" else {"address": "127.0.0.1:7"}
    print(json.dumps(answer), flush=True)
"""


class FakeRay:
    """What `ray.cluster_utils.Cluster` is asked."""

    address = "127.0.0.1:5"

    def __init__(self) -> None:
        self.did: list[Any] = []

    def add_node(self, **arguments: Any) -> str:
        if arguments["num_cpus"] < 0:
            raise ValueError("resources must not be negative\nand more")
        self.did.append(("add", arguments["num_cpus"]))
        return f"node of {arguments['num_cpus']}"

    def remove_node(self, node: str, *, allow_graceful: bool) -> None:
        self.did.append(("remove", node, allow_graceful))

    def shutdown(self) -> None:
        self.did.append("shutdown")


def test_the_host_answers_each_request_and_ends_the_nodes_with_its_input(monkeypatch: pytest.MonkeyPatch):
    ray = FakeRay()
    host = object.__new__(ray_host.Host)
    host._ray, host._nodes = ray, {}
    monkeypatch.setattr(ray_host, "Host", lambda: host)
    requests = [
        {"add": "a", "arguments": {"num_cpus": 2}},
        {"add": "b", "arguments": {"num_cpus": -1}},
        {"remove": "a", "graceful": False},
        {"remove": "a", "graceful": False},
        {"what": 1},
    ]
    answers = io.StringIO()
    ray_host.serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"address": "127.0.0.1:5"},
        {"error": "ValueError: resources must not be negative"},
        {},
        {},
        {"error": "unknown request {'what': 1}"},
    ]
    assert ray.did == [("add", 2), ("remove", "node of 2", False), "shutdown"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EmbeddedRay:
    """One whose host is a script that starts nothing."""
    (tmp_path / "scripted_host.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(embedded, "HOST_MODULE", "scripted_host")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return EmbeddedRay(load_cluster("demo-cpu"))


def test_nodes_come_and_go_by_name(scripted: EmbeddedRay):
    assert scripted.address == "127.0.0.1:7"
    scripted.add_node("s", Zone.PREEMPTIBLE)
    with pytest.raises(UsageError, match="a node 's' runs already"):
        scripted.add_node("s", Zone.PREEMPTIBLE)
    with pytest.raises(UsageError, match="a node 'head' runs already"):
        scripted.add_node("head", Zone.RESERVED)
    with pytest.raises(RayStartError, match="Ray did not start node 'bad': no room"):
        scripted.add_node("bad", Zone.RESERVED)
    assert scripted.nodes == ("s",)
    scripted.remove_node("s")
    scripted.remove_node("s")
    assert scripted.nodes == ()
    scripted.close()
    scripted.close()
    assert scripted._host.returncode == 0
    with pytest.raises(RayStartError, match="its host process has ended"):
        scripted.add_node("s", Zone.PREEMPTIBLE)


def test_a_host_that_does_not_answer_is_ended(scripted: EmbeddedRay, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "ANSWER_S", 0.2)
    with pytest.raises(RayStartError, match="Ray did not start node 'slow': no answer in 0"):
        scripted.add_node("slow", Zone.RESERVED)
    scripted.close()
    assert scripted._host.returncode is not None


def test_a_zone_by_label_has_no_local_nodes(scripted: EmbeddedRay, tmp_path: Path):
    scripted._cluster = load_cluster(
        "h100-qwen3-8b", {"zones": "{reserved: {label: a=b, workers_per_node: 1}}"}, state_dir=tmp_path
    )
    with pytest.raises(UsageError, match="zone reserved goes by label"):
        scripted.add_node("n", Zone.RESERVED)
    scripted.close()


def test_an_address_where_nothing_listens_is_refused_at_once():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    cluster = load_cluster("demo-cpu", {"ray": f"{{address: '127.0.0.1:{port}'}}"})
    with pytest.raises(UsageError, match=rf"cannot join Ray at 127\.0\.0\.1:{port}: .*refused"), connected(cluster):
        raise AssertionError("it was joined")


@pytest.mark.skipif(not NO_RAY, reason="Ray is installed")
def test_without_ray_the_start_says_so(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RayStartError, match="Ray did not start node 'head': its host process has ended"):
        EmbeddedRay(load_cluster("demo-cpu"))
    assert "No module named 'ray'" in capfd.readouterr().err
