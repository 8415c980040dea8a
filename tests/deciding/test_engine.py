"""What the PD Decision Engine decides, and the word it has for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pearl.core.cluster import Mode, Role, Status, Zone
from pearl.core.decision import Outcome, ReasonCode
from pearl.core.plan import Return, Stop
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.scheduler import Tick, deliberate
from pearl.solving.protocol import Capabilities, Limits, Solution, SolveStatus
from pearl.solving.registry import resolve
from tests.deciding.worlds import TablePredictor, policy, situation, workers

FOUR = {1: 400_000, 2: 200_000, 3: 140_000, 4: 100_000}
EIGHT = {**FOUR, 5: 90_000, 6: 82_000, 7: 76_000, 8: 70_000}


def decided(at: Situation, tmp_path: Path, predictor: TablePredictor, **fields: object) -> Tick:
    rules = policy(tmp_path, **fields)  # type: ignore[arg-type]
    return deliberate(at, rules, predictor=predictor, solver=resolve("cpsat"))


def codes(tick: Tick) -> set[ReasonCode]:
    return {reason.code for reason in tick.decision.reasons}


RESERVED = workers(Zone.RESERVED, 4, Role.COLOCATED)


@pytest.mark.parametrize("semantics", ["gate", "veto", "charge"])
@pytest.mark.parametrize(("makespan_ms", "outcome"), [(91_999, Outcome.SWITCH), (92_001, Outcome.KEEP)])
def test_a_mode_change_must_gain_its_threshold(tmp_path, semantics, makespan_ms, outcome):
    predictor = TablePredictor(colocated=FOUR, pairs={(2, 2): makespan_ms})
    tick = decided(situation(RESERVED), tmp_path, predictor, semantics=semantics)
    assert tick.decision.outcome is outcome
    assert tick.decision.mode is (Mode.DISAGGREGATED if outcome is Outcome.SWITCH else Mode.COLOCATED)
    assert bool(tick.plan.steps) is (outcome is Outcome.SWITCH)
    if outcome is Outcome.KEEP and semantics != "charge":
        (reason,) = (r for r in tick.decision.reasons if r.code is ReasonCode.HYSTERESIS)
        assert reason.data["rejected"] == "2P2D"


def test_a_gate_lets_the_runner_up_compete_and_a_veto_does_not(tmp_path):
    disaggregated = workers(Zone.RESERVED, 5, Role.DECODE)[:3] + workers(Zone.RESERVED, 2, Role.PREFILL)
    predictor = TablePredictor(colocated={5: 95_000}, pairs={(2, 3): 100_000, (1, 4): 96_000})
    at = situation(disaggregated)
    gated = decided(at, tmp_path, predictor, semantics="gate")
    assert gated.decision.counts.label() == "1P4D"  # the colocated optimum gains 5 s of the 8 asked for
    vetoed = decided(at, tmp_path, predictor, semantics="veto")
    assert vetoed.decision.outcome is Outcome.KEEP
    assert ReasonCode.HYSTERESIS in codes(vetoed)


@pytest.mark.parametrize("semantics", ["gate", "veto"])
def test_a_cooldown_holds_a_mode_change_back(tmp_path, semantics):
    predictor = TablePredictor(colocated=FOUR, pairs={(2, 2): 50_000})
    cooling = situation(RESERVED, changes={Change.MODE: ChangeAge(steps=1, seconds=1e4)})
    tick = decided(cooling, tmp_path, predictor, semantics=semantics)
    assert tick.decision.outcome is Outcome.KEEP
    assert ReasonCode.COOLDOWN in codes(tick)
    over = situation(RESERVED, changes={Change.MODE: ChangeAge(steps=2, seconds=1e4)})
    assert decided(over, tmp_path, predictor, semantics=semantics).decision.outcome is Outcome.SWITCH


HARD_RULE = """
  constraints:
    - name: at_least_two_decode
      when: disaggregated
      require: N_D >= 2
    - name: no_colocation
      when: colocated
      require: N_C <= 0
"""


def test_a_forced_switch_ignores_cooldown_and_threshold_and_names_the_rule(tmp_path):
    predictor = TablePredictor(colocated=FOUR, pairs={(2, 2): 150_000})
    at = situation(RESERVED, changes={Change.MODE: ChangeAge(steps=0, seconds=0.0)})
    tick = decided(at, tmp_path, predictor, extra=HARD_RULE)
    assert tick.decision.outcome is Outcome.SWITCH
    assert tick.decision.forced_by == ("no_colocation",)
    assert ReasonCode.FORCED in codes(tick)


def test_infeasible_is_an_answer_of_its_own_and_moves_nothing(tmp_path):
    rule = "  constraints:\n    - name: nine\n      require: workers_needed <= N_C + N_P + N_D\n"
    extra = "  params: {workers_needed: {value: 9}}\n" + rule
    tick = decided(situation(RESERVED), tmp_path, TablePredictor(colocated=FOUR), extra=extra)
    assert tick.decision.outcome is Outcome.INFEASIBLE
    assert tick.plan.empty


class NeverAnswers:
    """Stub: a solver whose limit always passes first."""

    id = "never"
    capabilities = Capabilities(reads="problem")

    def library_version(self) -> str:
        return "0"

    def solve(self, problem: object, *, limits: Limits) -> Solution:
        return Solution(status=SolveStatus.LIMIT, detail="time limit")


def test_a_limit_without_an_answer_is_neither_infeasible_nor_zeros(tmp_path):
    tick = deliberate(
        situation(RESERVED), policy(tmp_path), predictor=TablePredictor(colocated=FOUR), solver=NeverAnswers()
    )
    assert tick.decision.outcome is Outcome.LIMIT
    assert tick.decision.counts.colocated == 4
    assert tick.plan.empty


def test_no_data_keeps_and_says_so(tmp_path):
    tick = decided(situation(RESERVED, workload=None), tmp_path, TablePredictor(colocated=FOUR))
    assert tick.decision.outcome is Outcome.KEEP
    assert codes(tick) == {ReasonCode.NO_DATA}
    assert tick.plan.empty


def test_no_optional_change_while_predictions_miss_by_more_than_it_gains(tmp_path):
    predictor = TablePredictor(colocated=FOUR, pairs={(2, 2): 80_000})
    wrong = decided(situation(RESERVED, calibration_error=0.3), tmp_path, predictor)
    assert wrong.decision.outcome is Outcome.KEEP
    assert ReasonCode.CALIBRATION in codes(wrong)
    right = decided(situation(RESERVED, calibration_error=0.1), tmp_path, predictor)
    assert right.decision.outcome is Outcome.SWITCH


OVERLAP = workers(Zone.OVERLAP, 4, Role.INACTIVE)


@pytest.mark.parametrize(("with_eight_ms", "borrows"), [(90_200, True), (90_201, False)])
def test_borrowing_must_save_what_it_costs(tmp_path, with_eight_ms, borrows):
    predictor = TablePredictor(colocated={**FOUR, 8: with_eight_ms})
    tick = decided(situation(RESERVED, OVERLAP), tmp_path, predictor)
    assert (tick.decision.counts.borrowed == 4) is borrows  # 100 s without; 6 s to activate, 3.8 s to return
    assert (ReasonCode.BORROW_GAIN in codes(tick)) is borrows
    assert (ReasonCode.BORROW_GATE in codes(tick)) is not borrows


def test_a_short_window_shrinks_what_borrowing_can_gain(tmp_path):
    predictor = TablePredictor(colocated={**FOUR, 8: 75_000})
    wide = decided(situation(RESERVED, OVERLAP, overlap_window_s=1000.0), tmp_path, predictor)
    assert wide.decision.counts.borrowed == 4
    narrow = decided(situation(RESERVED, OVERLAP, overlap_window_s=20.0), tmp_path, predictor)
    assert narrow.decision.counts.borrowed == 0  # 20 / (20 + 9.8) of 100 s is 67 s: 75 s come too late


def test_a_borrow_that_no_longer_pays_is_given_back(tmp_path):
    lent = workers(Zone.OVERLAP, 4, Role.COLOCATED)
    predictor = TablePredictor(colocated={**FOUR, 8: 99_000})
    tick = decided(situation(RESERVED, lent), tmp_path, predictor)
    assert tick.decision.counts.borrowed == 0
    assert "borrow_gate" in tick.decision.forced_by
    assert {type(s) for s in tick.plan.steps} >= {Return}


def test_training_takes_its_workers_back_whatever_else_is_decided(tmp_path):
    leaving = tuple(replace(w, must_leave=True) for w in workers(Zone.OVERLAP, 4, Role.COLOCATED))
    rule = "  constraints:\n    - name: nine\n      require: N_C >= 9\n"
    tick = decided(situation(RESERVED, leaving), tmp_path, TablePredictor(colocated=EIGHT), extra=rule)
    assert tick.decision.outcome is Outcome.INFEASIBLE
    assert sum(isinstance(s, Return) for s in tick.plan.steps) == 4
    assert ReasonCode.MANDATORY_RETURN in codes(tick)


def test_reclaimed_workers_stop_and_the_survivors_go_on(tmp_path):
    spot = workers(Zone.PREEMPTIBLE, 2, Role.COLOCATED)
    going = tuple(replace(w, must_leave=True, leave_within_s=30.0) for w in spot)
    tick = decided(situation(RESERVED, going), tmp_path, TablePredictor(colocated=EIGHT))
    assert tick.decision.outcome is Outcome.KEEP
    assert tick.decision.counts.label() == "4C"
    assert sum(isinstance(s, Stop) for s in tick.plan.steps) == 2
    assert ReasonCode.RECLAIMED in codes(tick)


def test_workers_in_transition_stay_as_they_are(tmp_path):
    moving = tuple(replace(w, status=Status.TRANSITIONING) for w in RESERVED[:1])
    predictor = TablePredictor(colocated=FOUR, pairs={(2, 2): 10_000})
    tick = decided(situation(moving, RESERVED[1:]), tmp_path, predictor)
    assert tick.decision.outcome is Outcome.KEEP
    assert tick.decision.counts.label() == "4C"


def test_a_pool_that_must_wait_for_a_transition_is_kept_not_called_infeasible(tmp_path):
    mixed = (
        replace(RESERVED[0], status=Status.TRANSITIONING),
        replace(RESERVED[1], status=Status.TRANSITIONING, role=Role.DECODE),
    )
    tick = decided(situation(mixed, RESERVED[2:]), tmp_path, TablePredictor(colocated=FOUR, pairs={(1, 1): 1_000}))
    assert tick.decision.outcome is Outcome.KEEP
    assert codes(tick) == {ReasonCode.IN_TRANSITION}


def test_a_new_pool_with_nothing_serving_is_brought_up(tmp_path):
    idle = workers(Zone.RESERVED, 4, Role.INACTIVE)
    tick = decided(situation(idle), tmp_path, TablePredictor(colocated=FOUR))
    assert tick.decision.outcome is Outcome.SWITCH
    assert tick.decision.counts.label() == "4C"
    assert tick.decision.forced_by


def test_deciding_again_on_the_decision_changes_nothing(tmp_path):
    from pearl.planning import apply_plan

    predictor = TablePredictor(colocated=EIGHT, pairs={(3, 5): 50_000, (2, 6): 52_000})
    at = situation(workers(Zone.RESERVED, 8, Role.COLOCATED))
    first = decided(at, tmp_path, predictor)
    assert first.decision.counts.label() == "3P5D"
    again = decided(replace(at, state=apply_plan(at.state, first.plan)), tmp_path, predictor)
    assert again.decision.outcome is Outcome.KEEP
    assert again.plan.empty
