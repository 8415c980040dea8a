"""Alternatives, why-not, diagnosis and sensitivity: every statement is checked against a decision made again."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pearl
from pearl.api import Result
from pearl.core.cluster import Counts, Role, Zone
from pearl.deciding.alternatives import alternatives, parse_counts, why_not
from pearl.deciding.diagnosis import diagnose, minimal_conflict
from pearl.errors import UsageError
from pearl.policy.load import load_policy
from pearl.scheduler import deliberate
from pearl.solving.driver import solve_problem
from pearl.solving.protocol import Limits, SolveStatus
from pearl.solving.registry import resolve
from tests.deciding.worlds import POLICY, TablePredictor, policy, situation, workers

LIMITS = Limits(time_s=10.0)
RESERVED = workers(Zone.RESERVED, 4, Role.COLOCATED)
PAIRS = {(1, 3): 95_000, (2, 2): 60_000, (3, 1): 70_000}
FOUR = {1: 400_000, 2: 200_000, 3: 140_000, 4: 100_000}


def verdict_on(tmp_path, extra: str = "", semantics: str = "gate", pairs=PAIRS, **fields):
    at = situation(fields.pop("pool", RESERVED), **fields)
    tick = deliberate(
        at,
        policy(tmp_path, extra=extra, semantics=semantics),
        predictor=TablePredictor(colocated=FOUR, pairs=pairs),
        solver=resolve("cpsat"),
    )
    assert tick.verdict is not None
    return tick.verdict


def test_alternatives_come_best_first_and_never_twice(tmp_path):
    verdict = verdict_on(tmp_path)
    assert verdict.chosen.counts.label() == "2P2D"
    found = alternatives(verdict, resolve("cpsat"), LIMITS, number=4)
    assert [a.counts.label() for a in found] == ["3P1D", "1P3D", "4C", "3C"]
    assert [a.delta_s for a in found] == [10.0, 35.0, 40.0, 80.0]
    assert found[0].blocks == ()
    assert [b.name for b in found[1].blocks] == ["hysteresis"]
    assert found[1].blocks[0].amount == pytest.approx(3.0)  # gains 5 of the 8 seconds asked for


def test_there_are_no_more_alternatives_than_configurations(tmp_path):
    found = alternatives(verdict_on(tmp_path), resolve("cpsat"), LIMITS, number=50)
    assert len(found) == len(FOUR) + len(PAIRS) - 1


CHURN = """
  constraints:
    - name: limit_churn
      require: role_changes <= 1
    - name: much_prefill
      when: disaggregated
      require: N_P >= 2
"""


def test_why_not_names_the_rule_its_line_and_the_amount(tmp_path):
    verdict = verdict_on(tmp_path, extra=CHURN)
    blocked = why_not(verdict, parse_counts("2P2D"), resolve("cpsat"), LIMITS)
    (block,) = blocked.blocks
    assert (block.name, block.amount) == ("limit_churn", 3.0)
    assert block.span is not None
    assert block.span.line == 13
    assert blocked.makespan_s == 60.0
    assert blocked.role_changes == 4


def valued(tmp_path):
    """A verdict by makespan and pool size in one tier: the fastest configuration does not win."""
    path = tmp_path / "valued.yaml"
    text = POLICY.replace("SEMANTICS", "gate").replace("EXTRA", "")
    tier = "{name: value, minimize: T + 30s * (N_C + N_P + N_D)}"
    path.write_text(text.replace("{name: makespan, minimize: T}", tier), encoding="utf-8")
    predictor = TablePredictor(colocated=FOUR, pairs={(1, 1): 85_000, (2, 2): 60_000})
    tick = deliberate(situation(RESERVED), load_policy(path), predictor=predictor, solver=resolve("cpsat"))
    assert tick.verdict is not None
    return tick.verdict


def test_why_not_names_the_tier_in_which_an_allowed_configuration_lost(tmp_path):
    verdict = valued(tmp_path)
    assert verdict.chosen.counts.label() == "1P1D"
    faster = why_not(verdict, parse_counts("2P2D"), resolve("cpsat"), LIMITS)
    assert (faster.blocks, faster.delta_s) == ((), -25.0)
    assert faster.loss is not None
    assert faster.loss.text() == "worse in tier 1 'value': 180 s against 145 s"
    assert [(t.name, t.value, t.against, t.unit) for t in faster.tiers] == [
        ("value", 180.0, 145.0, "s"),
        ("churn", 12.0, 8.0, ""),
    ]
    assert faster.lost_to == verdict.chosen.counts
    others = alternatives(verdict, resolve("cpsat"), LIMITS, number=3)
    assert [other.loss and other.loss.tier.name for other in others] == ["value"] * 3


def test_under_charge_a_threshold_is_a_price_and_not_a_block(tmp_path):
    verdict = verdict_on(tmp_path, semantics="charge")
    slower = why_not(verdict, parse_counts("1P3D"), resolve("cpsat"), LIMITS)
    assert slower.blocks == ()
    assert slower.charged_s == 8.0
    assert slower.loss is not None
    assert slower.loss.text() == "worse in tier 1 'makespan': 103 s against 68 s"


def test_under_veto_only_the_answer_itself_meets_the_threshold(tmp_path):
    tables = {(2, 2): 95_000, (1, 3): 96_000}
    verdict = verdict_on(tmp_path, semantics="veto", pairs=tables)
    assert verdict.chosen.counts.label() == "4C"
    refused = why_not(verdict, parse_counts("2P2D"), resolve("cpsat"), LIMITS)
    assert [(b.name, b.amount) for b in refused.blocks] == [("hysteresis", pytest.approx(3.0))]
    second = why_not(verdict, parse_counts("1P3D"), resolve("cpsat"), LIMITS)
    assert second.blocks == ()
    assert second.loss is not None
    assert second.loss.tier.name == "makespan"
    assert second.lost_to is not None
    assert second.lost_to.label() == "2P2D"


@pytest.mark.parametrize(
    ("change", "amount", "said"),
    [
        (("enabled: true", "enabled: false"), 2, "it takes 2 overlap workers, and the policy does not borrow now"),
        (("enabled: true", "enabled: true, max_workers: 1"), 1, "it takes 2 overlap workers, and the policy lends at"),
    ],
)
def test_why_not_names_borrowing_where_only_that_would_give_the_workers(tmp_path, change, amount, said):
    policy(tmp_path)
    path = tmp_path / "test.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    at = situation(RESERVED, workers(Zone.OVERLAP, 4, Role.INACTIVE))
    predictor = TablePredictor(colocated={**FOUR, 6: 50_000})
    tick = deliberate(at, load_policy(path), predictor=predictor, solver=resolve("cpsat"))
    assert tick.verdict is not None
    (block,) = why_not(tick.verdict, parse_counts("6C"), resolve("cpsat"), LIMITS).blocks
    assert (block.name, block.amount, block.unit) == ("borrow_limit", amount, "workers")
    assert block.text.startswith(said)


def test_why_not_names_a_mode_that_the_policy_does_not_allow(tmp_path):
    policy(tmp_path)
    path = tmp_path / "test.yaml"
    text = path.read_text(encoding="utf-8").replace("modes: [colocated, disaggregated]", "modes: [colocated]")
    path.write_text(text, encoding="utf-8")
    predictor = TablePredictor(colocated=FOUR, pairs=PAIRS)
    tick = deliberate(situation(RESERVED), load_policy(path), predictor=predictor, solver=resolve("cpsat"))
    assert tick.verdict is not None
    (block,) = why_not(tick.verdict, parse_counts("2P2D"), resolve("cpsat"), LIMITS).blocks
    assert (block.name, block.text) == ("allowed_mode", "the policy does not allow the mode disaggregated")


def test_why_not_says_when_there_are_too_few_workers(tmp_path):
    blocked = why_not(verdict_on(tmp_path), parse_counts("5P3D"), resolve("cpsat"), LIMITS)
    assert [(b.name, b.amount) for b in blocked.blocks] == [("workers", 4)]


def test_why_not_of_the_chosen_is_that_it_is_allowed(tmp_path):
    allowed = why_not(verdict_on(tmp_path), parse_counts("2p2d"), resolve("cpsat"), LIMITS)
    assert (allowed.blocks, allowed.delta_s, allowed.delta_changes) == ((), 0.0, 0)


@pytest.mark.parametrize("text", ["", "5", "P3", "0C", "3P", "3P0D", "-1C", "5P3D1", "C"])
def test_a_name_of_no_configuration_is_refused(text):
    with pytest.raises(UsageError, match="expected"):
        parse_counts(text)


def test_names_of_configurations_are_read_back():
    for counts in (Counts(colocated=12), Counts(prefill=5, decode=3)):
        assert parse_counts(counts.label()) == counts


CONFLICT = """
  constraints:
    - name: many
      require: N_C + N_P + N_D >= 7
    - name: few
      require: N_C + N_P + N_D <= 3
    - name: harmless
      require: N_P <= 3
"""


def test_a_conflict_is_minimal_and_each_way_out_was_tried(tmp_path):
    solver = resolve("cpsat")
    verdict = verdict_on(tmp_path, extra=CONFLICT)
    found = diagnose(verdict, solver, LIMITS)
    names = {rule.name for rule in found.conflict}
    bare = replace(verdict.problem, tiers=(), hurdle=None)

    def feasible(kept: set[str]) -> bool:
        rules = tuple(rule for rule in verdict.problem.rules if rule.name in kept)
        return solve_problem(replace(bare, rules=rules), solver, limits=LIMITS).status is SolveStatus.OPTIMAL

    assert names
    assert not feasible(names)
    assert all(feasible(names - {name}) for name in names)
    assert [c.relaxations[0].rule for c in found.corrections] == ["many"]
    assert found.corrections[0].relaxations[0].amount == 4.0
    assert found.corrections[0].counts.serving == 3


PHYSICAL = """
  constraints:
    - name: memory
      relaxable: false
      require: B <= 5 * (N_C + N_P + N_D)
"""


def test_a_physical_rule_is_never_offered_and_the_world_is_changed_instead(tmp_path):
    verdict = verdict_on(tmp_path, extra=PHYSICAL)
    predictor = TablePredictor(colocated={n: 400_000 // n for n in range(1, 65)})
    verdict = replace(verdict, posed=replace(verdict.posed, predictor=predictor))
    found = diagnose(verdict, resolve("cpsat"), LIMITS)
    assert [rule.name for rule in found.conflict] == ["memory"]
    assert found.corrections == ()
    assert [(fix.kind, fix.amount) for fix in found.resources] == [("add_workers", 3), ("trajectories", 20)]


def test_a_feasible_problem_has_no_conflict(tmp_path):
    assert minimal_conflict(verdict_on(tmp_path).problem, resolve("cpsat"), LIMITS) == ()


@pytest.fixture(scope="module")
def solved() -> Result:
    return pearl.solve("small-4gpu", predictor="bubble")


@pytest.mark.slow
def test_sensitivity_flips_where_it_says_and_not_before(solved):
    flips = {flip.number: flip for flip in solved.sensitivity()}
    assert "workload.output_tokens" in flips
    assert all(flip.error is None or abs(flip.error) <= 0.5 for flip in flips.values())
    sized = [flip for flip in flips.values() if flip.regret is not None]
    assert all(flip.regret >= -0.2 and flip.to is not None for flip in sized)
