"""What a gate says of the configuration that it turned down: a code, a sentence, and the numbers that decide it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pearl.core.decision import ReasonCode
from pearl.core.problem import Change, DecisionProblem
from pearl.deciding.standing import Loss
from pearl.solving.evaluate import Evaluation
from pearl.solving.tiers import priced_tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a configuration was not taken; `short_s` is what it lacked, in seconds of makespan, where that is known."""

    code: ReasonCode
    why: str
    data: Mapping[str, float | int | str] = field(default_factory=dict)
    short_s: float = 0.0


def in_cooldown(kinds: Iterable[Change]) -> Refusal:
    """Changes of these kinds are too close to the last ones."""
    names = sorted(kind.value for kind in kinds)
    return Refusal(
        code=ReasonCode.COOLDOWN,
        why=f"a {' and '.join(names)} change is in its cooldown",
        data={"kinds": ", ".join(names)},
    )


def too_little(*, gain_ms: int, asked_ms: int) -> Refusal:
    """The makespan gained over staying is less than the thresholds of the changes (gate and veto)."""
    gain_s, asked_s = gain_ms / 1000, asked_ms / 1000
    what = f"it gains {gain_s:.1f} s, and {asked_s:.1f} s are asked for"
    if gain_ms < 0:
        what = f"it takes {-gain_s:.1f} s longer than staying, and a gain of {asked_s:.1f} s is asked for"
    data = {"gain_s": gain_s, "asked_s": asked_s}
    return Refusal(code=ReasonCode.HYSTERESIS, why=what, data=data, short_s=asked_s - gain_s)


def mispredicted(*, error: float, margin: float) -> Refusal:
    """Predictions miss measurement by more than the change would gain; both are shares of the makespan."""
    gained = f"more than the {margin:.1%} to be gained" if margin > 0 else "and it gains nothing in makespan"
    return Refusal(
        code=ReasonCode.CALIBRATION,
        why=f"predictions miss measurement by {error:.1%}, {gained}",
        data={"error": error, "margin": margin},
    )


def outdone(problem: DecisionProblem, point: Evaluation, winner: Evaluation, lost: Loss | None) -> Refusal:
    """No gate forbids it, and staying wins in a tier: because of the threshold charged there, or of what else it has.

    `winner` is staying, which is charged nothing. None for `lost`: the charge leaves it as good, and not better.
    """
    gain_s, charged_s = (winner.makespan_ms - point.makespan_ms) / 1000, point.charge_ms / 1000
    data: dict[str, float | int | str] = {"gain_s": gain_s, "charged_s": charged_s}
    charged = f"it gains {gain_s:.1f} s, and {charged_s:.1f} s are charged for the change"
    if lost is None:
        return Refusal(code=ReasonCode.HYSTERESIS, why=f"{charged}: no better than staying in any tier", data=data)
    data |= {"tier": lost.tier.name, "tier_value": lost.tier.value, "stay_value": lost.tier.against}
    if lost.tolerated:
        data["tolerance"] = max(pair.tolerance for pair in lost.tolerated)
    if _by_its_charge(problem, point, winner, lost):
        return Refusal(code=ReasonCode.HYSTERESIS, why=f"{charged}; {lost.text()}", data=data)
    return Refusal(code=ReasonCode.TIER, why=lost.text() + _charged_where(problem, charged_s), data=data)


def _by_its_charge(problem: DecisionProblem, point: Evaluation, winner: Evaluation, lost: Loss) -> bool:
    """Whether the tier would not have decided against the point without what it charges for the change."""
    index = lost.tier.number - 1
    charge = priced_tiers(problem)[index].price_weight * point.charge_ms
    return point.tier_values[index] - charge <= winner.tier_values[index]


def _charged_where(problem: DecisionProblem, charged_s: float) -> str:
    carrier = next((priced.tier.name for priced in priced_tiers(problem) if priced.price_weight), None)
    return f"; {carrier!r} counts {charged_s:.1f} s charged for the change" if carrier and charged_s else ""
