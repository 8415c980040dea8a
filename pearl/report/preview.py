"""What `pearl serve` would do first, as text and plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pearl.core.plan import Plan
from pearl.live.control.fleet import Node
from pearl.live.preview import Preview
from pearl.planning import estimate_s, plan_to_dict, step_to_dict
from pearl.report.columns import columns
from pearl.report.document import result_document
from pearl.report.schema import API_VERSION
from pearl.report.text import result_text


def preview_text(found: Preview) -> str:
    """Nodes, the start, and the first decision."""
    lines = [f"nodes: {', '.join(map(_node, found.nodes)) or 'none'}"]
    lines += list(_start(found.bootstrap))
    if found.result is None:
        lines.append("No workload is known before one is measured: nothing else is changed until then.")
        return "\n".join(lines) + "\n"
    lines += ["", "Then:", result_text(result_document(found.result))]
    return "\n".join(lines)


def preview_data(found: Preview) -> dict[str, Any]:
    """Plain data for JSON and YAML; `decision` as `pearl solve` gives it, null where no workload is known."""
    decision = found.result and result_document(found.result).model_dump(mode="json", by_alias=True)
    return {
        "apiVersion": API_VERSION,
        "kind": "Preview",
        "nodes": [{"name": node.name, "workers": dict(node.workers)} for node in found.nodes],
        "bootstrap": plan_to_dict(found.bootstrap),
        "decision": decision,
    }


def _node(node: Node) -> str:
    return f"{node.name} ({', '.join(f'{count} {zone}' for zone, count in node.workers.items()) or 'no workers'})"


def _start(plan: Plan) -> Iterator[str]:
    if plan.empty:
        yield "First: nothing is started; no node offers reserved workers"
        return
    yield f"First: the reserved workers start, about {estimate_s(plan):.1f} s"
    rows = [(str(step["kind"]), _who(step), str(step.get("role") or "")) for step in map(step_to_dict, plan.steps)]
    yield from columns(rows)


def _who(step: Mapping[str, Any]) -> str:
    return ", ".join(step.get("workers") or [step["worker"]])
