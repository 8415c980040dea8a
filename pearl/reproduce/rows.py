"""Rows: the published figure beside the simulated one, and how close they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pearl.reproduce.simulate import TIE, Simulated
from pearl.reproduce.targets import Role, Target, Unit

WITHIN = 0.15
"""A figure counts as met within this share of the published value, or of the nearer end of its range."""
REGRET_WITHIN = 0.01
"""A regret counts as met if it exceeds the published one by no more than this."""
ENOUGH = 0.8
"""Share of the held-out speedups that are to be met."""
GAINS = frozenset({Unit.GAIN, Unit.CHANGE})
"""Units that say how much more or less; an error in them is one in 1 + figure."""
SPEEDUPS = frozenset({Unit.GAIN, Unit.SPEEDUP})


class Verdict(StrEnum):
    """How a row came out."""

    WITHIN = "within"
    """Right sign or order, and within 15 % of the value or range; labels and counts: equal."""
    OUTSIDE = "outside"
    """Right sign or order, and further off."""
    TIED = "tied"
    """The published order but for policies that came to the same figure: neither shown nor contradicted."""
    WRONG = "wrong_sign"
    """The opposite sign or another order."""


Figure = float | tuple[float, float] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report."""

    id: str
    section: str
    model: str
    setting: str
    unit: Unit
    published: Figure
    simulated: Figure
    """[lowest, highest] where several settings were simulated."""
    relative_error: float | None
    """Largest over the settings, against the value or the nearer end of the range; of 1 + figure for gains."""
    held_out: bool
    verdict: Verdict
    note: str

    @property
    def counts(self) -> bool:
        """Whether it is one of the held-out speedups."""
        return self.held_out and self.unit in SPEEDUPS


def judge(target: Target, found: Simulated, notes: Mapping[str, str]) -> Row:
    """The row of a target; the note explains it where notes say anything."""
    values = _in_unit(target.unit, found.values)
    error = _relative_error(target, values)
    return Row(
        id=target.id,
        section=target.section,
        model=target.model,
        setting=target.setting,
        unit=target.unit,
        published=_published(target),
        simulated=found.label or _span(values),
        relative_error=error,
        held_out=target.role is Role.HELD_OUT,
        verdict=_verdict(target, values, found.label, error),
        note="; ".join(part for part in (found.remark, notes.get(target.id, "")) if part),
    )


def _published(target: Target) -> Figure:
    return (target.low, target.high) if isinstance(target.published, tuple) else target.published


def _in_unit(unit: Unit, values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(1 + value for value in values) if unit is Unit.SPEEDUP else values


def _span(values: tuple[float, ...]) -> Figure:
    return values[0] if len(values) == 1 else (min(values), max(values))


def _relative_error(target: Target, values: tuple[float, ...]) -> float | None:
    if isinstance(target.published, str) or not values:
        return None
    offset = 1.0 if target.unit in GAINS else 0.0
    return max((_error(value, target.low, target.high, offset) for value in values), key=abs)


def _error(value: float, low: float, high: float, offset: float) -> float:
    nearest = min(max(value, low), high)
    scale = nearest + offset
    return (value - nearest) / scale if scale else value - nearest


def _verdict(target: Target, values: tuple[float, ...], label: str | None, error: float | None) -> Verdict:
    match target.unit:
        case Unit.ORDER:
            return _order_verdict(str(target.published), label or "")
        case Unit.RATIO | Unit.MATCHES:
            return Verdict.WITHIN if label == target.published else Verdict.OUTSIDE
        case Unit.BATCH:
            return Verdict.WITHIN if values == (target.low,) else Verdict.OUTSIDE
        case Unit.REGRET:
            return Verdict.WITHIN if values[0] <= target.high + REGRET_WITHIN else Verdict.OUTSIDE
        case _:
            if not all(_same_sign(target, value) for value in values):
                return Verdict.WRONG
            return Verdict.WITHIN if error is not None and abs(error) <= WITHIN else Verdict.OUTSIDE


def _order_verdict(published: str, label: str) -> Verdict:
    if label == published:
        return Verdict.WITHIN
    return Verdict.TIED if label.replace(TIE, "<") == published else Verdict.WRONG


def _same_sign(target: Target, value: float) -> bool:
    zero = 1.0 if target.unit is Unit.SPEEDUP else 0.0
    return (value > zero) == (target.high > zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the rows come to."""

    rows: int
    wrong: tuple[str, ...]
    """Rows with a wrong sign or order."""
    tied: tuple[str, ...]
    """Rows whose order is not shown, for a tie."""
    speedups: int
    """Held-out speedups."""
    met: int
    """Those within 15 %."""

    @property
    def holds(self) -> bool:
        """Whether every sign and order is right, and enough held-out speedups are met."""
        return not self.wrong and not self.tied and self.met >= ENOUGH * self.speedups


def summarise(rows: tuple[Row, ...]) -> Summary:
    """Counts over the rows."""
    counted = [row for row in rows if row.counts]
    return Summary(
        rows=len(rows),
        wrong=tuple(row.id for row in rows if row.verdict is Verdict.WRONG),
        tied=tuple(row.id for row in rows if row.verdict is Verdict.TIED),
        speedups=len(counted),
        met=sum(row.verdict is Verdict.WITHIN for row in counted),
    )
