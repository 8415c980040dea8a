"""What the admin plane shows of the state, of decisions and of plans: JSON data, names stable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pearl.live.control.documents import Document, counts_document, worker_document
from pearl.live.control.progress import Phase
from pearl.live.control.progress_log import OVER, decision_id, plan_id
from pearl.live.control.store import AddDecision, AddEvent, AddPlan, AddProgress

if TYPE_CHECKING:
    from pearl.live.control.controller import Controller


def state_view(controller: Controller, *, cluster: str) -> Document:
    """`GET /pearl/v1/state`."""
    parts, record = controller.parts, controller.parts.ledger.record
    counts, training, batch = record.state.counts, controller.trainer.training, controller.pipeline.batches.open
    plan = controller.decider.plan
    return {
        "cluster": cluster,
        "policy": controller.policy.name,
        "shadow": parts.shadow,
        "epoch": record.state.epoch,
        "mode": counts.mode.value if counts.mode else None,
        "counts": counts_document(counts),
        "workers": [
            {**worker_document(worker), "weight_version": record.versions.get(worker.id, 0)}
            for worker in record.state.workers
        ],
        "weights": {"latest": record.latest, "oldest": record.oldest},
        "training": {"running": training.running is not None, "step": training.running},
        "batch": {
            "step": batch.step,
            "trajectories": batch.trajectories,
            "since_s": parts.clock.now_s() - batch.since_s,
        }
        if batch
        else None,
        "plan": {
            "id": plan,
            "done": len(parts.progress.over.get(plan, ())),
            "steps": controller.decider.plan_steps,
        }
        if plan
        else None,
        "calibration_error": parts.observer.calibration_error,
        "uptime_s": parts.clock.now_s() - controller.began_s,
    }


def event_view(event: AddEvent) -> Document:
    """An event."""
    return {
        "seq": event.number,
        "at_unix_s": event.at_unix_s,
        "kind": event.kind,
        "workers": list(event.workers),
        "data": event.data,
    }


def decision_view(decision: AddDecision) -> Document:
    """A decision with its reasons."""
    return {"id": decision_id(decision.number), "at_unix_s": decision.at_unix_s, **decision.document}


def plan_view(plan: AddPlan, progress: Sequence[AddProgress]) -> Document:
    """A plan; each step with the phase that it is in, the seconds that it took, and why where it did not end."""
    newest = {entry.step: entry for entry in sorted(progress, key=_rank)}
    steps = [_step(step, newest.get(index)) for index, step in enumerate(plan.document["steps"])]
    return {
        "id": plan_id(plan.number),
        "at_unix_s": plan.at_unix_s,
        "decision": None if plan.decision is None else decision_id(plan.decision),
        **plan.document,
        "steps": steps,
    }


def _rank(entry: AddProgress) -> tuple[int, bool, float]:
    return entry.step, Phase(entry.phase) in OVER, entry.at_unix_s


def _step(step: Document, progress: AddProgress | None) -> Document:
    if progress is None:
        return {**step, "phase": "pending", "seconds": None, "because": ""}
    seconds = progress.seconds if Phase(progress.phase) in OVER else None
    return {**step, "phase": progress.phase, "seconds": seconds, "because": progress.because}
