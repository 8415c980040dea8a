"""What a trace is, in figures: plain data for JSON and for the command line's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from pearl.sim.traces.agents import AgentTrace, observe
from pearl.sim.traces.availability import AvailabilityTrace
from pearl.sim.traces.fits import Shape, distance, fit


def summarise_availability(trace: AvailabilityTrace, *, window_s: float | None = None) -> dict[str, Any]:
    """Statistics of the trace and, with `window_s`, of its windows; times in seconds."""
    windows = trace.windows(window_s) if window_s is not None else ()
    return {
        "kind": "availability",
        "source": trace.source,
        "horizon_s": trace.horizon_s,
        "events": len(trace.events),
        **asdict(trace.statistics()),
        "notes": list(trace.notes),
        "windows": [{"start_s": start_s, **asdict(statistics)} for start_s, statistics in windows],
    }


def summarise_agents(trace: AgentTrace) -> dict[str, Any]:
    """Quantiles, means and log-normal fits of everything that a workload profile holds; tokens and seconds."""
    seen = observe(trace)
    return {
        "kind": "agents",
        "source": trace.source,
        "trajectories": len(trace.trajectories),
        "longest_context_tokens": max((t.context_tokens for t in trace.trajectories), default=0),
        "quantities": {f.name: _quantity(getattr(seen, f.name)) for f in fields(seen)},
        "notes": list(trace.notes),
    }


def _quantity(values: Sequence[float]) -> dict[str, float] | None:
    """Figures of one quantity; None where the trace does not show it."""
    if not values:
        return None
    ordered = sorted(values)
    fitted = fit(values, shape=Shape.LOGNORMAL)
    return {
        "count": len(ordered),
        "mean": sum(ordered) / len(ordered),
        **{f"p{percent}": ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] for percent in (50, 90, 99)},
        "max": ordered[-1],
        "lognormal_mean": fitted.mean,
        "lognormal_cv": fitted.cv,
        "ks_distance": distance(fitted, ordered),
    }
