"""What a keep says of the configuration that it turned down: the numbers given reproduce the outcome."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pearl.core.cluster import Role, Zone
from pearl.core.decision import Outcome, Reason, ReasonCode
from pearl.core.problem import Change, DecisionProblem
from pearl.core.situation import ChangeAge
from pearl.deciding.conditions import WORDS
from pearl.deciding.engine import Verdict, decide
from pearl.policy.load import load_policy
from pearl.policy.model import Policy
from pearl.solving.driver import solve_problem
from pearl.solving.evaluate import Builtin, evaluate, today
from pearl.solving.protocol import Capabilities, Limits, Solution, SolveStatus
from pearl.solving.registry import resolve
from tests.deciding.test_standing import droppers
from tests.deciding.worlds import POLICY, WORKLOAD, TablePredictor, situation, workers
from tests.solving.brute import assignments

TURNED_DOWN = {ReasonCode.HYSTERESIS, ReasonCode.COOLDOWN, ReasonCode.TIER, ReasonCode.CALIBRATION}
PLAIN = "{name: makespan, minimize: T}"
OBJECTIVES = {
    "makespan": PLAIN,
    "tolerant": "{name: makespan, minimize: T, tolerance: 6%}\n      - {name: size, minimize: N_C + N_P + N_D}",
    "size": "{name: size, minimize: N_C + N_P + N_D}\n      - {name: makespan, minimize: T, tolerance: 3%}",
    "weighed": "{name: value, minimize: T + 4s * (N_C + N_P + N_D)}",
}


def policies(tmp_path, semantics: str) -> dict[str, Policy]:
    found = {}
    for name, tiers in OBJECTIVES.items():
        if semantics == "charge" and name == "size":
            continue  # a charge needs a first tier that is a time
        path = tmp_path / f"{semantics}-{name}.yaml"
        text = POLICY.replace("SEMANTICS", semantics).replace("EXTRA", "").replace(PLAIN, tiers)
        path.write_text(text.replace("ratio: 2s", "ratio: 2s, resize: 1s"), encoding="utf-8")
        found[name] = load_policy(path)
    return found


def world(rng: Random):
    """Four workers in a random configuration, makespans near each other, and sometimes a change that cools down."""
    colocated = {n: rng.randint(80_000, 125_000) for n in range(1, 5)}
    pairs = {(p, d): rng.randint(80_000, 125_000) for p in range(1, 4) for d in range(1, 5 - p)}
    roles = rng.choice(
        [[Role.COLOCATED] * 4, [Role.COLOCATED] * 3 + [Role.INACTIVE], [Role.PREFILL] + [Role.DECODE] * 3]
    )
    pools = [workers(Zone.RESERVED, roles.count(role), role) for role in sorted(set(roles))]
    ages = {Change.MODE: ChangeAge(steps=rng.choice([1, 5]), seconds=100.0)} if rng.random() < 0.4 else {}
    error = rng.choice([None, None, 0.05])
    at = situation(*pools, changes=ages, calibration_error=error)
    return at, TablePredictor(colocated=colocated, pairs=pairs)


def turned_down(verdict: Verdict) -> Reason | None:
    (reason,) = [r for r in verdict.reasons if r.code in TURNED_DOWN] or [None]
    return reason


@pytest.mark.parametrize("semantics", ["veto", "gate", "charge"])
def test_what_is_said_of_a_configuration_turned_down_is_what_decided(tmp_path, semantics):
    solver, rng, seen = resolve("enumerate"), Random(7), set[ReasonCode]()
    rules = policies(tmp_path, semantics)
    for k in range(100):
        at, predictor = world(rng)
        policy = rules[list(rules)[k % len(rules)]]
        verdict = decide(at, WORKLOAD, policy, predictor=predictor, solver=solver)
        reason = turned_down(verdict)
        if reason is None:
            continue
        seen.add(reason.code)
        assert verdict.outcome is Outcome.KEEP
        assert verdict.rejected is not None
        assert reason.text.startswith(f"{verdict.rejected.counts.label()} turned down: ")
        CHECKS[reason.code](verdict, reason, semantics)
    assert seen >= {ReasonCode.HYSTERESIS, ReasonCode.COOLDOWN, ReasonCode.CALIBRATION}


def test_a_charge_that_a_tolerance_reaches_over_is_not_called_a_threshold_that_was_missed(tmp_path):
    """4C gains 6 s and is charged 1 s; staying is then within 6 % of it, and smaller."""
    predictor = TablePredictor(colocated={3: 100_000, 4: 94_000})
    at = situation(workers(Zone.RESERVED, 3, Role.COLOCATED), workers(Zone.RESERVED, 1, Role.INACTIVE))
    policy = policies(tmp_path, "charge")["tolerant"]
    verdict = decide(at, WORKLOAD, policy, predictor=predictor, solver=resolve("cpsat"))
    reason = turned_down(verdict)
    assert reason is not None
    assert (reason.code, reason.data["tier"]) == (ReasonCode.TIER, "size")
    assert (reason.data["tier_value"], reason.data["stay_value"]) == (4, 3)
    assert reason.text == (
        "4C turned down: worse in tier 2 'size': 4 against 3 (tier 1 'makespan': 95 s against 100 s, within the "
        "tolerance of 6 %); 'makespan' counts 1.0 s charged for the change"
    )
    check_tier(verdict, reason, "charge")


def test_a_keep_that_a_threshold_cannot_explain_says_how_much_longer_the_better_one_takes(tmp_path):
    """The smaller pool is best by the objective, and takes longer: no gain to hold against the threshold."""
    predictor = TablePredictor(colocated={2: 110_000, 3: 100_000})
    at = situation(workers(Zone.RESERVED, 3, Role.COLOCATED))
    verdict = decide(at, WORKLOAD, policies(tmp_path, "gate")["size"], predictor=predictor, solver=resolve("cpsat"))
    reason = turned_down(verdict)
    assert reason is not None
    assert reason.text == "2C turned down: it takes 10.0 s longer than staying, and a gain of 1.0 s is asked for"


def gains(verdict: Verdict) -> int:
    assert verdict.rejected is not None
    return verdict.posed.stay_ms - verdict.rejected.makespan_ms


def check_hysteresis(verdict: Verdict, reason: Reason, semantics: str) -> None:
    """Under gate and veto the gain is below what is asked for; under charge a tier decided by what it charges."""
    assert reason.data["gain_s"] == gains(verdict) / 1000
    if semantics != "charge":
        assert reason.data["gain_s"] < reason.data["asked_s"]
        return
    assert reason.data["charged_s"] > 0
    check_dropped(verdict, reason)
    uncharged = replace(verdict.problem.hurdle, charge=False, gate=False)
    check_would_win(replace(verdict, problem=replace(verdict.problem, hurdle=uncharged)))


def check_cooldown(verdict: Verdict, reason: Reason, semantics: str) -> None:
    assert reason.data["kinds"] == "mode"
    assert Change.MODE in verdict.rejected.changes
    assert verdict.posed.situation.changes[Change.MODE].steps < 2


def check_tier(verdict: Verdict, reason: Reason, semantics: str) -> None:
    assert semantics == "charge" or reason.data["charged_s"] == 0
    check_dropped(verdict, reason)


def check_calibration(verdict: Verdict, reason: Reason, semantics: str) -> None:
    assert reason.data["margin"] == gains(verdict) / verdict.posed.stay_ms
    assert reason.data["margin"] < reason.data["error"]


CHECKS = {
    ReasonCode.HYSTERESIS: check_hysteresis,
    ReasonCode.COOLDOWN: check_cooldown,
    ReasonCode.TIER: check_tier,
    ReasonCode.CALIBRATION: check_calibration,
}


def check_dropped(verdict: Verdict, reason: Reason) -> None:
    """The tier named is the one that drops the configuration, among all assignments."""
    problem = verdict.problem
    points = [p for p in (evaluate(problem, a) for a in assignments(problem)) if p.feasible]
    wanted = [p for p in points if p.counts == verdict.rejected.counts and p.changes == verdict.rejected.changes]
    dropped = droppers(problem, points)
    names = {None if (k := dropped[p.tier_values]) is None else problem.tiers[k].name for p in wanted}
    assert reason.data.get("tier") in names


def check_would_win(verdict: Verdict) -> None:
    """Without the charge the configuration is the answer."""
    found = solve_problem(verdict.problem, resolve("enumerate"))
    assert evaluate(verdict.problem, found.assignment).counts == verdict.rejected.counts


def test_a_switch_to_a_slower_configuration_names_the_tier_that_asks_for_it(tmp_path):
    """Two workers are within 6 % of three, and a resize meets no threshold."""
    path = tmp_path / "smaller.yaml"
    text = POLICY.replace("SEMANTICS", "gate").replace("EXTRA", "").replace(PLAIN, OBJECTIVES["tolerant"])
    path.write_text(text, encoding="utf-8")
    at = situation(workers(Zone.RESERVED, 3, Role.COLOCATED))
    predictor = TablePredictor(colocated={2: 103_000, 3: 100_000})
    verdict = decide(at, WORKLOAD, load_policy(path), predictor=predictor, solver=resolve("cpsat"))
    (reason,) = verdict.reasons
    assert reason.text == (
        "2C is best by the policy's tiers: 3.0 s on top of the 100.0 s of staying, which is worse in tier 2 'size': 3 "
        "against 2 (tier 1 'makespan': 100 s against 103 s, within the tolerance of 6 %)"
    )


class EndsAtToday:
    """Stub: the time limit passes when only today's configuration is known."""

    id = "today"
    capabilities = Capabilities(reads="problem")

    def library_version(self) -> str:
        return "0"

    def solve(self, problem: DecisionProblem, *, limits: Limits) -> Solution:
        assignment = today(problem)
        point = evaluate(problem, assignment)
        return Solution(
            status=SolveStatus.FEASIBLE,
            assignment=assignment,
            makespan_ms=point.makespan_ms,
            tier_values=point.tier_values,
        )


def test_a_keep_that_was_not_proved_does_not_say_that_nothing_is_better(tmp_path):
    path = tmp_path / "patient.yaml"
    text = POLICY.replace("SEMANTICS", "gate").replace("EXTRA", "")
    path.write_text(f"{text.rstrip()}\n  solver: {{on_limit: best_so_far}}\n", encoding="utf-8")
    at = situation(workers(Zone.RESERVED, 4, Role.COLOCATED))
    predictor = TablePredictor(colocated={4: 100_000}, pairs={(2, 2): 50_000})
    verdict = decide(at, WORKLOAD, load_policy(path), predictor=predictor, solver=EndsAtToday())
    assert verdict.outcome is Outcome.KEEP
    assert [reason.code for reason in verdict.reasons] == [ReasonCode.LIMIT_BEST_SO_FAR]


def test_every_code_and_condition_is_explained_in_words():
    page = (Path(__file__).parents[2] / "docs" / "decisions.md").read_text(encoding="utf-8")
    for name in (*ReasonCode, *Builtin):
        assert f"`{name}`" in page
    for name, words in WORDS.items():
        assert re.search(rf"\| `{name}` \| {re.escape(words)}", page)
    assert WORDS.keys() == set(Builtin)


def test_a_forced_change_says_what_the_condition_is(tmp_path):
    """Decode workers alone cannot serve."""
    lone = workers(Zone.RESERVED, 2, Role.DECODE)
    predictor = TablePredictor(colocated={2: 100_000}, pairs={(1, 1): 90_000})
    rules = policies(tmp_path, "gate")["makespan"]
    verdict = decide(situation(lone), WORKLOAD, rules, predictor=predictor, solver=resolve("enumerate"))
    (reason,) = [r for r in verdict.reasons if r.code is ReasonCode.FORCED]
    assert verdict.forced_by == ("one_mode", "reachable")
    assert all(f"{name} ({WORDS[name]})" in reason.text for name in verdict.forced_by)
    assert reason.text.endswith("0P2D would be left to serve")
