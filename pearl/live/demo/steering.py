"""Policies that ask for given roles of given nodes, whatever is predicted: to show and to test a change on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pearl.core.cluster import Mode, Role


def steering_policy(name: str, mode: Mode, wanted: Mapping[str, Role] | None = None, *, most: int | None = None) -> str:
    """The text of a policy under which as many workers serve as may, and then as many as may in the roles `wanted`.

    `wanted` are roles by node; `most` limits how many workers serve. Overlap workers are borrowed when they are free.
    """
    everyone = "N_C" if mode is Mode.COLOCATED else "N_P + N_D"
    tiers = [{"name": "serving", "maximize": everyone}]
    if wanted:
        fits = " + ".join(f"count(role={role}, node='{node}')" for node, role in sorted(wanted.items()))
        tiers.append({"name": "roles", "maximize": fits})
    tiers.append({"name": "churn", "minimize": "3*role_changes + 2*adds + removes"})
    spec: dict[str, Any] = {
        "decision": {
            "modes": [mode.value],
            "hysteresis": {"semantics": "charge"},  # a gate would refuse what is predicted to be slower
            "borrow": {"enabled": True, "gated": False},
        },
        "objective": {"tiers": tiers},
        "solver": {"prefer": ["cpsat", "enumerate"], "time_limit": "2s", "on_limit": "keep_current", "seed": 0},
    }
    if most is not None:
        spec["constraints"] = [{"name": "most", "require": f"{everyone} <= {most}", "message": "as asked for"}]
    document = {
        "apiVersion": "pearl.dev/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
    return json.dumps(document, indent=1)
