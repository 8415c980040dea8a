from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pearl.core.cluster import Counts, Mode, Role
from pearl.core.problem import Axis, BorrowTerms, Change, Hurdle, Linear, Rule, Soft, Table, Tier
from pearl.solving.check import check_problem
from pearl.solving.evaluate import Builtin, evaluate, today
from pearl.solving.tiers import held_bound, priced_tiers

from .problems import MAKESPAN, group, three_and_one, with_idle_overlap

TWO_TWO = {("p", Role.PREFILL): 2, ("p", Role.DECODE): 1, ("d", Role.DECODE): 1}
STAY = {("p", Role.PREFILL): 3, ("d", Role.DECODE): 1}
COLOCATED = {("p", Role.COLOCATED): 3, ("d", Role.COLOCATED): 1}


def test_ratio_change_is_counted_and_timed() -> None:
    found = evaluate(three_and_one(), TWO_TWO)
    assert found.feasible
    assert found.counts == Counts(prefill=2, decode=2)
    assert (found.makespan_ms, found.role_changes, found.adds, found.removes) == (4_000, 1, 0, 0)
    assert found.changes == {Change.RATIO}
    assert found.tier_values == (4_000, 2)  # a role change weighs 2 in `fewest_changes`


def test_staying_changes_nothing() -> None:
    problem = three_and_one()
    assert today(problem) == STAY
    found = evaluate(problem, STAY)
    assert not found.changes
    assert found.tier_values == (7_000, 0)


def test_mode_change_is_no_ratio_change() -> None:
    found = evaluate(three_and_one(), COLOCATED)
    assert found.changes == {Change.MODE}
    assert found.role_changes == 4


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ({("p", Role.PREFILL): 3}, "0 of 1 workers of 'd' are placed"),
        ({**STAY, ("x", Role.DECODE): 1}, "unknown group 'x'"),
        ({("p", Role.PREFILL): 4, ("p", Role.DECODE): -1, ("d", Role.DECODE): 1}, "-1 workers of 'p' in role decode"),
    ],
)
def test_malformed_assignments_name_the_fault(assignment: dict[tuple[str, Role], int], fault: str) -> None:
    found = evaluate(three_and_one(), assignment)
    assert fault in found.faults
    assert not found.feasible


def test_target_not_allowed_is_a_fault() -> None:
    problem = replace(
        three_and_one(), groups=(group("p", Role.PREFILL, 3, targets=(Role.PREFILL,)), group("d", Role.DECODE, 1))
    )
    assert "'p' may not take role decode" in evaluate(problem, TWO_TWO).faults


@pytest.mark.parametrize(
    ("assignment", "name"),
    [
        ({("p", Role.INACTIVE): 3, ("d", Role.INACTIVE): 1}, Builtin.ONE_MODE),
        ({("p", Role.PREFILL): 3, ("d", Role.PREFILL): 1}, Builtin.ONE_MODE),
        ({("p", Role.COLOCATED): 3, ("d", Role.DECODE): 1}, Builtin.ONE_MODE),
    ],
)
def test_pool_runs_exactly_one_mode(assignment: dict[tuple[str, Role], int], name: str) -> None:
    assert name in dict(evaluate(three_and_one(), assignment).broken)


def test_mode_not_allowed_and_fixed_counts() -> None:
    problem = replace(three_and_one(), modes=(Mode.DISAGGREGATED,), fixed=Counts(prefill=2, decode=2))
    assert dict(evaluate(problem, COLOCATED).broken) == {Builtin.ALLOWED_MODE: 1, Builtin.FIXED_COUNTS: 8}
    assert evaluate(problem, TWO_TWO).feasible


@pytest.mark.parametrize(("ratio_ms", "excess"), [(3_000, 0), (3_001, 1)])
def test_gate_admits_exactly_the_threshold(ratio_ms: int, excess: int) -> None:
    problem = replace(three_and_one(), hurdle=Hurdle(stay_ms=7_000, ratio_ms=ratio_ms))
    assert dict(evaluate(problem, TWO_TWO).broken).get(Builtin.HYSTERESIS, 0) == excess
    assert evaluate(problem, STAY).feasible


def test_charge_prices_the_first_tier_with_t() -> None:
    hurdle = Hurdle(stay_ms=7_000, ratio_ms=500, gate=False, charge=True)
    problem = replace(three_and_one(), hurdle=hurdle, tiers=(Tier(name="double", terms=(Linear(makespan=2),)),))
    assert evaluate(problem, TWO_TWO).tier_values == (2 * 4_000 + 2 * 500, 2)


def test_pure_resize_passes_ungated_and_adds_nothing() -> None:
    problem = with_idle_overlap(three_and_one(), 1, BorrowTerms(max_workers=1))
    add = {**STAY, ("o", Role.DECODE): 1}
    ungated = replace(problem, hurdle=Hurdle(stay_ms=4_000, ratio_ms=100))
    assert evaluate(ungated, add).changes == {Change.RESIZE}
    assert evaluate(ungated, add).feasible
    gated = replace(problem, hurdle=Hurdle(stay_ms=4_000, ratio_ms=100, resize_ms=1))
    assert dict(evaluate(gated, add).broken) == {Builtin.HYSTERESIS: 1}
    both = {("p", Role.PREFILL): 2, ("p", Role.DECODE): 1, ("d", Role.DECODE): 1, ("o", Role.PREFILL): 1}
    assert evaluate(ungated, both).changes == {Change.RATIO, Change.RESIZE}
    assert dict(evaluate(ungated, both).broken) == {Builtin.HYSTERESIS: 100}


def test_borrow_limit_and_gate() -> None:
    problem = with_idle_overlap(three_and_one(), 2, BorrowTerms(max_workers=1, gate_ms=3_999))
    one = {**STAY, ("o", Role.DECODE): 1, ("o", Role.INACTIVE): 1}
    two = {**STAY, ("o", Role.DECODE): 2}
    assert dict(evaluate(problem, one).broken) == {Builtin.BORROW_GATE: 1}
    assert dict(evaluate(problem, two).broken) == {Builtin.BORROW_LIMIT: 1}
    assert evaluate(problem, {**STAY, ("o", Role.INACTIVE): 2}).feasible


def test_cooldown_forbids_the_kind_alone() -> None:
    problem = replace(three_and_one(), hurdle=Hurdle(stay_ms=10**9, gate=False, forbidden=frozenset({Change.RATIO})))
    assert dict(evaluate(problem, TWO_TWO).broken) == {Builtin.COOLDOWN: 1}
    assert evaluate(problem, COLOCATED).feasible


def test_soft_rule_rounds_up_whole_units_and_is_priced() -> None:
    # Broken by 5 integers at scale 2: 2.5 units, so 3 violations.
    rule = Rule(name="soft", expr=Linear(constant=5, scale=Fraction(2)), soft=Soft(penalty_ms=10, max_violation=3))
    found = evaluate(replace(three_and_one(), rules=(rule,)), STAY)
    assert (found.violations, found.penalty_ms, found.tier_values) == ((3,), 30, (7_030, 0))
    tight = replace(rule, soft=Soft(penalty_ms=10, max_violation=2))
    assert dict(evaluate(replace(three_and_one(), rules=(tight,)), STAY).broken) == {"soft": 1}


def test_rule_reads_its_table_and_is_off_in_the_other_mode() -> None:
    table = Table(axis=Axis.DECODE, values=(99, 7, 1, 0, 0))
    rule = Rule(name="t", expr=Linear(constant=-5, tables=(table,)), when=Mode.DISAGGREGATED)
    problem = replace(three_and_one(), rules=(rule,))
    assert evaluate(problem, STAY).rule_values == (2,)
    assert evaluate(problem, TWO_TWO).rule_values == (-4,)
    assert evaluate(problem, COLOCATED).rule_values == (None,)
    always = replace(problem, rules=(replace(rule, when=None),))
    assert evaluate(always, COLOCATED).rule_values == (94,)  # entry 0 while the other mode runs


def test_penalties_come_first_where_no_tier_reads_t() -> None:
    rule = Rule(name="soft", expr=Linear(constant=1), soft=Soft(penalty_ms=10))
    problem = replace(three_and_one(), tiers=(), rules=(rule,))
    assert [tier.tier.name for tier in priced_tiers(problem)] == ["penalties", "fewest_changes"]
    assert evaluate(problem, TWO_TWO).tier_values == (10, 2)


def test_fewest_changes_is_left_out_where_a_tier_prices_every_change() -> None:
    problem = three_and_one()
    counts = priced_tiers(problem)[-1].tier.terms[0].counts
    churn = Tier(name="churn", terms=(Linear(counts=tuple((g, r, 3 * c) for g, r, c in counts)),))
    named = replace(problem, tiers=(MAKESPAN, churn))
    assert [tier.tier.name for tier in priced_tiers(named)] == ["makespan", "churn"]


@pytest.mark.parametrize(("optimum", "ppb", "bound"), [(999, 10**7, 1_008), (-100, 5 * 10**8, -50), (0, 10**9, 0)])
def test_held_bound_rounds_down(optimum: int, ppb: int, bound: int) -> None:
    assert held_bound(optimum, ppb) == bound


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiers": (Tier(name="slow", terms=(Linear(makespan=-1),)),)}, "'slow' maximises the makespan"),
        ({"hurdle": Hurdle(stay_ms=1, mode_ms=-1)}, "threshold is negative"),
        ({"rules": (Rule(name="r", expr=Linear(counts=(("nobody", Role.DECODE, 1),))),)}, "unknown groups nobody"),
        ({"rules": (Rule(name="r", expr=Linear(), soft=Soft(penalty_ms=-1)),)}, "negative penalty"),
        ({"rules": (Rule(name="r", expr=Linear(tables=(Table(axis=Axis.DECODE, values=(0,)),))),)}, "covers 0 workers"),
        ({"groups": (group("p", Role.PREFILL, 9),)}, "the prefill makespans cover 4 workers, 9 may take the role"),
    ],
)
def test_problems_without_meaning_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_problem(replace(three_and_one(), **change))  # type: ignore[arg-type]
