"""Hysteresis and borrow gates: how much better a change has to be."""

from __future__ import annotations

from collections.abc import Mapping

from pearl.core.facts import BoundHysteresis, Cooldown, HysteresisSemantics
from pearl.core.problem import Change, Hurdle
from pearl.core.situation import ChangeAge


def borrow_gate_ms(*, base_ms: int, window_ms: int, cost_ms: int) -> int:
    """Largest makespan with which borrowing pays; negative or zero where none can (derived in docs/mathematics.md).

    A batch that takes T with borrowed workers and base_ms without, a window w and a cost c: if it ends within the
    window, T + c <= base_ms. Otherwise the share w/T is done when the window closes and the rest runs at the base pace:
    w + c + (1 - w/T)·base_ms <= base_ms, that is T <= w·base_ms/(w + c). The cost is charged only for a positive gain.
    """
    if base_ms - cost_ms <= window_ms:
        return base_ms - cost_ms
    return window_ms * base_ms // max(window_ms + cost_ms, 1)


def hurdle(rules: BoundHysteresis, *, stay_ms: int, changes: Mapping[Change, ChangeAge], forced: bool) -> Hurdle | None:
    """The hurdle that the problem carries; None where the policy sets none, or refuses afterwards (veto)."""
    if forced:
        if rules.when_stay_infeasible is not HysteresisSemantics.CHARGE:
            return None
        return _hurdle(rules, stay_ms=stay_ms, gate=False, charge=True, forbidden=frozenset())
    forbidden = frozenset(kind for kind in Change if in_cooldown(rules.cooldown(kind), changes.get(kind)))
    match rules.semantics:
        case HysteresisSemantics.VETO:
            return None
        case HysteresisSemantics.GATE:
            return _hurdle(rules, stay_ms=stay_ms, gate=True, charge=False, forbidden=forbidden)
        case HysteresisSemantics.CHARGE:
            return _hurdle(rules, stay_ms=stay_ms, gate=False, charge=True, forbidden=forbidden)


def _hurdle(rules: BoundHysteresis, *, stay_ms: int, gate: bool, charge: bool, forbidden: frozenset[Change]) -> Hurdle:
    resize = rules.resize_s
    return Hurdle(
        stay_ms=stay_ms,
        mode_ms=round(rules.mode_s * 1000),
        ratio_ms=round(rules.ratio_s * 1000),
        resize_ms=None if resize is None else round(resize * 1000),
        gate=gate,
        charge=charge,
        forbidden=forbidden,
    )


def in_cooldown(rule: Cooldown, age: ChangeAge | None) -> bool:
    """Whether a change of this kind is still too close to the last one."""
    return age is not None and (age.steps < rule.steps or age.seconds < rule.seconds)


def threshold_ms(rules: BoundHysteresis, kinds: frozenset[Change]) -> int:
    """Milliseconds by which changes of these kinds must beat staying, thresholds adding up."""
    amounts_s = {Change.MODE: rules.mode_s, Change.RATIO: rules.ratio_s, Change.RESIZE: rules.resize_s or 0.0}
    return sum(round(amounts_s[kind] * 1000) for kind in kinds)
