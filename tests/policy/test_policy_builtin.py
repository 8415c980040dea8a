"""The shipped policies: each checks, binds with and without samples, and says what it promises."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pearl.core.cluster import Mode, Role
from pearl.policy.bind import bind_policy
from pearl.policy.load import builtin_folder, builtin_names, load_policy
from pearl.policy.mathematics import mathematics
from tests.policy.samples import facts

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", builtin_names())
@pytest.mark.parametrize("samples", [None, {}])
def test_binds_with_samples_and_without(name, samples):
    found = bind_policy(load_policy(name), facts(samples=samples))
    assert found.tiers[0].name == "makespan"
    assert found.tiers[0].terms[0].makespan == 1
    physical = {r.name for r in found.rules if not r.relaxable}
    assert {"kv_capacity", "kv_capacity_colo", "prefill_capacity"} <= physical


@pytest.mark.parametrize("name", builtin_names())
def test_begins_with_a_comment_for_its_reader_and_describes_itself(name):
    text = (builtin_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert load_policy(name).document["metadata"]["description"]


@pytest.mark.parametrize("name", builtin_names())
def test_mathematics_is_as_recorded(name):
    path = GOLDEN / f"{name}.math.txt"
    assert "\n".join(mathematics(load_policy(name)).lines()) + "\n" == path.read_text(encoding="utf-8")


def test_pearl_gates_and_borrows():
    found = bind_policy(load_policy("pearl"), facts())
    assert found.predictor == "network"
    assert (found.hysteresis.semantics, found.hysteresis.mode_s, found.hysteresis.resize_s) == ("gate", 12.0, None)
    assert (found.borrow.enabled, found.borrow.gated, found.borrow.window_s) == (True, True, 140.0)


def test_baselines_are_colocated():
    for name in ("roll-fixed", "rlboost-plus"):
        assert bind_policy(load_policy(name), facts()).modes == (Mode.COLOCATED,)
    fixed = bind_policy(load_policy("roll-fixed"), facts())
    covered = {group.split("/")[0] for r in fixed.rules if r.name.startswith("no_") for group, _, _ in r.expr.counts}
    assert covered == {"preemptible", "overlap"}
    assert not bind_policy(load_policy("rlboost-plus"), facts()).borrow.gated


def test_priority_decides_what_a_job_gets():
    policy = load_policy("priority")
    rules = {}
    for priority in (1.0, 2.0, 3.0):
        found = bind_policy(policy, facts(scalars={"job_priority": priority}))
        rules[priority] = (
            {r.name for r in found.rules if r.relaxable},
            found.borrow.enabled,
            found.hysteresis.resize_s,
        )
    assert rules == {
        1.0: ({"background_stays_reserved"}, False, 4.0),
        2.0: ({"ordinary_share"}, False, 4.0),
        3.0: (set(), True, 0.0),
    }


def test_risk_aware_tells_workers_apart_by_risk():
    policy = load_policy("risk-aware")
    assert policy.dimensions == {"risk"}
    exposure = bind_policy(policy, facts()).tiers[1].terms[0]
    weights = {(g.split("/")[0], c / exposure.scale) for g, r, c in exposure.counts if r is Role.DECODE}
    assert {zone for zone, weight in weights if weight} == {"preemptible", "overlap"}


@pytest.mark.parametrize(("nodes", "per_node", "limit_s"), [(4, 4, 0.02), (100, 41, 0.15)])
def test_binding_is_quick(shared_policy, nodes, per_node, limit_s):
    """Ten times the target, so that a busy machine does not fail it: 2 ms at 16 workers, 15 ms at 4,100."""
    policy, given_facts = load_policy(shared_policy), facts(nodes, per_node)
    times = []
    for _ in range(5):
        start = time.process_time()
        bind_policy(policy, given_facts)
        times.append(time.process_time() - start)
    assert min(times) < limit_s
