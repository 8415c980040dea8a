"""Which makespans a model has to keep: a narrow window first, widened until it is proved wide enough.

With the first tier a·T + c plus prices that are never negative, an assignment slower than U is worth more than a·U + c.
So an optimum V among those up to U is the optimum of all once V <= a·U + c (prices can lift V above that, and then the
window is widened); and the later tiers see all that the first tier's tolerance admits once a·U + c reaches V held with
its tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl.core.problem import UNREACHABLE_MS, DecisionProblem
from pearl.solving.evaluate import evaluate, today
from pearl.solving.scope import Window, lower_bound_ms, scope_of
from pearl.solving.tiers import held_bound, priced_tiers

SLACK_PER_MILLE = (5, 50, 400)
"""How far above the lower bound the first windows reach. The bound is often met; rules and gates rarely cost more than
a few per cent; and 5 % keeps one rung in twenty of a 1/n table."""

SLOWEST_MS = UNREACHABLE_MS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSearch:
    """Windows to try, in order, where the first tier is a multiple of T; else only the full one."""

    low_ms: int
    highs_ms: tuple[int, ...]
    """Increasing upper ends; the last leaves nothing out."""
    factor: int = 0
    """The first tier's coefficient of T; 0 where it is no multiple of T."""
    offset: int = 0
    tolerance_ppb: int = 0

    @classmethod
    def of(cls, problem: DecisionProblem) -> WindowSearch:
        """Windows for a problem that `check_problem` accepts."""
        low_ms = lower_bound_ms(problem, scope_of(problem))
        full = cls(low_ms=low_ms, highs_ms=(SLOWEST_MS,))
        first = priced_tiers(problem)[0]
        expr = first.tier.terms[0]
        if len(first.tier.terms) > 1 or expr.counts or expr.tables or expr.makespan <= 0 or low_ms >= SLOWEST_MS:
            return full
        search = cls(
            low_ms=low_ms,
            highs_ms=(SLOWEST_MS,),
            factor=expr.makespan,
            offset=expr.constant,
            tolerance_ppb=first.tolerance_ppb,
        )
        ends = [
            search.needed_ms(expr.makespan * (low_ms + low_ms * p // 1000) + expr.constant) for p in SLACK_PER_MILLE
        ]
        stay = today(problem)
        if stay is not None and (kept := evaluate(problem, stay)).feasible:
            enough = search.needed_ms(kept.tier_values[0])
            ends = [*(end for end in ends if end < enough), enough]
        highs = sorted({max(low_ms, end) for end in ends if end < SLOWEST_MS} | {SLOWEST_MS})
        return cls(
            low_ms=low_ms,
            highs_ms=tuple(highs),
            factor=search.factor,
            offset=search.offset,
            tolerance_ppb=search.tolerance_ppb,
        )

    def needed_ms(self, value: int) -> int:
        """Slowest makespan that may matter once the first tier is known to reach `value`."""
        if not self.factor:
            return SLOWEST_MS
        return min(SLOWEST_MS, (held_bound(value, self.tolerance_ppb) - self.offset) // self.factor)

    def proves(self, value: int, window: Window) -> bool:
        """Whether the optimum `value` among the assignments in a window is the optimum of all."""
        return not self.factor or value <= self.factor * window.high_ms + self.offset

    def window(self, high_ms: int) -> Window:
        """The window up to `high_ms`."""
        return Window(low_ms=self.low_ms, high_ms=high_ms)
