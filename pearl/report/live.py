"""What a running controller answers, as text for a terminal. Keys that it leaves out are left out here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pearl.report.columns import columns

Json = Mapping[str, Any]

HEADLINE = {
    "switch": "switch to {configuration}",
    "keep": "keep {configuration}",
    "infeasible": "infeasible; {configuration} is kept",
    "limit": "no answer within the time limit; {configuration} is kept",
    "bootstrap": "the reserved workers start",
    "failed": "no decision; workers that must leave do, all others stay",
}
_STATE_HEAD = ("WORKER", "NODE", "ZONE", "ROLE", "STATUS", "WEIGHTS", "")


def state_text(state: Json) -> str:
    """Mode and counts first, then what is under way, then the workers."""
    lines = [_pool_line(state), *_under_way(state)]
    workers = state.get("workers") or ()
    if workers:
        lines += ["", *columns([_STATE_HEAD, *(_worker(worker, state) for worker in workers)], indent="")]
    return "\n".join(lines) + "\n"


def configuration(counts: Json) -> str:
    """Short form of counts, as `pearl solve` writes it: 12C, 5P3D."""
    if colocated := counts.get("colocated"):
        return f"{colocated}C"
    prefill, decode = counts.get("prefill", 0), counts.get("decode", 0)
    return f"{prefill}P{decode}D" if prefill or decode else "nothing serves"


def _pool_line(state: Json) -> str:
    counts = state.get("counts") or {}
    shadow = "; shadow: decides and does not act" if state.get("shadow") else ""
    return (
        f"{state.get('cluster', 'cluster')}: {configuration(counts)} ({counts.get('borrowed', 0)} borrowed, "
        f"{counts.get('inactive', 0)} inactive), epoch {state.get('epoch')}, policy {state.get('policy')}, "
        f"up {duration(state.get('uptime_s') or 0.0)}{shadow}"
    )


def _under_way(state: Json) -> Iterator[str]:
    weights, training, batch, plan = (state.get(key) or {} for key in ("weights", "training", "batch", "plan"))
    if weights:
        yield f"  weights {weights.get('latest')}, at least {weights.get('oldest')} may generate"
    if training.get("running"):
        yield f"  training step {training.get('step')} runs"
    if batch:
        since = duration(batch.get("since_s") or 0.0)
        yield f"  batch {batch.get('step')}: {batch.get('trajectories')} trajectories for {since}"
    if plan:
        yield f"  plan {plan.get('id')}: {plan.get('done')} of {plan.get('steps')} steps done"
    error = state.get("calibration_error")
    if error is not None:
        yield f"  predicted makespans are off by {error:.0%} of the measured ones"


def _worker(worker: Json, state: Json) -> tuple[str, ...]:
    notes = []
    if not worker.get("started", True):
        notes.append("not started")
    if worker.get("must_leave"):
        within = worker.get("leave_within_s")
        notes.append("must leave" if within is None else f"must leave within {within:g} s")
    version = worker.get("weight_version")
    if version is not None and worker.get("started", True) and version < (state.get("weights") or {}).get("oldest", 0):
        notes.append("weights too old to serve")
    shown = "" if version is None else str(version)
    return (*(str(worker.get(key, "")) for key in ("id", "node", "zone", "role", "status")), shown, ", ".join(notes))


def event_text(event: Json) -> str:
    """One line."""
    data = event.get("data") or {}
    facts = " ".join(f"{key}={_short(value)}" for key, value in data.items())
    who = ", ".join(event.get("workers") or ())
    parts = (f"{event.get('seq', '')!s:>6}", clock(event.get("at_unix_s")), str(event.get("kind")), who, facts)
    return "  ".join(part for part in parts if part)


def decision_text(decision: Json, plan: Json | None) -> str:
    """Why: what was chosen and turned down, by which margin, on data of which age, and what became of the plan."""
    parts = (_headline, _reasons, _forecasts, _metrics, _rules)
    sections = (*(part(decision) for part in parts), _steps(plan))
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _headline(document: Json) -> Iterator[str]:
    decision, predicted = document.get("decision") or {}, document.get("predicted") or {}
    head = HEADLINE.get(str(decision.get("outcome")), "{configuration}")
    text = head.format(configuration=decision.get("configuration"))
    if counts := decision.get("counts"):
        text += f" ({counts.get('borrowed', 0)} borrowed, {counts.get('inactive', 0)} inactive)"
    shadow = "; shadow: nothing is done" if document.get("shadow") else ""
    yield f"{document.get('id')} {clock(document.get('at_unix_s'))}, after {_cause(document)}: {text}{shadow}"
    if forced := decision.get("forced_by"):
        yield f"  forced by {', '.join(forced)}"
    if predicted.get("makespan_s") is not None:
        yield f"  predicted makespan {predicted['makespan_s']:.1f} s; {_against(predicted)}"
    yield f"  policy {_name(document.get('policy'))}; {_known(document)}"


def _name(policy: object) -> object:
    return policy.get("name") if isinstance(policy, Mapping) else policy


def _known(document: Json) -> str:
    error = document.get("calibration_error")
    measured = "no batch measured yet" if error is None else f"predictions are off by {error:.0%}"
    seconds = document.get("seconds")
    return measured if seconds is None else f"{measured}; decided in {1000 * seconds:.0f} ms"


def _cause(document: Json) -> str:
    event = document.get("event")
    if not isinstance(event, Mapping):
        return "the start"
    return f"event {event.get('seq')}, {event.get('kind')}"


def _against(predicted: Json) -> str:
    stay = predicted.get("stay_s")
    parts = ["staying is impossible" if stay is None else f"staying {stay:.1f} s"]
    if runner_up := predicted.get("runner_up"):
        name = runner_up.get("configuration") if isinstance(runner_up, Mapping) else runner_up
        margin = predicted.get("margin_s")
        parts.append(f"runner-up {name}" + ("" if margin is None else f" (margin {margin:+.1f} s)"))
    if rejected := predicted.get("rejected"):
        parts.append(f"turned down {rejected.get('configuration')} at {rejected.get('makespan_s'):.1f} s")
    return "; ".join(parts)


def _reasons(document: Json) -> Iterator[str]:
    reasons = (document.get("decision") or {}).get("reasons") or ()
    if reasons:
        yield "Why"
        yield from columns([(str(r.get("code")), str(r.get("text"))) for r in reasons])


def _forecasts(document: Json) -> Iterator[str]:
    forecasts = document.get("forecasts") or ()
    if forecasts:
        yield "Forecasts"
    for f in forecasts:
        yield f"  {f['name']}: {f['text']}"


def _metrics(document: Json) -> Iterator[str]:
    if metrics := document.get("metrics"):
        yield "Metrics: " + ", ".join(f"{name} = {value:g}" for name, value in metrics.items())


def _rules(document: Json) -> Iterator[str]:
    rules = [rule for rule in document.get("rules") or () if rule.get("active")]
    if rules:
        yield "Rules (* binding)"
        yield from columns([_rule(rule) for rule in rules])


def _rule(rule: Json) -> tuple[str, ...]:
    place = f"{rule['file']}:{rule['line']}" if rule.get("file") else ""
    return "*" if rule.get("binding") else "", str(rule["name"]), f"slack {rule['slack']:.6g}", str(rule["unit"]), place


def _steps(plan: Json | None) -> Iterator[str]:
    steps: Sequence[Json] = () if plan is None else plan.get("steps") or ()
    if plan is None or not steps:
        yield "Plan: nothing to do"
        return
    yield f"Plan {plan.get('id')}: {len(steps)} steps"
    yield from columns([_step(number, step) for number, step in enumerate(steps, start=1)], right=frozenset({0}))


def _step(number: int, step: Json) -> tuple[str, ...]:
    workers = step.get("workers") or [step.get("worker")]
    what = f"{step['before']} → {step['after']}" if "before" in step else str(step.get("role") or "")
    phase = str(step.get("phase") or "waits")
    seconds = step.get("seconds")
    took = f"{seconds:.1f} s" if seconds else ""
    return (
        f"{number}",
        str(step.get("kind")),
        ", ".join(map(str, workers)),
        what,
        phase,
        took,
        step.get("because") or "",
    )


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3 h 12 min`."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if not minutes:
        return f"{seconds:.0f} s"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def clock(unix_s: float | None) -> str:
    """Date and time, UTC, to the second; empty where unknown."""
    return "" if unix_s is None else f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%SZ}"


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} items"
    return f"{value:g}" if isinstance(value, float) else str(value)
