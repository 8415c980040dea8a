"""A plan as plain data, for JSON and YAML; `kind` is stable, since scripts match on it."""

from __future__ import annotations

import re
from dataclasses import fields

from pearl.core.cluster import Role
from pearl.core.plan import Plan, Step
from pearl.planning.estimate import estimate_s

_WORD = re.compile("(?<!^)(?=[A-Z])")

Plain = str | float | int | list[str] | None


def step_to_dict(step: Step) -> dict[str, Plain]:
    """`kind` in snake case (`change_role`), then the step's own fields in their order."""
    data: dict[str, Plain] = {"kind": _WORD.sub("_", type(step).__name__).lower()}
    for item in fields(step):
        data[item.name] = _plain(getattr(step, item.name))
    return data


def _plain(value: object) -> Plain:
    match value:
        case Role():
            return value.value
        case tuple():
            return [str(item) for item in value]
        case str() | float() | int() | None:
            return value
    raise TypeError(f"a step holds a {type(value).__name__}, which has no plain form")


def plan_to_dict(plan: Plan) -> dict[str, int | float | list[dict[str, Plain]]]:
    """`from_epoch`, `estimated_s` (see `estimate_s`) and `steps`."""
    return {
        "from_epoch": plan.from_epoch,
        "estimated_s": round(estimate_s(plan), 6),
        "steps": [step_to_dict(step) for step in plan.steps],
    }
