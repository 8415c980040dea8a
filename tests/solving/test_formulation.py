from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.cluster import Counts, Mode, Role
from pearl.core.problem import (
    Axis,
    Change,
    DecisionProblem,
    Hurdle,
    Linear,
    MakespanTables,
    PairRung,
    Rule,
    Soft,
    Table,
    Tier,
)
from pearl.core.source import Span
from pearl.solvers.cpsat import CpSat
from pearl.solvers.enumerate import Enumerate
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import evaluate
from pearl.solving.formulation import assignment_of, formulate
from pearl.solving.ir import Model, Objective, Row, canonical
from pearl.solving.protocol import Limits, SolveStatus
from pearl.solving.random_problems import random_problem
from pearl.solving.scope import Window
from pearl.solving.window import WindowSearch

from .brute import assignments
from .problems import curve, pool, three_and_one

SPAN = Span(file="policy.yaml", line=7)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3))))
def test_canonical_terms_add_up(terms: list[tuple[int, int]]) -> None:
    found = canonical(terms)
    assert [index for index, _ in found] == sorted({index for index, _ in found})
    assert all(coefficient for _, coefficient in found)
    values = [3, 1, 4, 1, 5, 9]
    assert sum(c * values[k] for k, c in found) == sum(c * values[k] for k, c in terms)


@pytest.mark.parametrize("terms", [((0, 1), (0, 1)), ((1, 1), (0, 1)), ((0, 0),)])
def test_rows_and_objectives_refuse_what_is_not_canonical(terms: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="not canonical"):
        Row(name="r", terms=terms, high=1)
    with pytest.raises(ValueError, match="not canonical"):
        Objective(name="o", terms=terms)


@pytest.mark.parametrize("seed", range(8))
def test_model_values_an_assignment_as_evaluation_does(seed: int) -> None:
    """With y fixed, the least value of each objective is the tier's value; infeasible where evaluation says so."""
    rng = Random(seed)
    for _ in range(6):
        problem = random_problem(rng, max_workers=5)
        model = formulate(problem)
        for assignment in rng.sample(choices := list(assignments(problem)), min(4, len(choices))):
            judged = evaluate(problem, assignment)
            fixed = _fix(problem, model, assignment)
            for k, objective in enumerate(model.objectives):
                answer = CpSat().minimize(fixed, objective, limits=Limits())
                if not judged.feasible:
                    assert answer.status is SolveStatus.INFEASIBLE, (judged.broken, problem)
                    break
                assert answer.point is not None, (assignment, problem)
                value = objective.constant + sum(c * answer.point[i] for i, c in objective.terms)
                assert value == judged.tier_values[k], (objective.name, problem)
                assert assignment_of(problem, answer.point) == assignment


def _fix(problem: DecisionProblem, model: Model, assignment: dict[tuple[str, Role], int]) -> Model:
    keys = [(group.id, role) for group in problem.groups for role in group.targets]
    numbers = [assignment.get(key, 0) for key in keys]
    fixed = [replace(v, low=n, high=n) for v, n in zip(model.variables, numbers, strict=False)]
    return replace(model, variables=(*fixed, *model.variables[len(fixed) :]))


def test_size_does_not_grow_with_the_workers() -> None:
    small, large = pool(16), pool(4096)
    assert len(formulate(small).rows) == len(formulate(large).rows)
    search = WindowSearch.of(large)
    first = formulate(large, search.window(search.highs_ms[0]))
    assert len(first.variables) <= 230
    assert len(first.rows) <= 80


def test_ladder_leaves_out_counts_that_change_nothing() -> None:
    flat = (10**9, 9_000, 9_000, 4_000, 4_000)
    problem = replace(
        three_and_one(),
        tables=MakespanTables(colocated_ms=curve(4, 20_000), prefill_ms=flat, decode_ms=curve(4, 6_000)),
    )
    names = {variable.name for variable in formulate(problem).variables}
    assert {name for name in names if name.startswith("prefill")} == {"prefill>=1", "prefill>=3"}


def test_table_that_grows_is_read_at_the_exact_count() -> None:
    table = Table(axis=Axis.PREFILL, values=(0, 1, 2, 3, 4))
    worst = Tier(name="worst", terms=(Linear(tables=(table,)), Linear(makespan=1)))
    names = {variable.name for variable in formulate(replace(three_and_one(), tiers=(worst,))).variables}
    assert {"prefill=1", "prefill=2", "prefill=3", "decode>=1", "max[worst]"} <= names


def test_every_row_of_a_rule_carries_its_name_and_place() -> None:
    rules = (
        Rule(name="kv", expr=Linear(constant=2, counts=_each(Role.DECODE, -1)), when=Mode.DISAGGREGATED, span=SPAN),
        Rule(
            name="prefer", expr=Linear(constant=1, counts=(("d", Role.DECODE, -2),)), soft=Soft(penalty_ms=5), span=SPAN
        ),
    )
    rows = formulate(replace(three_and_one(), rules=rules)).rows
    assert {row.rule for row in rows} == {"", "kv", "prefer"}
    assert all((row.span == SPAN) is bool(row.rule) for row in rows)


def test_rule_on_one_count_costs_a_row_and_no_rungs() -> None:
    # Demand grows with the prefill workers: N_P·5 >= demand(N_P) holds from 2 on.
    demand = Table(axis=Axis.PREFILL, values=(0, 8, 9, 10, 11))
    rule = Rule(name="capacity", expr=Linear(counts=_each(Role.PREFILL, -5), tables=(demand,)), when=Mode.DISAGGREGATED)
    model = formulate(replace(three_and_one(), rules=(rule,)))
    assert "prefill>=1" in {variable.name for variable in model.variables}
    row = next(row for row in model.rows if row.rule == "capacity")
    named = {model.variables[k].name: c for k, c in row.terms}
    assert (named, row.high) == ({"N[prefill]": -1, "colocated": -2}, -2)


def _each(role: Role, coefficient: int) -> tuple[tuple[str, Role, int], ...]:
    return (("d", role, coefficient), ("p", role, coefficient))


def test_mode_that_cannot_pay_its_threshold_has_no_rungs() -> None:
    # Colocated takes 1000 + 20000/4 = 6000 at best; from 7000, a threshold of 1001 bars it.
    def rungs(mode_ms: int) -> int:
        problem = replace(three_and_one(), hurdle=Hurdle(stay_ms=7_000, mode_ms=mode_ms))
        return sum(variable.name.startswith("colocated>=") for variable in formulate(problem).variables)

    assert rungs(1_000) == 4
    assert rungs(1_001) == 0
    forbidden = Hurdle(stay_ms=7_000, gate=False, forbidden=frozenset({Change.MODE}))
    model = formulate(replace(three_and_one(), hurdle=forbidden))
    assert not any(variable.name.startswith("colocated>=") for variable in model.variables)


def test_dominated_pairs_are_left_out_and_window_drops_slow_rungs() -> None:
    pairs = (
        PairRung(prefill=1, decode=1, makespan_ms=9_000),
        PairRung(prefill=2, decode=1, makespan_ms=9_000),
        PairRung(prefill=2, decode=2, makespan_ms=6_000),
    )
    problem = replace(three_and_one(), modes=(Mode.DISAGGREGATED,), tables=replace(three_and_one().tables, pairs=pairs))

    def chosen(window: Window | None) -> set[str]:
        return {v.name for v in formulate(problem, window).variables if v.name.startswith("pair")}

    assert chosen(None) == {"pair=1P1D", "pair=2P2D"}
    assert chosen(Window(low_ms=6_000, high_ms=8_000)) == {"pair=2P2D"}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_window_low_end_is_a_bound(seed: int) -> None:
    problem = random_problem(Random(seed), max_workers=4)
    low_ms = WindowSearch.of(problem).low_ms
    judged = (evaluate(problem, assignment) for assignment in assignments(problem))
    assert all(found.makespan_ms >= low_ms for found in judged if found.feasible)


def test_excluded_counts_leave_the_next_best() -> None:
    problem = replace(three_and_one(), modes=(Mode.DISAGGREGATED,), excluded=(Counts(prefill=2, decode=2),))
    for solver in (CpSat(), Enumerate()):
        found = solve_problem(problem, solver)
        assert found.assignment is not None
        counts = evaluate(problem, found.assignment).counts
        assert (counts.prefill, counts.decode, found.makespan_ms) == (3, 1, 7_000)
