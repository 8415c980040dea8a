"""Rungs: binaries that pick a count, and with it the entry of every table read at that count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pearl.core.cluster import Role
from pearl.core.problem import AXIS_ROLE, UNREACHABLE_MS, Axis, DecisionProblem, PairRung, Table
from pearl.solving.rows import Affine, ModelBuilder, constant, total
from pearl.solving.scope import Scope, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Rungs of one axis. Exact rungs equal the count; else the count is at least the rung's.

    The second form leaves out counts that change no table, and is right only where no table grows with the count.
    """

    axis: Axis
    counts: tuple[int, ...]
    rungs: tuple[Affine, ...]

    def value(self, values: Sequence[int], *, idle: int) -> Affine:
        """Table entry at the chosen rung, `idle` while the other mode runs."""
        steps = ((rung, values[n] - idle) for n, rung in zip(self.counts, self.rungs, strict=True))
        return constant(idle) + total(steps)


def makespan_column(problem: DecisionProblem, axis: Axis) -> tuple[int, ...]:
    """Makespan table of an axis."""
    match axis:
        case Axis.COLOCATED:
            return problem.tables.colocated_ms
        case Axis.PREFILL:
            return problem.tables.prefill_ms
        case Axis.DECODE:
            return problem.tables.decode_ms


def reads_makespan(problem: DecisionProblem, axis: Axis) -> bool:
    """Whether T is read from the axis' own column (pairs stand in for both columns of the disaggregated mode)."""
    return axis is Axis.COLOCATED or not problem.tables.pairs


def add_ladder(
    builder: ModelBuilder,
    problem: DecisionProblem,
    scope: Scope,
    axis: Axis,
    *,
    tables: Iterable[Table],
    exact: bool,
    window: Window,
    on: Affine,
    count: Affine,
) -> Ladder:
    """Rungs of an axis within the window, one of them chosen while its mode is `on`, and tied to the count."""
    columns = [table.values for table in tables]
    domain: Iterable[int] = scope.domain(axis)
    if reads_makespan(problem, axis):
        makespan = makespan_column(problem, axis)
        domain = [n for n in domain if makespan[n] <= window.high_ms and makespan[n] < UNREACHABLE_MS]
        columns.append(_at_least(makespan, window.low_ms, scope.domain(axis)))
    exact = exact or not all(_never_grows(column, scope.domain(axis)) for column in columns)
    counts = tuple(domain if exact else _steps(columns, domain))
    name = AXIS_ROLE[axis].value
    rungs = tuple(builder.binary(f"{name}>={n}" if not exact else f"{name}={n}") for n in counts)
    builder.equal(f"one_rung[{name}]", total((rung, 1) for rung in rungs) - on)
    chosen = total(zip(rungs, counts, strict=True))
    if exact:
        builder.equal(f"at_rung[{name}]", chosen - count)
    else:
        builder.at_most(f"at_rung[{name}]", chosen - count)
    return Ladder(axis=axis, counts=counts, rungs=rungs)


def _at_least(column: Sequence[int], low_ms: int, domain: range) -> tuple[int, ...]:
    """The column with faster entries of the domain lifted to `low_ms`; others are not read."""
    lifted = [low_ms if value < low_ms else value for value in column[domain.start : domain.stop]]
    return (UNREACHABLE_MS,) * domain.start + tuple(lifted)


def _never_grows(column: Sequence[int], domain: range) -> bool:
    values = column[domain.start : domain.stop]
    return all(later <= earlier for earlier, later in pairwise(values))


def _steps(columns: Sequence[Sequence[int]], domain: Iterable[int]) -> Iterable[int]:
    """Counts at which some column changes, and the first."""
    last = None
    for n in domain:
        here = [column[n] for column in columns]
        if here != last:
            last = here
            yield n


def add_pairs(
    builder: ModelBuilder,
    problem: DecisionProblem,
    scope: Scope,
    *,
    exact: bool,
    window: Window,
    on: Affine,
    counts: dict[Role, Affine],
) -> Affine:
    """Pair rungs within the window; returns the disaggregated makespan at the chosen one, 0 while not `on`."""
    rungs = _exact_pairs(problem, scope) if exact else _dominant_pairs(problem, scope, window)
    rungs = [rung for rung in rungs if rung.makespan_ms <= window.high_ms and rung.makespan_ms < UNREACHABLE_MS]
    chosen = [builder.binary(f"pair={rung.prefill}P{rung.decode}D") for rung in rungs]
    builder.equal("one_rung[pair]", total((q, 1) for q in chosen) - on)
    prefill = total((q, rung.prefill) for q, rung in zip(chosen, rungs, strict=True)) - counts[Role.PREFILL]
    decode = total((q, rung.decode) for q, rung in zip(chosen, rungs, strict=True)) - counts[Role.DECODE]
    require = builder.equal if exact or problem.tables.exact_pairs else builder.at_most
    require("at_rung[prefill]", prefill)
    require("at_rung[decode]", decode)
    return total((q, max(rung.makespan_ms, window.low_ms)) for q, rung in zip(chosen, rungs, strict=True))


def _exact_pairs(problem: DecisionProblem, scope: Scope) -> list[PairRung]:
    """One rung for every pair of counts: for rules that need T itself and not a bound on it."""
    prefill, decode = scope.domain(Axis.PREFILL), scope.domain(Axis.DECODE)
    best: dict[tuple[int, int], int] = {}
    for rung in problem.tables.pairs:
        key = (rung.prefill, rung.decode)
        best[key] = min(rung.makespan_ms, best.get(key, UNREACHABLE_MS))
    if not problem.tables.exact_pairs:
        for i in range(prefill.stop):
            for j in range(decode.stop):
                below = (best.get(key, UNREACHABLE_MS) for key in ((i, j), (i - 1, j), (i, j - 1)))
                best[i, j] = min(below)
    return [
        PairRung(prefill=i, decode=j, makespan_ms=value)
        for (i, j), value in sorted(best.items())
        if i in prefill and j in decode
    ]


def _dominant_pairs(problem: DecisionProblem, scope: Scope, window: Window) -> list[PairRung]:
    """Rungs that no other rung beats in counts and makespan (below the window's low end, all are equally fast)."""
    if problem.tables.exact_pairs:
        return _exact_pairs(problem, scope)
    prefill, decode = scope.domain(Axis.PREFILL), scope.domain(Axis.DECODE)
    fitting = (r for r in problem.tables.pairs if r.prefill < prefill.stop and r.decode < decode.stop)
    ordered = sorted(fitting, key=lambda r: (max(r.makespan_ms, window.low_ms), r.prefill, r.decode))
    kept: list[PairRung] = []
    for rung in ordered:
        if rung.makespan_ms > window.high_ms:
            break
        if not any(k.prefill <= rung.prefill and k.decode <= rung.decode for k in kept):
            kept.append(rung)
    return kept
