"""Seeded availability traces whose abundance and change rate are parameters, and oscillating ones for stability tests.

Random numbers come from the standard library's generator, so that a seed gives the same trace on every platform.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pearl.errors import InputError
from pearl.sim.traces.availability import (
    MAX_ARRIVALS,
    MAX_NODES,
    SECONDS_PER_HOUR,
    AvailabilityEvent,
    AvailabilityTrace,
    Change,
    events_of_counts,
)
from pearl.sim.traces.reading import shown

MAX_DRAWS = 5_000_000
"""Node draws that one trace may need; a few seconds of work."""
RANGES: Mapping[str, tuple[float, float]] = {
    "max_nodes": (1, MAX_NODES),
    "abundance": (0, 1),
    "changes_per_h": (0, 3600),
    "horizon_s": (1, 366 * 86_400),
    "gpus_per_node": (1, 64),
    "grace_s": (0, 86_400),
    "period_s": (1e-3, 366 * 86_400),
}
"""Least and largest value of each parameter; past these a unit is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMarket:
    """Parameters of the random process."""

    max_nodes: int
    abundance: float
    """Mean share of `max_nodes` that is available, 0 to 1."""
    changes_per_h: float
    """Mean number of instants per hour at which nodes arrive or get notice."""
    horizon_s: float
    gpus_per_node: int = 1
    grace_s: float = 30.0
    burst: float = 0.15
    """Share of the nodes whose fate is drawn anew at a change: small for single nodes, near 1 for waves."""


def generate(market: SpotMarket, *, seed: int) -> AvailabilityTrace:
    """Draw a trace; the same market and seed give the same trace.

    At the points of a Poisson process each node is, with probability `burst`, drawn anew: available with probability
    `abundance`. The stationary number of nodes is then binomial with mean `abundance · max_nodes`. A point leaves
    every node as it was with probability `(1 − 2·burst·abundance·(1 − abundance))^max_nodes`, so the points come at
    `changes_per_h` over one minus that, and the changes that show at `changes_per_h`. The first nodes are drawn from
    the stationary distribution, so both means hold at every time, over seeds; one trace varies around them.
    Raises InputError for parameters out of range, or that no trace can meet.
    """
    _check(market)
    rng = random.Random(seed)
    alive: list[int | None] = [None] * market.max_nodes
    arrived = 0
    events: list[AvailabilityEvent] = []

    def change(at_s: float, redraw: float) -> None:
        nonlocal arrived
        leaving: list[str] = []
        coming: list[str] = []
        for slot, name in enumerate(alive):
            if rng.random() >= redraw:
                continue
            available = rng.random() < market.abundance
            if available and name is None:
                alive[slot] = arrived
                coming.append(f"spot-{arrived}")
                arrived += 1
            elif not available and name is not None:
                alive[slot] = None
                leaving.append(f"spot-{name}")
        events.extend(_pair(market, at_s, leaving, coming))

    change(0.0, 1.0)
    rate_per_s = _points_per_h(market) / SECONDS_PER_HOUR
    at_s = rng.expovariate(rate_per_s) if rate_per_s else market.horizon_s
    while at_s < market.horizon_s:
        change(at_s, market.burst)
        at_s += rng.expovariate(rate_per_s)
    source = (
        f"generated: seed {seed}, abundance {market.abundance:g}, {market.changes_per_h:g} changes/h, "
        f"burst {market.burst:g}, at most {market.max_nodes} nodes"
    )
    return AvailabilityTrace(events=tuple(events), horizon_s=market.horizon_s, source=source)


def oscillate(
    *,
    low_nodes: int,
    high_nodes: int,
    period_s: float,
    horizon_s: float,
    gpus_per_node: int = 1,
    grace_s: float = 30.0,
) -> AvailabilityTrace:
    """A square wave: `high_nodes` for the first half of each period, `low_nodes` for the second.

    The test of stability: a policy without hysteresis follows every edge. Raises InputError for parameters out of
    range.
    """
    if not 0 <= low_nodes < high_nodes <= MAX_NODES:
        low, high = shown(low_nodes), shown(high_nodes)
        raise InputError(f"low {low} and high {high} nodes; expected 0 <= low < high <= {MAX_NODES}")
    _check_ranges(period_s=period_s, horizon_s=horizon_s, gpus_per_node=gpus_per_node, grace_s=grace_s)
    edges = int(horizon_s / (period_s / 2))
    if edges * (high_nodes - low_nodes) > MAX_ARRIVALS:
        raise InputError(f"{edges} edges of {high_nodes - low_nodes} nodes; expected at most {MAX_ARRIVALS} arrivals")
    samples = [(i * period_s / 2, low_nodes if i % 2 else high_nodes) for i in range(edges + 1)]
    inside = [(at_s, nodes) for at_s, nodes in samples if at_s < horizon_s]
    events = tuple(events_of_counts(inside, gpus_per_node=gpus_per_node, grace_s=grace_s))
    source = f"oscillating: {low_nodes} to {high_nodes} nodes, period {period_s:g} s"
    return AvailabilityTrace(events=events, horizon_s=horizon_s, source=source)


def _pair(market: SpotMarket, at_s: float, leaving: list[str], coming: list[str]) -> list[AvailabilityEvent]:
    changes = ((Change.RECLAIM, leaving, market.grace_s), (Change.ADD, coming, 0.0))
    return [
        AvailabilityEvent(at_s=at_s, kind=kind, nodes=tuple(nodes), gpus_per_node=market.gpus_per_node, grace_s=grace_s)
        for kind, nodes, grace_s in changes
        if nodes
    ]


def _points_per_h(market: SpotMarket) -> float:
    if not market.changes_per_h:
        return 0.0
    flip = 2 * market.burst * market.abundance * (1 - market.abundance)
    shows = -math.expm1(market.max_nodes * math.log1p(-flip))
    return market.changes_per_h / shows if shows else math.inf


def _check_ranges(**values: float) -> None:
    """Raise InputError for the first value outside its range of RANGES."""
    for name, value in values.items():
        low, high = RANGES[name]
        if not low <= value <= high:
            found = shown(value) if isinstance(value, int) else f"{value:g}"
            raise InputError(f"{name} is {found}; expected {low:g} to {high:g}")


def _check(market: SpotMarket) -> None:
    ranged = asdict(market)
    burst = ranged.pop("burst")
    _check_ranges(**ranged)
    if not 0 < burst <= 1:
        raise InputError(f"burst is {burst:g}; expected above 0 to 1")
    if market.changes_per_h and market.abundance in (0, 1):
        raise InputError(f"abundance {market.abundance:g} never changes; set changes_per_h to 0, or abundance between")
    draws = _points_per_h(market) * market.horizon_s / SECONDS_PER_HOUR * market.max_nodes
    if draws > MAX_DRAWS:
        raise InputError(f"about {draws:.3g} draws of nodes; expected at most {MAX_DRAWS}: a shorter horizon, say")
