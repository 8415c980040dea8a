"""Step times of an engine profile over arrays: the formulas of `pearl.core.engine`, one element per case."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from pearl.core.engine import DecodeCost, PrefillCost, Saturation, SaturationForm
from pearl.makespan.sample import Floats


def decode_step_s(cost: DecodeCost, batch: Floats, context_tokens: Floats) -> Floats:
    """Seconds of one decode step of `batch` sequences holding `context_tokens` in all."""
    linear = cost.c0_s + cost.c1_s * batch + cost.c2_s * context_tokens
    return linear + _saturation_s(cost.saturation, batch) if cost.saturation else linear


def _saturation_s(saturation: Saturation, batch: Floats) -> Floats:
    match saturation.form:
        case SaturationForm.EXPERTS:
            missed: Floats = np.power(1 - saturation.top_k / saturation.experts, batch)
            return saturation.amplitude_s * (1 - missed)
        case SaturationForm.SQRT:
            root: Floats = np.sqrt(batch)
            return saturation.amplitude_s * root
    assert_never(saturation.form)


def prefill_s(cost: PrefillCost, new_tokens: Floats, cached_tokens: Floats) -> Floats:
    """Seconds to prefill `new_tokens` after `cached_tokens`, alone."""
    return cost.p0_s + cost.p1_s * new_tokens + cost.p2_s * (new_tokens**2 + 2 * new_tokens * cached_tokens)
