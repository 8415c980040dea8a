"""Policies that ask for given roles of given nodes, whatever is predicted: to show and to test a change on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pearl.core.cluster import Mode, Role


def steering_policy(name: str, mode: Mode, wanted: Mapping[str, Role] | None = None, *, most: int | None = None) -> str:
    """The text of a policy under which as many workers serve as may, none of a node in `wanted` in another role.

    `most` limits how many workers serve. Overlap workers are borrowed when they are free. The roles are rules, since a
    rule that staying breaks forces a change, also one that is predicted to be slower.
    """
    everyone = "N_C" if mode is Mode.COLOCATED else "N_P + N_D"
    rules = [_rule(node, role) for node, role in sorted((wanted or {}).items())]
    if most is not None:
        rules.append({"name": "most", "require": f"{everyone} <= {most}"})
    spec = {
        "decision": {"modes": [mode.value], "borrow": {"enabled": True, "gated": False}},
        "constraints": rules,
        "objective": {
            "tiers": [
                {"name": "serving", "maximize": everyone},
                {"name": "churn", "minimize": "3*role_changes + 2*adds + removes"},
            ]
        },
        "solver": {"prefer": ["cpsat", "enumerate"], "time_limit": "2s", "on_limit": "keep_current", "seed": 0},
    }
    document = {
        "apiVersion": "pearl.dev/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
    return json.dumps(document, indent=1)


def _rule(node: str, role: Role) -> dict[str, str]:
    other = Role.DECODE if role is Role.PREFILL else Role.PREFILL
    return {"name": f"{node.replace('-', '_')}_role", "require": f"count(role={other}, node='{node}') <= 0"}
