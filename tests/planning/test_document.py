from __future__ import annotations

import json
from pathlib import Path

import yaml
from hypothesis import given, settings

from pearl.core.cluster import ClusterState, Role, Zone
from pearl.core.grouping import group_workers
from pearl.planning import make_plan, plan_to_dict
from tests.planning.cases import COSTS, Case, cases, worker

GOLDEN = Path(__file__).parent / "golden" / "plan.json"
"""Every kind of step; changes here break the readers of `pearl solve --format json`."""


def case_with_every_step() -> Case:
    members = (
        worker("reserved-1"),
        worker("reserved-2"),
        worker("reserved-3", zone=Zone.PREEMPTIBLE),
        worker("reclaimed", zone=Zone.PREEMPTIBLE, leave_s=30),
        worker("new", Role.INACTIVE, Zone.PREEMPTIBLE, started=False),
        worker("spare", Role.INACTIVE),
        worker("lent", zone=Zone.OVERLAP, leave_s=10),
        worker("idle-trainer", Role.INACTIVE, Zone.OVERLAP),
    )
    state = ClusterState(workers=members, epoch=41)
    assignment = {
        ("reserved/colocated", Role.DECODE): 2,
        ("reserved/inactive", Role.PREFILL): 1,
        ("preemptible/colocated", Role.INACTIVE): 1,
        ("preemptible/colocated/leaving", Role.INACTIVE): 1,
        ("preemptible/inactive/new", Role.DECODE): 1,
        ("overlap/inactive", Role.PREFILL): 1,
        ("overlap/colocated/leaving", Role.INACTIVE): 1,
    }
    return Case(state=state, groups=group_workers(state, by_node=False, by_risk=False), assignment=assignment)


def test_the_plan_as_data_is_the_golden_file() -> None:
    case = case_with_every_step()
    data = plan_to_dict(make_plan(case.state, case.groups, case.assignment, COSTS))
    assert data == json.loads(GOLDEN.read_text())
    assert {step["kind"] for step in data["steps"]} == {
        "drain",
        "change_role",
        "activate",
        "deactivate",
        "borrow",
        "return",
        "start",
        "admit_group",
        "stop",
    }


@given(case=cases(max_workers=8))
@settings(max_examples=40, deadline=None)
def test_a_plan_is_plain_data(case: Case) -> None:
    data = plan_to_dict(case.plan())
    assert json.loads(json.dumps(data)) == data
    assert yaml.safe_load(yaml.safe_dump(data)) == data
