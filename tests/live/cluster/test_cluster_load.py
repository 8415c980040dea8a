from __future__ import annotations

import json
from pathlib import Path

import pytest

from pearl.api import choose_predictor, choose_solver
from pearl.core.cluster import ClusterState, Zone
from pearl.core.workload import Training
from pearl.errors import ScenarioError, UsageError
from pearl.live.cluster.load import builtin_clusters, load_cluster
from pearl.live.cluster.offers import offer
from pearl.live.cluster.prepare import end_token_ids, prepare_model
from pearl.live.control.fleet import Node
from pearl.live.control.limits import ControlLimits
from pearl.policy.load import load_policy
from pearl.scheduler import deliberate

TEXT = """\
apiVersion: pearl.dev/v1alpha1
kind: Cluster
metadata:
  name: small
spec:
  device: cpu
  ray:
    address: local
    nodes:
      - {name: node-0, zone: reserved, workers: 2}
  model:
    path: models/m
    served_name: m
  engine:
    kv_cache: 64 MiB
    max_model_tokens: 4096
    arguments: {seed: 7}
  profile: qwen3-8b-h100
  limits: {drain: 10s}
"""


def write(folder: Path, *changes: tuple[str, str]) -> Path:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def faults(path: Path, sets: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_cluster(path, sets or {})
    return [str(fault).removeprefix(f"{path.parent}/") for fault in caught.value.faults]


def test_a_file_becomes_facts_with_absolute_paths(tmp_path: Path):
    cluster = load_cluster(write(tmp_path), state_dir=tmp_path / "state")
    assert cluster.model.path == tmp_path / "models" / "m"
    assert cluster.weights.root == tmp_path / "state" / "weights"
    assert cluster.engine.kv_cache_bytes == 64 << 20
    assert cluster.limits == ControlLimits(drain_s=10.0)
    assert cluster.device.engine_args["seed"] == 7
    assert (cluster.profile.chunk_tokens, cluster.profile.max_sequences) == (8192, 256)
    assert (cluster.training, cluster.max_staleness) == (Training.ASYNCHRONOUS, 1)
    assert {zone: settings.resource for zone, settings in cluster.zones.items()} == {
        Zone.RESERVED: "pearl_reserved",
        Zone.PREEMPTIBLE: "pearl_preemptible",
        Zone.OVERLAP: "pearl_overlap",
    }
    assert cluster.namespace == "pearl.small"


def test_the_limits_of_an_empty_section_are_those_of_the_control_plane_and_of_the_router(tmp_path: Path):
    cluster = load_cluster(write(tmp_path, ("  limits: {drain: 10s}\n", "")))
    assert cluster.limits == ControlLimits()
    router = cluster.router_config(journal=None, admin_token=None)
    assert (router.slots_per_worker, router.kv_margin_s, router.kv_lease_s) == (256, 5.0, 30.0)
    assert (router.host, router.port, router.model) == ("127.0.0.1", 8000, "m")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("device: cpu", "device: tpu", "c.yaml:6:11: spec.device: "),
        ("served_name: m", "served_name: m\n    pth: m", "c.yaml:14:5: unknown key 'pth' (did you mean 'path'?)"),
        ("64 MiB", "64", "c.yaml:15:15: spec.engine.kv_cache: a size in bytes needs a unit"),
        ("    kv_cache: 64 MiB\n", "", "c.yaml:15:5: engine.kv_cache is missing"),
        ("address: local", "address: auto", "c.yaml:8:5: spec.ray: address local needs nodes"),
        ("address: local", "address: here", "c.yaml:8:14: spec.ray.address: expected local, auto or HOST:PORT"),
        ("{seed: 7}", "{trust_remote_code: true}", "argument 'trust_remote_code' is not on the list of those allowed"),
        ("{seed: 7}", "{max_num_seqs: 7}", "expected engine.max_sequences"),
        ("{seed: 7}", "{gpu_memory_utilisation: 0.5}", "did you mean 'gpu_memory_utilization'?"),
        ("path: models/m", "path: ../m", "c.yaml:12:11: model.path: "),
        ("path: models/m", "path: /m", "is in none of the roots; expected a path below "),
        ("path: models/m", "tiny: {seed: -1}", "c.yaml:12:18: spec.model.tiny.seed: "),
        ("    path: models/m\n", "", "c.yaml:12:5: spec.model: a model needs either path or tiny"),
        ("{drain: 10s}", "{drain: 0s}", "c.yaml:19:19: spec.limits.drain: expected a time above 0"),
        ("{drain: 10s}", "{kept: 2s}", "limits.kept is 2s; expected at least router.kv_margin, 5s"),
        ("max_model_tokens: 4096", "kv_lease: 1500ms\n    max_model_tokens: 9", "leases in whole seconds"),
        ("max_model_tokens: 4096", "kv_lease: 4s\n    max_model_tokens: 9", "router.kv_margin is 5s; expected between"),
        ("  limits:", "  ports: {http: {host: 0.0.0.0}}\n  limits:", "other machines reach 0.0.0.0"),
        ("  limits:", "  weights: {keep: 2}\n  limits:", "weights.keep is 2; expected more than training.max_stal"),
        ("  limits:", "  zones: {overlap: {resource: pearl_reserved}}\n  limits:", "zones reserved and overlap share"),
        ("  limits:", "  zones: {overlap: {label: a=b}}\n  limits:", "label and workers_per_node belong together"),
        ("  limits:", "  zones: {reserved: {gpus: 1.5}}\n  limits:", "1.5 GPUs; expected a whole number above 1"),
        ("max_model_tokens: 4096", "max_model_tokens: 4096\n    tensor_parallel: 2", "expected 1, the profile's"),
        ("qwen3-8b-h100", "qwen3-8b-h10", "c.yaml:18:12: unknown engine profile 'qwen3-8b-h10' (did you mean"),
        ("kind: Cluster", "kind: Scenario", "c.yaml:2:7: kind: "),
    ],
)
def test_a_fault_says_where_and_what(tmp_path: Path, old: str, new: str, expected: str):
    found = faults(write(tmp_path, (old, new)))
    assert len(found) == 1
    assert expected in found[0]
    assert found[0].startswith("c.yaml:")


def test_all_faults_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path):
    path = write(tmp_path, ("models/m", "/m"), ("    kv_cache: 64 MiB\n", ""), ("-h100", "-h999"))
    assert [fault.split(":")[1] for fault in faults(path)] == ["12", "15", "17"]


def test_a_link_out_of_the_roots_is_refused_and_a_root_lets_it_in(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here" / "models").mkdir(parents=True)
    (tmp_path / "here" / "models" / "m").symlink_to(tmp_path / "elsewhere")
    path = write(tmp_path / "here")
    assert "is in none of the roots" in faults(path)[0]
    cluster = load_cluster(path, {"roots": "[../elsewhere]"})
    assert cluster.model.path == tmp_path / "elsewhere"


def test_sets_replace_values_and_say_where_they_are_wrong(tmp_path: Path):
    path = write(tmp_path)
    cluster = load_cluster(path, {"limits.canary": "3s", "ray.nodes.0.workers": "5", "ports.http": "{port: 0}"})
    assert (cluster.limits.canary_s, cluster.ray.nodes[0].workers, cluster.http.port) == (3.0, 5, 0)
    assert cluster.sha256 != load_cluster(path).sha256
    assert faults(path, {"limits.drain": "10"}) == [
        "--cluster-set limits.drain:1:1: spec.limits.drain: a time needs a unit; expected a time such as 2s, 150ms,"
        " 10min, not 10"
    ]
    unknown = faults(path, {"limits.dran": "1s"})
    assert "--cluster-set limits.dran:1:1: unknown key 'dran' (did you mean 'drain'?)" in unknown
    (absent, *_) = faults(path, {"ray.nodes.4.workers": "1"})
    assert absent.startswith("--cluster-set ray.nodes.4.workers:1:1: ray.nodes has no 4")
    assert "has no '" in faults(path, {f"ray.nodes.{'9' * 5000}": "1"})[0]
    assert "unknown key ''" in faults(path, {"": "1"})[0]
    (scalar, *_) = faults(path, {"device.name": "1"})
    assert scalar.startswith("--cluster-set device.name:1:1: device has no 'name' to set")
    assert faults(path, {"limits.drain": " "}) == [
        "--cluster-set limits.drain: no value; expected a value as written in the file"
    ]


def test_local_nodes_may_share_a_gpu_and_not_take_the_same_one(tmp_path: Path):
    sets = {"ray.nodes": "[{name: a, zone: reserved}, {name: b, zone: reserved}]"}
    path = write(tmp_path, ("device: cpu", "device: cuda"))
    (fault,) = faults(path, sets)
    assert fault == (
        "--cluster-set ray.nodes:1:1: 2 local nodes would take the same GPUs; expected one node, or a share below 1 as"
        " zones.reserved.gpus"
    )
    assert load_cluster(path, {**sets, "zones": "{reserved: {gpus: 0.5}}"}).zones[Zone.RESERVED].gpus == 0.5
    assert load_cluster(path).zones[Zone.RESERVED].gpus == 1


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(ScenarioError, match=r"no cluster 'demo-cpo'.*did you mean 'demo-cpu'"):
        load_cluster("demo-cpo")


@pytest.mark.parametrize("name", sorted(builtin_clusters()))
def test_built_in_clusters_load(name: str):
    assert load_cluster(name).name == name


def test_the_demonstration_decides_on_what_its_file_says(tmp_path: Path):
    cluster = load_cluster("demo-cpu", state_dir=tmp_path)
    nodes = [Node(name=node.name, id=node.name, workers={node.zone: node.workers}) for node in cluster.ray.nodes]
    policy = load_policy("pearl")
    situation = cluster.situation(ClusterState(workers=offer(cluster, nodes)))
    tick = deliberate(
        situation, policy, predictor=choose_predictor(policy, None), solver=choose_solver(policy, "enumerate")
    )
    assert tick.decision.counts.serving >= 1


def test_the_workload_takes_its_training_from_the_cluster_and_may_not_contradict_it(tmp_path: Path):
    sets = {"training": "{mode: synchronous, max_staleness: 0}"}
    cluster = load_cluster("demo-cpu", sets)
    assert cluster.workload is not None
    assert (cluster.workload.training, cluster.workload.max_staleness) == (Training.SYNCHRONOUS, 0)
    with pytest.raises(ScenarioError, match=r"expected synchronous, as training\.mode"):
        load_cluster("demo-cpu", {**sets, "workload.training": "asynchronous"})


def test_the_tiny_model_is_written_once_and_names_its_end_token(tmp_path: Path):
    cluster = load_cluster("demo-cpu", state_dir=tmp_path)
    ends = prepare_model(cluster)
    written = (cluster.model.path / "model.safetensors").stat().st_mtime_ns
    assert prepare_model(cluster) == ends == frozenset({258})
    assert (cluster.model.path / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-0"]


def test_a_model_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no model in .*expected a directory with config\.json"):
        prepare_model(load_cluster(write(tmp_path)))


@pytest.mark.parametrize(("text", "expected"), [("{}", set()), ('{"eos_token_id": 3}', {3})])
def test_end_tokens_come_from_the_configuration_where_no_generation_file_names_any(
    tmp_path: Path, text: str, expected: set[int]
):
    (tmp_path / "config.json").write_text(text)
    assert end_token_ids(tmp_path) == expected
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert end_token_ids(tmp_path) == {1, 2}
    (tmp_path / "generation_config.json").write_text("nonsense")
    with pytest.raises(UsageError, match=r"generation_config\.json"):
        end_token_ids(tmp_path)
