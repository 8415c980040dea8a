"""Decisions that a policy would have taken on recorded telemetry, as table and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pearl.core.decision import Decision
from pearl.planning import plan_to_dict
from pearl.report.columns import columns
from pearl.report.schema import API_VERSION
from pearl.sim.replay import Taken

_HEAD = ("at", "event", "step", "decision", "predicted", "measured", "steps", "why")


def replay_text(taken: Sequence[Taken], *, policy: str, source: str) -> str:
    """One line for each decision; times count from the first."""
    first_s = taken[0].at_s if taken else 0.0
    switches = sum(bool(one.changes) for one in taken)
    lines = [f"{policy} on {source}: {len(taken)} decisions, {switches} of them changes of mode, ratio or size"]
    rows = [_HEAD, *(_row(one, first_s) for one in taken)]
    return "\n".join([*lines, *columns(rows, indent="", right=frozenset({0, 2, 4, 5, 6}))]) + "\n"


def _row(one: Taken, first_s: float) -> tuple[str, ...]:
    decision = one.decision
    return (
        f"{one.at_s - first_s:.1f} s",
        one.event.value,
        "" if one.step is None else str(one.step),
        f"{decision.outcome.value} {decision.counts.label()}",
        _seconds(_predicted_s(decision)),
        _seconds(one.measured_s),
        str(len(one.plan.steps)),
        decision.reasons[0].text if decision.reasons else "",
    )


def _predicted_s(decision: Decision) -> float | None:
    return decision.chosen.makespan_s if decision.chosen else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def replay_data(taken: Sequence[Taken], *, policy: str, source: str) -> dict[str, Any]:
    """Plain data for JSON and YAML."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ReplayReport",
        "policy": policy,
        "source": source,
        "decisions": [_data(one) for one in taken],
    }


def _data(one: Taken) -> dict[str, Any]:
    decision = one.decision
    return {
        "at_s": one.at_s,
        "event": one.event.value,
        "step": one.step,
        "outcome": decision.outcome.value,
        "mode": decision.mode.value if decision.mode else None,
        "configuration": decision.counts.label(),
        "borrowed": decision.counts.borrowed,
        "changes": sorted(kind.value for kind in one.changes),
        "predicted_s": _predicted_s(decision),
        "stay_s": decision.stay.makespan_s if decision.stay else None,
        "measured_s": one.measured_s,
        "reasons": [{"code": r.code.value, "text": r.text} for r in decision.reasons],
        "plan": plan_to_dict(one.plan),
    }
