"""A result as text for a terminal: the answer first, then why, the plan, and the rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pearl.deciding.standing import told_apart
from pearl.report import schema as doc
from pearl.report.columns import columns

MOST_ROWS = 40
"""Rows shown of a plan; JSON holds all steps."""
HEADLINE = {
    "switch": "switch to {configuration}",
    "keep": "keep {configuration}",
    "infeasible": "infeasible",
    "limit": "no answer within the time limit; {configuration} is kept",
}


def result_text(result: doc.ResultDocument) -> str:
    """The whole report, ending in a newline."""
    sections = [
        _headline(result),
        _why(result),
        _diagnosis(result.diagnosis),
        _plan(result.plan),
        _rules(result),
        _tiers(result),
        _asked(result),
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _headline(result: doc.ResultDocument) -> Iterator[str]:
    decision, predicted = result.decision, result.predicted
    head = HEADLINE[decision.outcome].format(configuration=decision.configuration)
    counts = decision.counts
    if decision.outcome in ("switch", "keep"):
        head += f" ({decision.mode}, {counts.borrowed} borrowed, {counts.inactive} inactive)"
    if decision.forced_by:
        head += f", forced by {', '.join(decision.forced_by)}"
    yield head
    if predicted.makespan_s is not None:
        yield f"  predicted makespan {predicted.makespan_s:.1f} s ({predicted.predictor} model); {_against(predicted)}"
    if predicted.paths:
        p = predicted.paths
        yield (
            f"  paths: prefill {p.prefill_s:.1f} s, transfer {p.transfer_s:.1f} s, decode {p.decode_s:.1f} s, "
            f"environment {p.environment_s:.1f} s; prefix hits {p.prefix_hit_rate:.0%}"
        )
    inputs, solver = result.inputs, result.solver
    yield (
        f"  scenario {inputs.scenario}, policy {inputs.policy}; {solver.id} {solver.library_version}: {solver.status} "
        f"in {1000 * (solver.build_s + solver.solve_s):.0f} ms"
    )


def _against(predicted: doc.PredictedDocument) -> str:
    stay = "staying is impossible" if predicted.stay_s is None else f"staying {predicted.stay_s:.1f} s"
    other = predicted.runner_up
    if other is None or predicted.margin_s is None:
        return stay
    return f"{stay}; runner-up {other.configuration} {other.makespan_s:.1f} s (margin {predicted.margin_s:+.1f} s)"


def _why(result: doc.ResultDocument) -> Iterator[str]:
    yield "Why"
    yield from columns([(r.code, r.text) for r in result.decision.reasons])
    for f in result.forecasts:
        yield f"  forecast {f.name}: {f.text}"


def _plan(plan: doc.StepsDocument) -> Iterator[str]:
    if not plan.steps:
        yield "Plan: nothing to do"
        return
    yield f"Plan: {len(plan.steps)} steps, about {plan.estimated_s:.1f} s"
    rows = [_run(run) for run in _runs(plan.steps)]
    yield from columns(rows[:MOST_ROWS], right=frozenset({0}))
    if len(rows) > MOST_ROWS:
        yield f"  … and {len(rows) - MOST_ROWS} more rows; --format json shows every step"


def _runs(steps: list[dict[str, Any]]) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Neighbouring steps that differ in their worker alone, with their numbers."""
    numbered = enumerate(steps, start=1)
    for _, run in groupby(numbered, key=lambda pair: {k: v for k, v in pair[1].items() if k != "worker"}):
        yield list(run)


def _run(run: list[tuple[int, dict[str, Any]]]) -> tuple[str, str, str, str, str]:
    (first, step), (last, _) = run[0], run[-1]
    workers = step.get("workers") or [step["worker"] for _, step in run]
    who = workers[0] if len(workers) == 1 else f"{workers[0]} … {workers[-1]} ({len(workers)} workers)"
    what = f"{step['before']} → {step['after']}" if "before" in step else str(step.get("role", ""))
    each = " each" if len(run) > 1 else ""
    number = str(first) if first == last else f"{first}–{last}"
    return number, str(step["kind"]), who, what, f"{step['estimated_s']:.1f} s{each}"


def _rules(result: doc.ResultDocument) -> Iterator[str]:
    active = [rule for rule in result.rules if rule.active]
    if not active:
        return
    yield "Rules (* binding)"
    rows = [
        ("*" if r.binding else "", r.name, f"slack {r.slack:.6g}", r.unit, f"{r.file}:{r.line}" if r.file else "")
        for r in active
    ]
    yield from columns(rows)


def _tiers(result: doc.ResultDocument) -> Iterator[str]:
    rows = [(t.name, f"{t.value:g}", t.unit) for t in result.tiers if t.value is not None]
    if rows:
        yield "Objective tiers"
        yield from columns(rows)
    if result.metrics:
        yield "  " + ", ".join(f"{name} = {value:g}" for name, value in result.metrics.items())


def _diagnosis(diagnosis: doc.DiagnosisDocument | None) -> Iterator[str]:
    if diagnosis is None:
        return
    yield "What conflicts"
    if diagnosis.structural:
        yield f"  {diagnosis.structural}"
    for rule in diagnosis.conflict:
        physical = "" if rule.relaxable else " (physical: not to be relaxed)"
        yield f"  {rule.name} at {rule.file}:{rule.line}: {rule.text}{physical}"
    yield "What would mend it (each verified by solving again)"
    for correction in diagnosis.corrections:
        loosened = " and ".join(f"{r.rule} by {r.amount:g} {r.unit}".rstrip() for r in correction.relax)
        yield f"  relax {loosened}: {correction.configuration}, {correction.makespan_s:.1f} s"
    for fix in diagnosis.resources:
        what = f"add {fix.amount} {fix.zone} worker(s)" if fix.zone else f"lower the batch to {fix.amount} trajectories"
        yield f"  {what}: {fix.configuration}, {fix.makespan_s:.1f} s"
    if not diagnosis.corrections and not diagnosis.resources:
        yield "  nothing that was tried: neither relaxing rules, nor more workers, nor a smaller batch"


def _asked(result: doc.ResultDocument) -> Iterator[str]:
    for other in result.why or ():
        yield f"Why not {other.configuration}?"
        yield from _verdict_on(other, result)
    if result.alternatives is not None:
        yield "Alternatives"
        rows = [
            (a.configuration, _seconds(a.makespan_s), _signed(a.delta_s), _short_verdict(a, result))
            for a in result.alternatives
        ]
        yield from columns(rows, right=frozenset({1, 2})) or ["  none: the rules allow no other configuration"]
    if result.sensitivity is not None:
        yield "Sensitivity: the smallest error of one profile number that flips the decision"
        yield from columns([_flip(flip) for flip in result.sensitivity])


def _seconds(value: float | None) -> str:
    return "cannot run" if value is None else f"{value:.1f} s"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f} s"


def _short_verdict(other: doc.AlternativeDocument, result: doc.ResultDocument) -> str:
    if other.blocks:
        return "blocked by " + ", ".join(block.name for block in other.blocks)
    return f"{_allowed(other, result)}; {other.delta_changes:+d} role changes"


def _allowed(other: doc.AlternativeDocument, result: doc.ResultDocument) -> str:
    """What became of a configuration that nothing blocks."""
    if other.loss:
        to = other.loss.lost_to
        which = "" if to == result.decision.configuration else f"; {to}, which it lost to, was turned down itself"
        return f"allowed, but {other.loss.text}{which}"
    if other.configuration == result.decision.configuration:
        return "this is the configuration chosen"
    if result.solver.status != "optimal":
        return "allowed; the search ended before it was held against all others"
    return "allowed, and as good in every tier"


def _verdict_on(other: doc.AlternativeDocument, result: doc.ResultDocument) -> Iterator[str]:
    for block in other.blocks:
        place = f" at {block.file}:{block.line}" if block.file else ""
        amount = f", by {block.amount:g} {block.unit}".rstrip() if block.amount else ""
        yield f"  blocked by {block.name}{place}{amount}: {block.text}"
    if not other.blocks:
        yield f"  {_allowed(other, result)}"
    if other.makespan_s is not None:
        makespan = f"{_seconds(other.makespan_s)} ({_signed(other.delta_s)})"
        changes = f", {other.delta_changes:+d} role changes" if other.tiers else ""
        charged = f", {other.charged_s:.1f} s charged for its changes" if other.charged_s else ""
        yield f"  makespan {makespan}{changes}{charged}"
    if other.tiers:
        head = ("tier", other.configuration, f"{result.decision.configuration} (chosen)")
        yield from columns([head, *map(_tier_row, other.tiers)], indent="    ", right=frozenset({1, 2}))


def _tier_row(pair: doc.TierPairDocument) -> tuple[str, str, str]:
    value, chosen = told_apart(pair.value, pair.chosen)
    return pair.name, f"{value} {pair.unit}".rstrip(), f"{chosen} {pair.unit}".rstrip()


def _flip(flip: doc.FlipDocument) -> tuple[str, str, str]:
    if flip.error is None:
        return flip.number, "no flip within ±50 %", ""
    regret = "the present choice cannot run then" if flip.regret is None else f"regret then {flip.regret:.1%}"
    return flip.number, f"{flip.error:+.1%} → {flip.to}", regret
