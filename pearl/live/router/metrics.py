"""Counters, gauges and histograms in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

LATENCY_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0)

Labels = tuple[tuple[str, str], ...]

HELP: Mapping[str, str] = {
    "pearl_router_requests_accepted_total": "Requests accepted.",
    "pearl_router_requests_ended_total": "Accepted requests that ended, by outcome.",
    "pearl_router_requests_refused_total": "Calls refused, by code.",
    "pearl_router_requests_attached_total": "Calls that found their request id running or answered.",
    "pearl_router_legs_total": "Dispatches to workers, by path.",
    "pearl_router_degraded_legs_total": "Dispatches that asked a worker for more than its role.",
    "pearl_router_interruptions_total": "Legs that ended before their request did, by cause.",
    "pearl_router_kv_handles_total": "KV handles dispatched, or refused, by reason.",
    "pearl_router_tokens_total": "Tokens kept.",
    "pearl_router_requests_open": "Requests accepted and not ended.",
    "pearl_router_requests_waiting": "Legs that wait for a worker.",
    "pearl_router_kv_leases": "KV leases granted and not used.",
    "pearl_router_pool_epoch": "Epoch of the pool state.",
    "pearl_router_worker_running": "Legs that run, by worker.",
    "pearl_router_request_seconds": "Time from acceptance to end.",
}


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    sum_s: float = 0.0


@dataclass(slots=True)
class Metrics:
    """What was counted. Names are those of `help`, the router's unless others are given."""

    help: Mapping[str, str] = field(default_factory=lambda: HELP)
    _counters: dict[str, dict[Labels, float]] = field(default_factory=dict)
    _histograms: dict[str, _Histogram] = field(default_factory=dict)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        series = self._counters.setdefault(name, {})
        key = tuple(sorted(labels.items()))
        series[key] = series.get(key, 0) + by

    def observe(self, name: str, seconds: float) -> None:
        """Add an observation to a histogram."""
        histogram = self._histograms.setdefault(name, _Histogram())
        histogram.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        histogram.sum_s += seconds

    def value(self, name: str, **labels: str) -> float:
        """A counter as it stands; 0 where nothing was counted."""
        return self._counters.get(name, {}).get(tuple(sorted(labels.items())), 0)

    def text(self, gauges: Mapping[str, Mapping[Labels, float]]) -> str:
        """The whole page; `gauges` are read at this moment by whoever asks."""
        lines: list[str] = []
        for kind, families in (("counter", self._counters), ("gauge", gauges)):
            for name, series in sorted(families.items()):
                lines += [f"# HELP {name} {self.help[name]}", f"# TYPE {name} {kind}"]
                lines += [f"{name}{_labels(key)} {_number(value)}" for key, value in sorted(series.items())]
        for name, histogram in sorted(self._histograms.items()):
            lines += [f"# HELP {name} {self.help[name]}", f"# TYPE {name} histogram", *_buckets(name, histogram)]
        return "\n".join(lines) + "\n"


def _buckets(name: str, histogram: _Histogram) -> list[str]:
    lines, total = [], 0
    for limit, count in zip((*LATENCY_BUCKETS_S, None), histogram.counts, strict=True):
        total += count
        le = "+Inf" if limit is None else f"{limit:g}"
        lines.append(f'{name}_bucket{{le="{le}"}} {total}')
    return [*lines, f"{name}_sum {_number(histogram.sum_s)}", f"{name}_count {total}"]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
