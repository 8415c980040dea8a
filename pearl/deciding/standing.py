"""How one configuration stands against another: the value of both in every tier, and the tier that decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from pearl.core.problem import UNREACHABLE_MS, DecisionProblem, Tier
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import Evaluation
from pearl.solving.protocol import Limits, Solver, SolveStatus
from pearl.solving.tiers import PENALTIES, PricedTier, held_bound, priced_tiers

MOST_DECIMALS = 6
"""Decimals beyond which two values are shown as equal: those of the JSON documents."""

Optimum = Callable[[int], int | None]
"""The optimum of a tier (by index) within what the tiers before it allow; None where it was not found in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPair:
    """One tier at a configuration (`value`) and at the one that it is held against, both in the tier's unit.

    Both contain what the tier was charged with: penalties of soft rules, and thresholds under `charge`.
    """

    number: int
    """From 1, in the order of solving."""
    name: str
    unit: str
    value: float
    against: float
    tolerance: float
    """Share of the tier's optimum by which later tiers may worsen it; 0 for the last one, which is held exactly."""

    def shown(self) -> tuple[str, str]:
        """Both values with their unit, at as many decimals as tell them apart."""
        value, against = told_apart(self.value, self.against)
        return f"{value} {self.unit}".rstrip(), f"{against} {self.unit}".rstrip()

    def text(self) -> str:
        """`tier 2 'spend': 14 usd against 8 usd`."""
        value, against = self.shown()
        return f"tier {self.number} {self.name!r}: {value} against {against}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The tier in which a configuration lost; `tolerated` are earlier ones that differ, within their tolerance."""

    tier: TierPair
    tolerated: tuple[TierPair, ...] = ()

    def text(self) -> str:
        """`worse in tier 2 'spend': …`, with what the tolerances of earlier tiers let pass."""
        passed = [f"{pair.text()}, within the tolerance of {100 * pair.tolerance:.6g} %" for pair in self.tolerated]
        return f"worse in {self.tier.text()}" + (f" ({'; '.join(passed)})" if passed else "")


def told_apart(a: float, b: float) -> tuple[str, str]:
    """Two numbers with one decimal, or as many more as tell them apart; without any where both are whole."""
    if a == round(a) and b == round(b):
        return f"{a:.0f}", f"{b:.0f}"
    for decimals in range(1, MOST_DECIMALS):
        texts = f"{a:.{decimals}f}", f"{b:.{decimals}f}"
        if texts[0] != texts[1]:
            return texts
    return f"{a:.1f}", f"{b:.1f}"


def tier_unit(tier: Tier) -> str:
    """Unit of a tier's value."""
    return "ms" if tier.name == PENALTIES else tier.terms[0].unit if tier.terms else ""


def tier_pairs(problem: DecisionProblem, point: Evaluation, other: Evaluation) -> tuple[TierPair, ...]:
    """Every tier of both points, as `problem` charges them; empty where one of them cannot run."""
    if max(point.makespan_ms, other.makespan_ms) >= UNREACHABLE_MS:
        return ()
    tiers = priced_tiers(problem)
    return tuple(
        _pair(tier, number, value, against, last=number == len(tiers))
        for number, (tier, value, against) in enumerate(
            zip(tiers, point.tier_values, other.tier_values, strict=True), start=1
        )
    )


def _pair(priced: PricedTier, number: int, value: int, against: int, *, last: bool) -> TierPair:
    tier = priced.tier
    scale = tier.terms[0].scale if tier.terms else 1
    return TierPair(
        number=number,
        name=tier.name,
        unit=tier_unit(tier),
        value=float(value / scale),
        against=float(against / scale),
        tolerance=0.0 if last else float(tier.tolerance),
    )


def optima(problem: DecisionProblem, solver: Solver, limits: Limits) -> Optimum:
    """Optima of the tiers, each found by one more solve when it is first asked for."""
    tiers = priced_tiers(problem)

    @cache
    def optimum(index: int) -> int | None:
        asked = tiers[index].tier
        exact = tuple(replace(tier, tolerance=tier.tolerance * 0) if tier is asked else tier for tier in problem.tiers)
        solution = solve_problem(replace(problem, tiers=exact), solver, limits=limits)
        return solution.tier_values[index] if solution.status is SolveStatus.OPTIMAL else None

    return optimum


def loss(problem: DecisionProblem, point: Evaluation, winner: Evaluation, optimum: Optimum) -> Loss | None:
    """Where a feasible point lost against the proved optimum `winner`; None where it is as good in every tier."""
    index = losing_tier(priced_tiers(problem), point.tier_values, winner.tier_values, optimum)
    if index is None:
        return None
    pairs = tier_pairs(problem, point, winner)
    return Loss(tier=pairs[index], tolerated=tuple(pair for pair in pairs[:index] if pair.value != pair.against))


def losing_tier(
    tiers: Sequence[PricedTier], values: Sequence[int], winning: Sequence[int], optimum: Optimum
) -> int | None:
    """Index of the tier that drops a feasible point in the order of `solve_problem`; None for a tie.

    First each tier drops what lies beyond its optimum and tolerance. Among what is left, tiers are minimised once more
    in order, so that there the first one in which the point differs decides. The optimum is asked for only where the
    point lies between the winner and the farthest that the tolerance may reach.
    """
    last = len(tiers) - 1
    for k, tier in enumerate(tiers):
        tolerance_ppb = tier.tolerance_ppb if k < last else 0
        if values[k] > winning[k] and _beyond(values[k], winning[k], tolerance_ppb, partial(optimum, k)):
            return k
    return next((k for k in range(len(tiers)) if values[k] > winning[k]), None)


def _beyond(value: int, winning: int, tolerance_ppb: int, optimum: Callable[[], int | None]) -> bool:
    """Whether a value that is worse than the winner's lies beyond the tolerance of its tier."""
    if not tolerance_ppb or (winning >= 0 and value > held_bound(winning, tolerance_ppb)):
        return True
    best = optimum()
    return best is None or value > held_bound(best, tolerance_ppb)
