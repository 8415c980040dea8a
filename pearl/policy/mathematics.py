"""A policy's mathematics in readable form: every row, threshold and tier, as text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

from pearl.policy.algebra import Atom, CountAtom, MakespanAtom, TableAtom
from pearl.policy.evaluate import NAMED_COUNTS
from pearl.policy.model import Policy, RuleSpec
from pearl.policy.polynomial import Polynomial
from pearl.policy.symbolic import Symbolic, SymbolicForm
from pearl.policy.syntax import render

_NAMES = {atom: name for name, atom in NAMED_COUNTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowText:
    """One compiled row."""

    name: str
    when: str
    kind: str
    row: str
    unit: str
    require: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierText:
    """One objective; its `terms` are minimised, the largest of them where there are several."""

    name: str
    terms: tuple[str, ...]
    unit: str
    tolerance: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mathematics:
    """Everything that a policy says, as text."""

    policy: str
    rows: tuple[RowText, ...]
    tiers: tuple[TierText, ...]
    metrics: tuple[tuple[str, str], ...]
    thresholds: tuple[tuple[str, str], ...]

    def plain(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "policy": self.policy,
            "rows": [asdict(row) for row in self.rows],
            "tiers": [asdict(tier) for tier in self.tiers],
            "metrics": dict(self.metrics),
            "thresholds": dict(self.thresholds),
        }

    def lines(self) -> Iterator[str]:
        """As text, a line for each row, tier, metric and threshold."""
        for row in self.rows:
            applies = f"{row.when}, {row.kind}" if row.when else row.kind
            yield f"{row.name} ({applies}): {row.row} ≤ 0  [{row.file}:{row.line}]"
        for i, tier in enumerate(self.tiers, 1):
            what = f"max({', '.join(tier.terms)})" if len(tier.terms) > 1 else tier.terms[0]
            held = "" if tier.tolerance == "0" else f", held within {tier.tolerance}"
            yield f"tier {i} {tier.name}: minimise {what}{held}  [{tier.file}:{tier.line}]"
        for name, text in self.metrics:
            yield f"let {name} = {text}"
        for name, text in self.thresholds:
            yield f"{name}: {text}"


def mathematics(policy: Policy) -> Mathematics:
    """The mathematics of a policy before any scenario; names stand for themselves, params for their values."""
    symbolic = Symbolic(policy.params, policy.lets)
    return Mathematics(
        policy=policy.name,
        rows=tuple(row for rule in policy.rules for row in _rows(symbolic, rule)),
        tiers=tuple(
            TierText(
                name=tier.name,
                terms=tuple(form_text(form) for form in symbolic.tier(tier)),
                unit=tier.unit.symbol,
                tolerance=str(tier.tolerance),
                file=tier.span.file,
                line=tier.span.line,
            )
            for tier in policy.tiers
        ),
        metrics=tuple((let.name, let.formula.text) for let in policy.lets),
        thresholds=tuple(_thresholds(policy)),
    )


def _rows(symbolic: Symbolic, rule: RuleSpec) -> Iterator[RowText]:
    units = cycle(row.unit.symbol for row in rule.rows)
    for (name, form), unit in zip(symbolic.rule(rule), units, strict=False):
        yield RowText(
            name=name,
            when=_when(rule),
            kind=_kind(rule),
            row=form_text(form),
            unit=unit,
            require=rule.require.text,
            file=rule.span.file,
            line=rule.span.line,
        )


def _when(rule: RuleSpec) -> str:
    when = rule.when
    words = ["never"] if when.never else [when.mode.value] if when.mode else []
    return " and ".join([*words, *(render(c.expr) for c in when.conditions)])


def _kind(rule: RuleSpec) -> str:
    if rule.soft is None:
        return "hard" if rule.relaxable else "hard, physical"
    limit = f", at most {rule.soft.max_violation.text}" if rule.soft.max_violation else ""
    return f"soft, {rule.soft.penalty.text} each{limit}"


def form_text(form: SymbolicForm) -> str:
    """`B·K_seq − 0.95·H_max·N_D`."""
    total = form.constant
    for atom, coefficient in form.terms.items():
        symbol = Polynomial.symbol(atom_text(atom))
        inverse = isinstance(atom, TableAtom) and atom.inverse
        total += coefficient / symbol if inverse else coefficient * symbol
    return str(total)


def atom_text(atom: Atom) -> str:
    """A count, table or makespan as a policy writes it."""
    match atom:
        case CountAtom() if atom in _NAMES:
            return _NAMES[atom]
        case CountAtom():
            given = (("role", atom.role), ("zone", atom.zone), ("node", atom.node))
            return f"{atom.tally.value}({', '.join(f'{key}={value}' for key, value in given if value)})"
        case TableAtom():
            return atom.table
        case MakespanAtom():
            return atom.name


def _thresholds(policy: Policy) -> Iterator[tuple[str, str]]:
    hysteresis, borrow = policy.hysteresis, policy.borrow

    yield "modes", ", ".join(policy.modes)
    yield f"hysteresis ({hysteresis.semantics}), mode", render(hysteresis.mode.expr)
    yield f"hysteresis ({hysteresis.semantics}), ratio", render(hysteresis.ratio.expr)
    resize = hysteresis.resize
    yield f"hysteresis ({hysteresis.semantics}), resize", render(resize.expr) if resize else "none"
    for kind, cooldown in hysteresis.cooldowns.items():
        if cooldown.steps or cooldown.seconds:
            yield f"cooldown, {kind}", f"{cooldown.steps} steps, {cooldown.seconds:g} s"
    yield "borrow, enabled", render(borrow.enabled.expr)
    yield "borrow, window", render(borrow.window.expr) if borrow.window else "no known end"
    yield "borrow, min_saving", render(borrow.min_saving.expr)
    if borrow.max_workers:
        yield "borrow, max_workers", render(borrow.max_workers.expr)
