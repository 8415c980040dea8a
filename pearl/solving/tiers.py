"""The tiers that a problem is solved by: the policy's own, plus where penalties and charges go, plus fewest changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pearl.core.cluster import Role
from pearl.core.problem import Change, DecisionProblem, Group, Linear, Tier

PPB = 10**9
"""Tolerances are held in parts per billion, rounded down, so that every solver and the re-check hold the same bound."""

ROLE_CHANGE_WEIGHT = 2
"""In `fewest_changes` a role change drains a worker and restarts it in another role: as much as one removal and one
addition."""

PENALTIES = "penalties"
FEWEST_CHANGES = "fewest_changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedTier:
    """A tier in solving order; penalties and charges, in ms, enter its value times `price_weight`."""

    tier: Tier
    price_weight: int = 0

    @property
    def tolerance_ppb(self) -> int:
        """Tolerance in parts per billion, rounded down."""
        return (self.tier.tolerance * PPB).__floor__()


def held_bound(optimum: int, tolerance_ppb: int) -> int:
    """The largest value that a tier may take once its optimum is known: optimum + |optimum|·tolerance, rounded down."""
    return optimum + abs(optimum) * tolerance_ppb // PPB


def change_of(group: Group, role: Role) -> str | None:
    """What a worker of `group` in `role` counts as: `role_change`, `add`, `remove`, or None where nothing changes.

    A worker that leaves, or that has no choice, is not removed by choice.
    """
    if role is group.role:
        return None
    if group.role is Role.INACTIVE:
        return "add"
    if role is not Role.INACTIVE:
        return "role_change"
    return "remove" if not group.leaving and len(group.targets) > 1 else None


def changes_of(problem: DecisionProblem) -> Iterator[tuple[Group, Role, str]]:
    """Every (group, target role) that is a change, and its kind."""
    for group in problem.groups:
        for role in group.targets:
            kind = change_of(group, role)
            if kind is not None:
                yield group, role, kind


def priced_tiers(problem: DecisionProblem) -> tuple[PricedTier, ...]:
    """Tiers in solving order.

    Penalties of soft rules and charged thresholds join the first tier that contains T, times its largest coefficient of
    T (so that they count as makespan); where no tier contains T, a tier `penalties` comes first. Unless some tier
    prices every change already, a last tier `fewest_changes` minimises 2·role_changes + adds + removes.
    """
    tiers = [PricedTier(tier=tier) for tier in problem.tiers]
    if _has_prices(problem):
        carrier = next((k for k, t in enumerate(problem.tiers) if any(term.makespan for term in t.terms)), None)
        if carrier is None:
            tiers.insert(0, PricedTier(tier=Tier(name=PENALTIES, terms=(Linear(),)), price_weight=1))
        else:
            weight = max(term.makespan for term in problem.tiers[carrier].terms)
            tiers[carrier] = PricedTier(tier=problem.tiers[carrier], price_weight=weight)
    if not tiers or not any(_prices_every_change(problem, tier) for tier in problem.tiers):
        tiers.append(PricedTier(tier=_fewest_changes(problem)))
    return tuple(tiers)


def _has_prices(problem: DecisionProblem) -> bool:
    hurdle = problem.hurdle
    charged = hurdle is not None and hurdle.charge and any((hurdle.mode_ms, hurdle.ratio_ms, hurdle.resize_ms))
    return charged or any(rule.soft for rule in problem.rules)


def _prices_every_change(problem: DecisionProblem, tier: Tier) -> bool:
    """Whether the tier is a positive price on the changes and on nothing else."""
    if len(tier.terms) != 1 or tier.terms[0].makespan or tier.terms[0].tables:
        return False
    counts = tier.terms[0].counts
    priced = {(group, role) for group, role, coefficient in counts if coefficient > 0}
    changes = {(group.id, role) for group, role, _ in changes_of(problem)}
    return priced == changes and len(priced) == len(counts)


def _fewest_changes(problem: DecisionProblem) -> Tier:
    weights = {"role_change": ROLE_CHANGE_WEIGHT, "add": 1, "remove": 1}
    counts = sorted((group.id, role, weights[kind]) for group, role, kind in changes_of(problem))
    return Tier(name=FEWEST_CHANGES, terms=(Linear(counts=tuple(counts)),), tolerance=Fraction(0))


def thresholds_ms(problem: DecisionProblem) -> dict[Change, int]:
    """Threshold of each kind of change that has one, in ms; empty without a hurdle."""
    hurdle = problem.hurdle
    if hurdle is None:
        return {}
    known = {Change.MODE: hurdle.mode_ms, Change.RATIO: hurdle.ratio_ms}
    return known if hurdle.resize_ms is None else {**known, Change.RESIZE: hurdle.resize_ms}
