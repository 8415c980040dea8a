from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.cluster import Role, Status, Zone, count_gpus
from pearl.core.distribution import Family
from pearl.core.engine import TransitionCosts
from pearl.core.event import EventKind
from pearl.core.workload import Routing, Training
from pearl.errors import ScenarioError
from pearl.makespan.profile import batch_profile
from pearl.scenario.load import SHIPPED, load_scenario, parse_scenario, shipped_scenarios
from tests.scenario.cases import ENGINE, TEXT, small, small_text
from tests.scenario.fuzz import check

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_every_shipped_scenario_loads_by_name_and_says_what_it_shows(name: str):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.policy
    assert scenario.description
    assert shipped_scenarios()[name].read_text(encoding="utf-8").startswith("# ")


def test_the_main_scenario_is_the_one_of_the_readme():
    scenario = load_scenario(str(SHIPPED / "qwen3-8b-swe.yaml"))
    zones = [worker.zone for worker in scenario.state.workers]
    assert (zones.count(Zone.RESERVED), zones.count(Zone.PREEMPTIBLE), zones.count(Zone.OVERLAP)) == (4, 8, 16)
    assert scenario.state.counts.label() == "12C"
    assert scenario.workload.trajectories == 64
    assert (scenario.engine.model, scenario.engine.gpu) == ("Qwen/Qwen3-8B", "H200")
    text = (SHIPPED / "qwen3-8b-swe.yaml").read_bytes()
    assert scenario.sha256 == hashlib.sha256(text).hexdigest()


def test_shipped_scenarios_show_what_they_promise():
    assert len(load_scenario("scale-4096").state.workers) == 4096
    reclaim = load_scenario("reclaim")
    assert reclaim.state.counts.label() == "3P9D"
    assert reclaim.state_after_event.counts.label() == "0P8D"
    infeasible = load_scenario("infeasible-kv")
    room = len(infeasible.state.workers) * infeasible.engine.kv_decode_tokens
    held = batch_profile(infeasible.workload).running_tokens
    assert infeasible.workload.trajectories * held > room


def test_units_and_defaults_reach_the_facts():
    scenario = small(
        (
            "spec:",
            "spec:\n  costs: {drain: 500ms, return: 1min}\n  prices: {reserved: 0.001 usd/s}\n"
            "  power: {decode: 0.5 kW}",
        ),
        ("max_context_tokens: 8192", "max_context_tokens: 8192\n    routing: round_robin\n    training: synchronous"),
    )
    assert scenario.costs == TransitionCosts(drain_s=0.5, return_s=60.0)
    assert scenario.prices == {Zone.RESERVED: pytest.approx(3.6)}
    assert scenario.power_w == {Role.DECODE: 500.0}
    assert (scenario.workload.routing, scenario.workload.training) == (Routing.ROUND_ROBIN, Training.SYNCHRONOUS)
    assert scenario.workload.environment_s.family is Family.UNIFORM
    assert scenario.workload.environment_s.expected == pytest.approx(2.0)
    assert scenario.overlap_window_s is None
    assert scenario.event is None


def test_pools_become_workers_with_ids_of_node_and_index():
    workers = small().state.workers
    assert [worker.id for worker in workers][:6] == [
        *("reserved-0/0", "reserved-0/1", "spot-0/0", "spot-0/1", "spot-1/0", "spot-1/1"),
    ]
    spot, train = workers[2], workers[-1]
    assert (spot.role, spot.status, spot.reclaim_probability) == (Role.PREFILL, Status.ACTIVE, pytest.approx(0.05))
    assert (train.role, train.status, train.zone) == (Role.INACTIVE, Status.INACTIVE, Zone.OVERLAP)
    assert all(worker.gpu_type == "H200" for worker in workers)


def test_a_node_may_be_shared_by_pools_of_one_zone_only():
    pool = "- {zone: overlap, name: train, nodes: 1, gpus_per_node: 4}"
    shared = small((pool, "- {zone: reserved, nodes: [reserved-0], gpus_per_node: 1, role: prefill}"))
    assert [w.id for w in shared.state.workers if w.node == "reserved-0"] == [f"reserved-0/{i}" for i in range(3)]
    with pytest.raises(
        ScenarioError, match=r"small.yaml:11:16: node 'reserved-0' is in zone overlap, and above in zone reserved"
    ):
        small((pool, "- {zone: overlap, nodes: [reserved-0], gpus_per_node: 1}"))


@settings(max_examples=25, deadline=None)
@given(
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    nodes=st.integers(1, 5),
    per_node=st.integers(1, 16),
)
def test_gpus_are_counted_once_and_every_dimension_counts(tensor_parallel: int, nodes: int, per_node: int):
    text = small_text(
        ("engine: qwen3-8b-h200", f"engine: {ENGINE % tensor_parallel}"),
        ("tensor_parallel: 1", f"tensor_parallel: {tensor_parallel}"),
    )
    head, _, rest = text.partition("      - {zone")
    pool = f"      - {{zone: reserved, nodes: {nodes}, gpus_per_node: {per_node}, role: colocated}}\n"
    text = head + pool + rest[rest.index("  workload") :]
    if per_node % tensor_parallel:
        with pytest.raises(ScenarioError, match="over; expected a multiple of tensor_parallel"):
            parse_scenario(text, file="f")
        return
    state = parse_scenario(text, file="f").state
    assert count_gpus(state.workers) == nodes * per_node
    assert len(state.workers) * tensor_parallel == nodes * per_node
    budget = f"tensor_parallel: {tensor_parallel}\n    max_gpus: {nodes * per_node}"
    within = text.replace(f"    tensor_parallel: {tensor_parallel}\n", f"    {budget}\n")
    assert parse_scenario(within, file="f").state == state
    if nodes * per_node > 1:
        with pytest.raises(ScenarioError, match=f"holds {nodes * per_node} GPUs; expected at most"):
            parse_scenario(
                within.replace(f"max_gpus: {nodes * per_node}", f"max_gpus: {nodes * per_node - 1}"), file="f"
            )


def test_step_times_hold_for_their_gpu_and_tensor_parallel_size_alone():
    with pytest.raises(ScenarioError, match="the cluster has H100 GPUs, and engine 'qwen3-8b-h200' is for H200"):
        small(("tensor_parallel: 1", "gpu: H100"))
    with pytest.raises(ScenarioError, match=r"tensor_parallel 2, and engine .* has 1; expected 1"):
        small(("tensor_parallel: 1", "tensor_parallel: 2"))


def test_an_engine_is_a_name_or_a_name_with_overrides_or_complete():
    assert small().engine.name == "qwen3-8b-h200"
    changed = small(("engine: qwen3-8b-h200", "engine: {profile: qwen3-8b-h200, chunk_tokens: 2048}")).engine
    assert (changed.name, changed.chunk_tokens) == ("qwen3-8b-h200*", 2048)
    assert changed.fit == small().engine.fit
    slow = small(("engine: qwen3-8b-h200", "engine: {profile: qwen3-8b-h200, decode: {c0: 9ms, c1: 0s, c2: 1ns}}"))
    assert slow.engine.decode.seconds(4, 1000) == pytest.approx(9.001e-3)
    assert slow.engine.fit is None
    own = small(("engine: qwen3-8b-h200", f"engine: {ENGINE % 1}")).engine
    assert (own.name, own.transfer.bytes_per_token, own.max_sequences) == ("two-way", 144 * 1024, 256)


def test_a_profile_file_lies_beside_the_scenario(tmp_path: Path):
    profile = f"apiVersion: pearl.dev/v1alpha1\nkind: EngineProfile\nmetadata: {{name: mine}}\nspec:\n  {ENGINE % 1}\n"
    (tmp_path / "mine.yaml").write_text(profile, encoding="utf-8")
    path = tmp_path / "s.yaml"
    path.write_text(small_text(("engine: qwen3-8b-h200", "engine: ./mine.yaml")), encoding="utf-8")
    assert load_scenario(path).engine.name == "two-way"
    (tmp_path / "mine.yaml").write_text(profile.replace("p0: 1ms", "p0: 1"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"s.yaml:5:11: .*mine.yaml:5:.*p0: a time needs a unit"):
        load_scenario(path)


def test_an_event_is_resolved_against_the_cluster():
    scenario = small(("spec:", "spec:\n  event: {kind: reclaim_notice, workers: [spot-1], within: 30s}"))
    assert scenario.event is not None
    assert scenario.event.kind is EventKind.RECLAIM_NOTICE
    assert scenario.event.workers == ("spot-1/0", "spot-1/1")
    assert scenario.state_after_event.epoch == scenario.state.epoch + 1
    with pytest.raises(
        ScenarioError, match=r"small.yaml:5:10: event: no worker or node 'spot-7' \(did you mean 'spot-"
    ):
        small(("spec:", "spec:\n  event: {kind: gpus_lost, workers: [spot-7]}"))


def test_settings_of_the_simulator():
    text = "spec:\n  simulation: {horizon: 1h, trace: spot.csv, training: {step: 90s}}"
    settings = small(("spec:", text)).simulation
    assert (settings.horizon_s, settings.trace, settings.batches) == (3600.0, "spot.csv", None)
    assert settings.training.step_s == 90.0
    with pytest.raises(ScenarioError, match=r"small.yaml:5:16: unknown key 'horizo' \(did you mean 'horizon'"):
        small(("spec:", "spec:\n  simulation: {horizo: 1h}"))


@pytest.mark.parametrize("name", ["faulty", "malformed"])
def test_every_fault_is_reported_at_its_place(name: str):
    text = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    with pytest.raises(ScenarioError) as error:
        parse_scenario(text, file=f"{name}.yaml")
    assert str(error.value) + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trajectories: 8", "trajectories: 0", "13:19: spec.workload.trajectories"),
        ("turns: 4", "turns: 0.5", "at least one turn"),
        ("turns: 4", "turns: {dist: empirical, values: [3, 20000]}", "too many turns"),
        ("first_prompt_tokens: 2000", "first_prompt_tokens: 8192", "fills the context"),
        ("mean: 200", "mean: 0", "a turn generates tokens"),
        ("nodes: 1,", "nodes: 65537,", "less than or equal to 65536"),
        ("name: train,", "name: '../etc',", "match pattern"),
        ("role: decode}", "role: decode, leave_within: 3s}", "without must_leave"),
        ("role: decode}", "role: decode, started: false}", "cannot serve"),
        ("role: decode}", "role: decode, status: inactive}", "contradicts role decode"),
        ("engine: qwen3-8b-h200", "engine: {model: x}", "without `profile` needs gpu, prefill"),
        ("engine: qwen3-8b-h200", "engine: ./absent.yaml", "cannot read"),
    ],
)
def test_nonsense_is_refused_with_its_place(old: str, new: str, message: str):
    with pytest.raises(ScenarioError) as error:
        small((old, new))
    assert message in str(error.value)
    assert all(fault.span and fault.span.file == "small.yaml" for fault in error.value.faults)


def test_a_cluster_without_workers_is_refused():
    head, _, rest = TEXT.partition("    pools:")
    with pytest.raises(ScenarioError, match="a cluster needs pools or workers"):
        parse_scenario(head + rest[rest.index("  workload") :], file="f")


def test_an_unknown_name_is_told_from_a_missing_file(tmp_path: Path):
    with pytest.raises(ScenarioError, match=r"no scenario 'qwen3-8b-sve'.*did you mean 'qwen3-8b-swe'"):
        load_scenario("qwen3-8b-sve")
    with pytest.raises(ScenarioError, match="cannot read"):
        load_scenario(tmp_path / "absent.yaml")


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40))
def test_any_text_in_place_of_a_quantity_is_accepted_or_refused_in_place(value: str):
    quoted = "'" + value.replace("'", "''") + "'"
    check(TEXT.replace("low: 1s", f"low: {quoted}"))
