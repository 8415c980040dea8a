"""A workload profile as the `workload:` section of a scenario file."""

from __future__ import annotations

import math
import textwrap
from decimal import Decimal
from typing import assert_never

from pearl.core.distribution import Distribution, Family
from pearl.core.workload import Workload

WIDTH = 110
"""Column at which long lists of values wrap."""


def workload_text(workload: Workload) -> str:
    """YAML to paste under `spec:` of a scenario; numbers keep six significant digits."""
    quantities = (
        ("turns", workload.turns, ""),
        ("first_prompt_tokens", workload.first_prompt_tokens, ""),
        ("new_prompt_tokens", workload.new_prompt_tokens, ""),
        ("output_tokens", workload.output_tokens, ""),
        ("environment", workload.environment_s, "s"),
    )
    lines = [
        "workload:",
        f"  trajectories: {workload.trajectories}",
        *(_wrapped(f"  {name}: {_distribution(quantity, unit)}") for name, quantity, unit in quantities),
        f"  max_context_tokens: {workload.max_context_tokens}",
        f"  routing: {workload.routing}",
        f"  training: {workload.training}",
        f"  max_staleness: {workload.max_staleness}",
    ]
    return "\n".join(lines) + "\n"


def _distribution(quantity: Distribution, unit: str) -> str:
    limits = [("low", quantity.low)] if quantity.low else []
    limits += [("high", quantity.high)] if math.isfinite(quantity.high) else []
    match quantity.family:
        case Family.CONSTANT:
            return _number(quantity.expected, unit)
        case Family.UNIFORM:
            limits = [("low", quantity.low), ("high", quantity.high)]
            parts: list[str] = []
        case Family.EXPONENTIAL:
            parts = [f"mean: {_number(quantity.mean, unit)}"]
        case Family.LOGNORMAL:
            parts = [f"mean: {_number(quantity.mean, unit)}", f"cv: {_number(quantity.cv, '')}"]
        case Family.EMPIRICAL:
            parts = [f"values: [{', '.join(_number(value, unit) for value in quantity.values)}]"]
        case _:
            assert_never(quantity.family)
    parts += [f"{name}: {_number(value, unit)}" for name, value in limits]
    return f"{{dist: {quantity.family}, {', '.join(parts)}}}"


def _number(value: float, unit: str) -> str:
    return f"{Decimal(f'{value:.6g}'):f}{unit}"


def _wrapped(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    return "\n".join(textwrap.wrap(line, WIDTH, subsequent_indent=" " * 6, break_long_words=False))
