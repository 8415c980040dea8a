"""Trace segments: two hours of preemptible GPUs, which the paper describes and does not publish.

At most 12 preemptible GPUs beside 4 reserved ones. The larger fixed pools that the paper compares with have 14, 10 and
12 GPUs, one per segment; they are read as the mean number of rollout GPUs, so that 10, 6 and 8 are preemptible. Rates
of change are said to differ and are not given: low, high and between.
"""

from __future__ import annotations

from enum import StrEnum

from pearl.sim.traces.availability import AvailabilityTrace
from pearl.sim.traces.generator import SpotMarket, generate

MAX_PREEMPTIBLE = 12
SEGMENT_S = 7200.0
GRACE_S = 30.0
MEAN_WITHIN = 0.25
"""A drawn trace is taken if its mean number of GPUs is within this of the nominal one."""
MAX_DRAWS = 1000


class Segment(StrEnum):
    """A trace segment, by its abundance."""

    PLENTY = "plenty"
    SCARCE = "scarce"
    MEDIUM = "medium"


_MEAN_GPUS = {Segment.PLENTY: 10.0, Segment.SCARCE: 6.0, Segment.MEDIUM: 8.0}
_CHANGES_PER_H = {Segment.PLENTY: 4.0, Segment.SCARCE: 12.0, Segment.MEDIUM: 8.0}


def trace_of(segment: Segment, seed: int) -> AvailabilityTrace:
    """The first trace at or after the seed's stretch of draws whose mean is the segment's."""
    market = SpotMarket(
        max_nodes=MAX_PREEMPTIBLE,
        abundance=_MEAN_GPUS[segment] / MAX_PREEMPTIBLE,
        changes_per_h=_CHANGES_PER_H[segment],
        horizon_s=SEGMENT_S,
        grace_s=GRACE_S,
    )
    for draw in range(MAX_DRAWS):
        trace = generate(market, seed=seed * MAX_DRAWS + draw)
        if abs(trace.statistics().mean_gpus - _MEAN_GPUS[segment]) <= MEAN_WITHIN:
            return trace
    raise AssertionError(f"no draw of {segment} in {MAX_DRAWS} has its mean")
