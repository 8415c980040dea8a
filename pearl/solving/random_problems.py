"""Small random decision problems with every feature of the IR: for tests, conformance and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

from pearl.core.cluster import SERVING_ROLES, Counts, Mode, Role, Zone
from pearl.core.problem import (
    AXIS_ROLE,
    UNREACHABLE_MS,
    Axis,
    BorrowTerms,
    Change,
    DecisionProblem,
    Group,
    Hurdle,
    Linear,
    MakespanTables,
    PairRung,
    Rule,
    Soft,
    Table,
    Tier,
)
from pearl.solving.tiers import changes_of

ALL_ROLES = (*SERVING_ROLES, Role.INACTIVE)
Counted = tuple[tuple[str, Role, int], ...]


def random_problem(rng: Random, *, max_workers: int = 7, max_groups: int = 4) -> DecisionProblem:
    """A problem of at most `max_workers` workers; the same state of `rng` gives the same problem."""
    groups = _groups(rng, max_workers, max_groups)
    workers = sum(group.size for group in groups)
    tables = _tables(rng, workers)
    current = rng.choice([None, *Mode, *Mode])
    overlap = sum(group.size for group in groups if group.zone is Zone.OVERLAP)
    problem = DecisionProblem(
        groups=groups,
        tables=tables,
        tiers=(),
        modes=rng.choice([tuple(Mode)] * 4 + [(Mode.COLOCATED,), (Mode.DISAGGREGATED,)]),
        current_mode=current,
        hurdle=_hurdle(rng, tables) if rng.random() < 0.45 else None,
        borrow=BorrowTerms(
            max_workers=rng.randint(overlap // 2, overlap),
            gate_ms=_some_makespan(rng, tables) if rng.random() < 0.4 else None,
        ),
        fixed=_some_counts(rng, workers) if rng.random() < 0.08 else None,
        excluded=tuple(_some_counts(rng, workers) for _ in range(rng.choice([0, 0, 0, 0, 1, 3]))),
    )
    makers = [_capacity, _zone_limit, _node_limit, _churn_limit, _budget, _makespan_limit, _table_limit]
    rules = tuple(rng.choice(makers)(rng, problem, f"rule_{k}") for k in range(rng.choice([0, 0, 1, 1, 2, 3])))
    return replace(problem, rules=rules, tiers=_tiers(rng, problem))


def _groups(rng: Random, max_workers: int, max_groups: int) -> tuple[Group, ...]:
    groups: list[Group] = []
    left = rng.randint(1, max_workers)
    while left and len(groups) < max_groups:
        size = rng.randint(1, left) if len(groups) + 1 < max_groups else min(left, 3)
        zone, role = rng.choice(list(Zone)), rng.choice(ALL_ROLES)
        draw = rng.random()
        leaving = draw < 0.06
        if leaving:
            targets: tuple[Role, ...] = (Role.INACTIVE,)
        elif draw < 0.12:
            targets = (role,)
        elif draw < 0.24:
            targets = tuple(sorted({role, *rng.sample(ALL_ROLES, 2)}, key=ALL_ROLES.index))
        else:
            targets = ALL_ROLES
        groups.append(
            Group(
                id=f"g{len(groups)}/{zone}/{role}",
                zone=zone,
                role=role,
                size=size,
                targets=targets,
                node=rng.choice([None, "n0", "n1"]),
                leaving=leaving,
            )
        )
        left -= size
    return tuple(groups)


def _tables(rng: Random, workers: int) -> MakespanTables:
    def column() -> tuple[int, ...]:
        base, floor = rng.randint(200, 4000), rng.randint(0, 300)
        values = [floor + base // n for n in range(1, workers + 1)]
        if rng.random() < 0.25:
            values = [rng.randint(100, 3000) for _ in values]
        blocked = rng.choice([0, 0, 0, 1, 2])
        return (UNREACHABLE_MS, *(UNREACHABLE_MS if n < blocked else v for n, v in enumerate(values)))

    colocated, prefill, decode = column(), column(), column()
    pairs: tuple[PairRung, ...] = ()
    if rng.random() < 0.25:
        pairs = tuple(
            PairRung(
                prefill=i,
                decode=j,
                makespan_ms=max(prefill[i], decode[j]) if rng.random() < 0.8 else rng.randint(100, 3000),
            )
            for i in range(1, workers)
            for j in range(1, workers - i + 1)
            if rng.random() < 0.9
        )
    return MakespanTables(
        colocated_ms=colocated, prefill_ms=prefill, decode_ms=decode, pairs=pairs, exact_pairs=rng.random() < 0.5
    )


def _some_makespan(rng: Random, tables: MakespanTables) -> int:
    values = [*tables.colocated_ms, *tables.prefill_ms, *tables.decode_ms]
    reachable = [value for value in values if value < UNREACHABLE_MS]
    return rng.choice(reachable) if reachable else 1000


def _hurdle(rng: Random, tables: MakespanTables) -> Hurdle:
    return Hurdle(
        stay_ms=rng.choice([_some_makespan(rng, tables), 3000, UNREACHABLE_MS]),
        mode_ms=rng.choice([0, 100, 500]),
        ratio_ms=rng.choice([0, 50, 300]),
        resize_ms=rng.choice([None, 0, 100]),
        gate=rng.random() < 0.6,
        charge=rng.random() < 0.4,
        forbidden=frozenset(change for change in Change if rng.random() < 0.06),
    )


def _some_counts(rng: Random, workers: int) -> Counts:
    if rng.random() < 0.5:
        return Counts(colocated=rng.randint(1, workers))
    prefill = rng.randint(1, workers)
    return Counts(prefill=prefill, decode=max(1, rng.randint(0, workers - prefill)))


def _count(problem: DecisionProblem, weight: Callable[[Group, Role], int]) -> Counted:
    """Σ weight·y over every group and target, in canonical order."""
    terms = [(group.id, role, weight(group, role)) for group in problem.groups for role in group.targets]
    return tuple(sorted(term for term in terms if term[2]))


def _soft(rng: Random) -> Soft | None:
    if rng.random() < 0.6:
        return None
    return Soft(penalty_ms=rng.choice([0, 7, 100, 400]), max_violation=rng.choice([None, None, 0, 1, 3]))


def _when(rng: Random) -> Mode | None:
    modes: list[Mode | None] = [None, *Mode]
    return rng.choice(modes)


def _scale(rng: Random) -> Fraction:
    return rng.choice([Fraction(1), Fraction(1), Fraction(10), Fraction(5, 2)])


def _capacity(rng: Random, problem: DecisionProblem, name: str) -> Rule:
    role, each = rng.choice(SERVING_ROLES), rng.randint(1, 9)
    expr = Linear(
        constant=rng.randint(0, 12), counts=_count(problem, lambda _, r: -each * (r is role)), scale=_scale(rng)
    )
    return Rule(name=name, expr=expr, when=_when(rng), soft=_soft(rng))


def _zone_limit(rng: Random, problem: DecisionProblem, name: str) -> Rule:
    zone, sign, role = rng.choice(list(Zone)), rng.choice([1, -1]), rng.choice(SERVING_ROLES)
    counts = _count(problem, lambda g, r: sign * (g.zone is zone and r in (role, Role.COLOCATED)))
    return Rule(
        name=name, expr=Linear(constant=-sign * rng.randint(0, 3), counts=counts), when=_when(rng), soft=_soft(rng)
    )


def _node_limit(rng: Random, problem: DecisionProblem, name: str) -> Rule:
    role, most = rng.choice(SERVING_ROLES), rng.randint(0, 3)
    counts = _count(problem, lambda g, r: int(g.node == "n0" and r is role))
    return Rule(name=name, expr=Linear(constant=-most, counts=counts), when=_when(rng), soft=_soft(rng))


def _churn_limit(rng: Random, problem: DecisionProblem, name: str) -> Rule:
    kinds = rng.choice([("role_change",), ("role_change", "add"), ("add", "remove"), ("remove",)])
    sign = rng.choice([1, 1, 1, -1])
    counts = sorted((group.id, role, sign) for group, role, kind in changes_of(problem) if kind in kinds)
    constant = -rng.randint(0, 3) if sign > 0 else 1
    return Rule(name=name, expr=Linear(constant=constant, counts=tuple(counts)), soft=_soft(rng))


def _budget(rng: Random, problem: DecisionProblem, name: str) -> Rule:
    """A rate of spending at most a budget over a path time: rate - budget/T(n) <= 0."""
    axis, budget = rng.choice(list(Axis)), rng.randint(2_000, 30_000)
    column = {
        Axis.COLOCATED: problem.tables.colocated_ms,
        Axis.PREFILL: problem.tables.prefill_ms,
        Axis.DECODE: problem.tables.decode_ms,
    }[axis]
    per_time = tuple(-(budget // value) if n and value else 0 for n, value in enumerate(column))
    mode = Mode.COLOCATED if axis is Axis.COLOCATED else Mode.DISAGGREGATED
    expr = Linear(counts=_prices(rng, problem), tables=(Table(axis=axis, values=per_time),), scale=_scale(rng))
    return Rule(name=name, expr=expr, when=mode, soft=_soft(rng))


def _makespan_limit(rng: Random, problem: DecisionProblem, name: str) -> Rule:
    sign = rng.choice([1, 1, 1, -1])
    expr = Linear(
        constant=-sign * _some_makespan(rng, problem.tables), makespan=sign, scale=Fraction(rng.choice([1, 100]))
    )
    return Rule(name=name, expr=expr, when=_when(rng), soft=_soft(rng))


def _table_limit(rng: Random, problem: DecisionProblem, name: str) -> Rule:
    axis = rng.choice(list(Axis))
    expr = Linear(
        constant=rng.randint(-40, 0), makespan=rng.choice([0, 0, 1]), tables=(_random_table(rng, problem, axis),)
    )
    return Rule(name=name, expr=expr, when=_when(rng), soft=_soft(rng))


def _random_table(rng: Random, problem: DecisionProblem, axis: Axis) -> Table:
    length = len(problem.tables.colocated_ms)
    return Table(axis=axis, values=tuple(rng.randint(-30, 60) for _ in range(length)))


def _prices(rng: Random, problem: DecisionProblem) -> Counted:
    price = {zone: rng.randint(0, 5) for zone in Zone}
    return _count(problem, lambda g, r: price[g.zone] * (r is not Role.INACTIVE))


def _tiers(rng: Random, problem: DecisionProblem) -> tuple[Tier, ...]:
    tolerance = rng.choice([Fraction(0), Fraction(0), Fraction(1, 100), Fraction(1, 4)])
    weights = {"role_change": rng.randint(0, 4), "add": rng.randint(0, 3), "remove": rng.randint(0, 3)}
    churn = sorted((g.id, role, weights[kind]) for g, role, kind in changes_of(problem) if weights[kind])
    axis = rng.choice(list(AXIS_ROLE))
    pool: Sequence[Tier] = (
        Tier(
            name="makespan",
            terms=(Linear(makespan=rng.choice([1, 1, 3]), constant=rng.choice([0, -5])),),
            tolerance=tolerance,
        ),
        Tier(name="churn", terms=(Linear(counts=tuple(churn)),), tolerance=rng.choice([Fraction(0), Fraction(1, 2)])),
        Tier(
            name="spend", terms=(Linear(counts=_prices(rng, problem)),), tolerance=rng.choice([Fraction(0), tolerance])
        ),
        Tier(
            name="worst",
            terms=(
                Linear(makespan=rng.choice([0, 1]), counts=_prices(rng, problem)),
                Linear(constant=rng.randint(-20, 20), tables=(_random_table(rng, problem, axis),)),
            ),
            tolerance=tolerance,
        ),
    )
    if rng.random() < 0.5:
        return (pool[0], *rng.sample(pool[1:], rng.randint(0, 2)))
    return tuple(rng.sample(list(pool), rng.randint(0, 3)))
