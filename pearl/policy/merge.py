"""`extends`: a child policy over its parents, rule by rule and name by name."""

from __future__ import annotations

from pearl.policy.located import Node

MERGED_BY_NAME = ("params", "forecast", "let")
"""Sections whose entries a child replaces one at a time."""
MERGED_BY_FIELD = ("decision", "objective", "solver")
"""Sections whose fields a child replaces one at a time; `decision` goes one level deeper."""


def merge(parent: Node, child: Node) -> Node:
    """The policy that `child` makes of `parent`: its metadata, and both specs."""
    spec = _spec(parent.value["spec"], child.value["spec"])
    return child.replaced({**child.value, "spec": spec})


def _spec(parent: Node, child: Node) -> Node:
    merged = {**parent.value, **child.value}
    for section in MERGED_BY_NAME + MERGED_BY_FIELD:
        if section in parent.value and section in child.value:
            deep = 2 if section == "decision" else 1 if section == "params" else 0
            merged[section] = _fields(parent.value[section], child.value[section], deep)
    if "constraints" in parent.value and "constraints" in child.value:
        merged["constraints"] = _rules(parent.value["constraints"], child.value["constraints"])
    return child.replaced(merged)


def _fields(parent: Node, child: Node, deep: int) -> Node:
    if not isinstance(parent.value, dict) or not isinstance(child.value, dict):
        return child
    merged = {**parent.value, **child.value}
    if deep:
        for key in parent.value.keys() & child.value.keys():
            merged[key] = _fields(parent.value[key], child.value[key], deep - 1)
    return child.replaced(merged)


def _rules(parent: Node, child: Node) -> Node:
    merged = {rule.value["name"].value: rule for rule in parent.value}
    for rule in child.value:
        name = rule.value["name"].value
        merged[name] = _fields(merged[name], rule, 0) if name in merged else rule
    return child.replaced(list(merged.values()))
