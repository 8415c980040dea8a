"""What the control plane stores and answers, as plain JSON data."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pearl.core.cluster import Counts, Worker
from pearl.core.decision import Candidate, Decision
from pearl.core.event import Event
from pearl.deciding.record import context
from pearl.errors import PearlError
from pearl.live.control.ledger import Record
from pearl.scheduler import Tick

DECIMALS = 6
"""Seconds to the microsecond, as in `pearl solve --format json`."""


Document = dict[str, Any]


def compact(data: Any) -> str:
    """One line of JSON."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def record_to_text(record: Record) -> str:
    """The ledger's record as JSON."""
    return _records().dump_json(record).decode()


def record_from_text(text: str) -> Record:
    """The record that `record_to_text` wrote. Raises `PearlError` for anything else."""
    try:
        return _records().validate_json(text)
    except ValidationError as e:
        raise PearlError(f"the stored ledger record cannot be read: {e.errors()[0]['msg']}") from None


@cache
def _records() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def worker_document(worker: Worker) -> Document:
    """A worker's facts."""
    return {
        "id": worker.id,
        "node": worker.node,
        "zone": worker.zone.value,
        "role": worker.role.value,
        "status": worker.status.value,
        "gpus": worker.gpus,
        "started": worker.started,
        "must_leave": worker.must_leave,
        "leave_within_s": worker.leave_within_s,
    }


def counts_document(counts: Counts) -> Document:
    """Workers by role; `borrowed` counts the serving ones of the overlap zone."""
    return asdict(counts)


def event_document(event: Event) -> Document:
    """What an event says beside its kind and workers."""
    data: Document = {}
    if event.within_s is not None:
        data["within_s"] = event.within_s
    if event.added:
        data["added"] = [worker_document(worker) for worker in event.added]
    return data


def decision_document(tick: Tick) -> Document:
    """A decision under the names of `pearl solve --format json`, and what it was held against (`context`)."""
    decision = tick.told
    rejected = None
    if tick.verdict is not None and tick.verdict.rejected is not None:
        point = tick.verdict.rejected
        rejected = {"configuration": point.counts.label(), "makespan_s": round(point.makespan_ms / 1000, DECIMALS)}
    return {
        "decision": {
            "outcome": decision.outcome.value,
            "mode": decision.mode.value if decision.mode else None,
            "configuration": decision.counts.label(),
            "counts": counts_document(decision.counts),
            "forced_by": list(decision.forced_by),
            "reasons": [{"code": r.code.value, "text": r.text, "data": dict(r.data)} for r in decision.reasons],
        },
        "predicted": {**_predicted(decision), "rejected": rejected},
        "rules": [_rule(decision, index) for index in range(len(decision.rules))],
        "solver": asdict(decision.solver) if decision.solver else None,
        **(context(tick.verdict) if tick.verdict else {}),
    }


def _predicted(decision: Decision) -> Document:
    margin_s = None
    if decision.chosen and decision.runner_up:
        margin_s = round(decision.runner_up.makespan_s - decision.chosen.makespan_s, DECIMALS)
    return {
        "makespan_s": _makespan_s(decision.chosen),
        "stay_s": _makespan_s(decision.stay),
        "runner_up": decision.runner_up.counts.label() if decision.runner_up else None,
        "margin_s": margin_s,
    }


def _makespan_s(candidate: Candidate | None) -> float | None:
    return None if candidate is None else round(candidate.makespan_s, DECIMALS)


def _rule(decision: Decision, index: int) -> Document:
    rule = decision.rules[index]
    return {
        "name": rule.name,
        "file": rule.span.file if rule.span else None,
        "line": rule.span.line if rule.span else None,
        "text": rule.text,
        "slack": round(rule.slack, DECIMALS),
        "unit": rule.unit,
        "active": rule.active,
        "binding": rule.binding,
        "violation": rule.violation,
    }
