"""The timeline as one HTML file that needs nothing else: no network, no fonts, and no script to be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from pearl.core.cluster import Role, Zone
from pearl.core.decision import Outcome
from pearl.report.timeline_data import DecisionMark, MarkKind, Timeline
from pearl.report.timeline_layout import Stack, caption, clock, stacks_of
from pearl.report.timeline_svg import svg_text

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The page itself forbids the browser to fetch anything."""

Results = Sequence[Mapping[str, object]]
"""One mapping per run, such as the `results` of a SimulationReport: figures, or mappings of figures, by name."""


def html_text(timeline: Timeline, *, title: str, results: Results | None = None) -> str:
    """The page: picture, reasons of the decision that is clicked, figures of the runs, and every decision with why.

    The same input gives the same bytes. Without scripts the picture stays, a click leads to the decision's row.
    """
    stacks = stacks_of(timeline)
    about = caption(timeline, stacks.values())
    levels = {zone.value: _levels(stack) for zone, stack in stacks.items()}
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_own('timeline.css')}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(about)}</p>",
        _legend(timeline),
        f'<div class="picture wide">{svg_text(timeline, title=title)}</div>',
        '<div id="chosen" aria-live="polite" hidden>Click a decision (▼ or |) to see its reasons.</div>',
        *_results(results or ()),
        *_decisions(timeline.decisions),
        '<div id="tip" hidden></div>',
        f'<script type="application/json" id="stacks">{_embedded(levels)}</script>',
        f"<script>\n{_own('timeline.js')}</script>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _own(name: str) -> str:
    return (files("pearl.report") / name).read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _levels(stack: Stack) -> dict[str, object]:
    """What a stack shows, for hovering."""
    layers = [{"phase": str(p), "gpus": [round(level, 1) for level in levels]} for p, levels in stack.layers]
    return {"edges_s": [round(edge_s, 3) for edge_s in stack.edges_s], "layers": layers}


# -- legend ----------------------------------------------------------------------------------------------------------

_SWATCH = {
    Outcome.SWITCH: '<path class="switch" d="M6 1h10l-5 9z"/>',
    Outcome.KEEP: '<path class="keep" d="M11 1v9"/>',
    Outcome.INFEASIBLE: '<path class="infeasible" d="M7 1l8 8m0 -8l-8 8"/>',
    Outcome.LIMIT: '<path class="limit" d="M11 0l5 5l-5 5l-5 -5z"/>',
}


def _legend(timeline: Timeline) -> str:
    items = "".join(f"<li><svg>{swatch}</svg>{escape(text)}</li>" for swatch, text in _entries(timeline))
    return f'<ul class="legend">{items}</ul>'


def _entries(timeline: Timeline) -> Iterator[tuple[str, str]]:
    used = {band.phase for band in timeline.bands}
    for role in Role:
        if any(phase.role is role for phase in used):
            yield f'<rect class="{role}" width="22" height="11"/>', role.value
    moving = next((phase for phase in sorted(used, key=str) if phase.transitioning), None)
    if moving is not None:
        yield f'<rect class="to-{moving.role}" width="22" height="11"/>', "transitioning to that role"
    for zone in timeline.zones:
        yield f'<path class="held {zone}" d="M0 5.5h22"/>', f"{zone} GPUs"
    if Zone.OVERLAP in timeline.zones:
        yield '<rect class="lent" width="22" height="11"/>', "overlap GPUs, borrowed"
    if any(mark.kind is MarkKind.RECLAIM_NOTICE for mark in timeline.marks):
        yield '<path class="notice" d="M7 2h8l-4 7z"/>', MarkKind.RECLAIM_NOTICE.value
    for outcome, swatch in _SWATCH.items():
        count = sum(mark.outcome is outcome for mark in timeline.decisions)
        if count:
            yield swatch, f"{outcome} ({count})"
    if any(mark.kind is MarkKind.ROLLED_BACK for mark in timeline.marks):
        yield '<path class="alarm" d="M7 2l7 7m0 -7l-7 7"/>', MarkKind.ROLLED_BACK.value


# -- tables ----------------------------------------------------------------------------------------------------------


def _results(results: Results) -> Iterator[str]:
    """Figures down, runs across; a figure that only some runs have leaves the others' cells empty."""
    if not results:
        return
    runs = [dict(_flat(result)) for result in results]
    names = list(dict.fromkeys(name for run in runs for name in run))
    yield '<h2>Results (simulated)</h2><div class="wide"><table><tbody>'
    for name in names:
        cells = "".join(f'<td class="number">{escape(_cell(run.get(name)))}</td>' for run in runs)
        yield f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _flat(figures: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.2f}".removesuffix(".00")
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _decisions(decisions: Sequence[DecisionMark]) -> Iterator[str]:
    if not decisions:
        return
    heads = ("time", "event", "outcome", "configuration", "borrowed", "predicted (s)", "plan steps", "why")
    yield f"<details open><summary>All {len(decisions)} decisions</summary>"
    yield f'<div class="wide"><table><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr></thead><tbody>'
    for index, mark in enumerate(decisions):
        predicted = "" if mark.predicted_s is None else f"{mark.predicted_s:.1f}"
        yield (
            f'<tr id="decision-{index}"><td>{clock(mark.at_s)}</td><td>{mark.event}</td><td>{mark.outcome}</td>'
            f'<td>{escape(mark.configuration)}</td><td class="number">{mark.borrowed}</td>'
            f'<td class="number">{predicted}</td><td class="number">{mark.steps}</td><td>{_reasons(mark)}</td></tr>'
        )
    yield "</tbody></table></div></details>"


def _reasons(mark: DecisionMark) -> str:
    items = (f"<li>{escape(reason.text)} <code>{escape(reason.code)}</code></li>" for reason in mark.reasons)
    return f'<ul class="reasons">{"".join(items)}</ul>'
