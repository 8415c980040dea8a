"""What the language accepts and what it refuses, each refusal at its column with a next move."""

from __future__ import annotations

import pytest

from pearl.core.cluster import Mode
from pearl.core.facts import HysteresisSemantics, OnLimit
from pearl.errors import PolicyError
from tests.policy.samples import loaded, rule

ACCEPTED = [
    "N_P <= 3",
    "N_P * prefill_rate >= demand_rate",
    "N_P == 2 * N_D",
    "max(N_P, N_D) <= 4",
    "4 >= max(N_P, max(N_D, N_C))",
    "min(N_P, N_D) >= 1",
    "1 <= min(N_P, N_D)",
    "role_changes + adds <= 25% * workers and removes <= 3",
    "T <= 10min",
    "T_prefill + 3s <= max(20s, 5% * T_stay)",
    "0 <= T_stay - T",
    "count(role=decode, zone=preemptible, node='node-1') + count() <= 9",
    "price['reserved'] * N_P <= 14 usd",
    "2 / (T_prefill * 3) <= 1 / 1 s",
    "exposure(role=decode) <= 0.5",
    "abs(3 - 5) * N_P <= (4 if job_priority >= 3 else 5)",
    "N_P - 3 <= 0 and (N_D <= 2 and N_C <= 1)",
    "B * K_seq <= workers * H_max",
]
REFUSED = [
    ("N_P * N_D <= 3", 5, "not linear", "fix one factor"),
    ("price['reserved'] * N_P * T <= 14 usd * 1 s", 25, "not linear", "T_prefill and T_decode"),
    ("3 / T >= 1 / 1 s", 3, "not linear", "T_prefill"),
    ("3 / N_P <= 1", 3, "not linear", "multiply both sides"),
    ("1 / (T_prefill + T_decode) <= 1 / 1 s", 3, "not linear", "table"),
    ("T >= 5s", 1, "slower", "bounded from above"),
    ("-2 * T + 1s <= 0", 1, "slower", "bounded from above"),
    ("T == 5s", 1, "slower", "bounded from above"),
    ("N_P < 3", 5, "strict", "<="),
    ("N_P <= 3 or N_D <= 3", 10, "constant", "and"),
    ("not N_P <= 3", 1, "constant", "and"),
    ("max(N_P, N_D) >= 4", 1, "at least one of", "choose one"),
    ("min(N_P, N_D) <= 4", 1, "at least one of", "choose one"),
    ("max(N_P, min(N_D, N_C)) <= 4", 1, "not linear", "separate rules"),
    ("max(N_P, N_D) + 1 <= 4", 15, "inside arithmetic", "max(...) <= c"),
    ("max(N_P, N_D) == 4", 15, "equality", "<= or >="),
    ("abs(N_P - N_D) <= 1", 1, "not linear", ""),
    ("N_P <= 3s", 5, "different units", "same unit"),
    ("N_P + 3s <= 4", 5, "different units", "same unit"),
    ("N_Q <= 3", 1, "unknown name 'N_Q'", "did you mean"),
    ("cuont(role=decode) <= 3", 1, "unknown function", "count"),
    ("count(rol=decode) <= 3", 7, "no rol=", "role"),
    ("count(role=decoder) <= 3", 7, "unknown role", "decode"),
    ("count(zone=spot) <= 3", 7, "unknown zone", "known"),
    ("count(node=node) <= 3", 7, "unknown variable", "foreach"),
    ("count(role=decode, role=prefill) <= 3", 7, "twice", ""),
    ("count(3) <= 3", 1, "keywords only", "role="),
    ("price['spot'] <= 3 usd", 1, "no key 'spot'", "known"),
    ("price <= 3 usd", 1, "is a map", "price['reserved']"),
    ("count <= 3", 1, "is a function", "role=decode"),
    ("forecast['x'] <= 3", 1, "unknown forecast", "declare"),
    ("pirce['reserved'] <= 3", 1, "not a map", "price"),
    ("disaggregated and N_P <= 3", 1, "only stand in `when`", "when"),
    ("N_P", 1, "not a condition", "comparison"),
    ("true", 1, "not a row", "when"),
    ("job_priority >= 3 and true", 23, "not a row", "when"),
    ("N_P <= 3 / 0", 10, "division by zero", ""),
    ("N_P <= 3 / (job_priority - job_priority)", 10, "division by zero", ""),
    ("(N_P <= 3) + 1 <= 4", 12, "needs numbers", ""),
    ("max(N_P) <= 3", 1, "two or more", ""),
    ("count(role=decode", 18, "ends too early", "','"),
]


@pytest.mark.parametrize("require", ACCEPTED)
def test_accepted(tmp_path, require):
    assert loaded(tmp_path, rule(require)).rules


@pytest.mark.parametrize(("require", "column", "message", "move"), REFUSED)
def test_refused_at_its_place_with_a_next_move(tmp_path, require, column, message, move):
    with pytest.raises(PolicyError) as caught:
        loaded(tmp_path, rule(require))
    (fault,) = caught.value.faults
    before = len("      require: '")
    assert (fault.span.line, fault.span.column - before) == (7, column)
    assert message in fault.message
    assert move in f"{fault.expected} {fault.hint}"


def test_rules_split_into_numbered_rows(tmp_path):
    (found,) = loaded(tmp_path, rule("max(N_P, N_D) <= min(4, N_C + 1) and N_P == 2")).rules
    sides = [(row.less.expr, row.more.expr) for row in found.rows]
    assert len(sides) == 6


def test_a_let_may_name_a_max(tmp_path):
    policy = loaded(tmp_path, "let:\n  worst: max(T_prefill, T_decode)\n" + rule("worst <= 60s"))
    assert len(policy.rules[0].rows) == 2
    with pytest.raises(PolicyError, match="inside arithmetic"):
        loaded(tmp_path, "let:\n  worst: max(T_prefill, T_decode)\n" + rule("worst + 1s <= 60s"))


def test_lets_come_in_any_order_and_cycles_are_named(tmp_path):
    policy = loaded(tmp_path, "let:\n  a: b + c\n  b: 2 * c\n  c: N_P\n")
    order = [let.name for let in policy.lets]
    assert order.index("c") < order.index("b") < order.index("a")
    with pytest.raises(PolicyError, match="reads itself") as caught:
        loaded(tmp_path, "let:\n  a: b + 1\n  b: c + 1\n  c: a + 1\n  e: a\n")
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize("name", ["T", "usd", "max", "colocated", "node"])
def test_names_of_the_language_cannot_be_redefined(tmp_path, name):
    with pytest.raises(PolicyError, match="choose another name"):
        loaded(tmp_path, f"let:\n  {name}: N_P\n")


def test_unused_params_and_forecasts_are_faults_and_lets_are_not(tmp_path):
    spec = "params:\n  p: {value: 3}\nforecast:\n  f: {source: spot_reclaims, default: 0}\nlet:\n  m: N_P\n"
    with pytest.raises(PolicyError) as caught:
        loaded(tmp_path, spec)
    assert [fault.message for fault in caught.value.faults] == ["param 'p' is never read", "forecast 'f' is never read"]


def test_sections_are_read(tmp_path):
    policy = loaded(
        tmp_path,
        """
        decision:
          modes: [disaggregated]
          hysteresis:
            semantics: veto
            mode: 3s
            cooldown: {mode: [2 steps, 30s], ratio: 1 step, resize: 1min}
            when_stay_infeasible: drop
        solver: {prefer: [highs], time_limit: 250ms, on_limit: fail, seed: 7}
        predictor: network
        """,
    )
    cooldowns = policy.hysteresis.cooldowns
    assert policy.modes == (Mode.DISAGGREGATED,)
    assert policy.hysteresis.semantics is HysteresisSemantics.VETO
    assert policy.hysteresis.when_stay_infeasible is None
    assert (cooldowns["mode"].steps, cooldowns["mode"].seconds) == (2, 30.0)
    assert (cooldowns["ratio"].steps, cooldowns["resize"].seconds) == (1, 60.0)
    assert (policy.solver.prefer, policy.solver.time_limit_s, policy.solver.seed) == (("highs",), 0.25, 7)
    assert policy.solver.on_limit is OnLimit.FAIL
    assert policy.predictor == "network"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("decision:\n  hysteresis: {mode: 3}\n", "threshold is in a plain number"),
        ("decision:\n  hysteresis: {mode: 3s * N_P}\n", "must be a constant"),
        ("decision:\n  hysteresis: {cooldown: {mode: 2 stps}}\n", "unknown unit 'stps'"),
        ("decision:\n  borrow: {enabled: 3}\n", "not a constant condition"),
        ("decision:\n  borrow: {max_workers: 3s}\n", "max_workers is in s"),
        ("decision:\n  modes: [hybrid]\n", "input should be 'colocated' or 'disaggregated'"),
        ("solver: {time_limit: 0s}\n", "must be positive"),
        ("solver: {time_limit: T_stay}\n", "may not be read here"),
        ("params:\n  p: {value: 3, max: 2}\n", "p = 3 is out of range"),
        ("params:\n  p: {value: 3s, max: 4}\n", "max of p is in a plain number"),
        ("forecast:\n  f: {source: mystery}\n", "unknown forecast source"),
        ("forecast:\n  f: {source: spot_reclaims, unit: s}\n", "is in a plain number, not s"),
        ("forecast:\n  f: {source: spot_reclaims, quantile: 2}\n", "quantile is out of range"),
        (rule("N_P <= 3", when="colocated or disaggregated"), "stand alone"),
        (rule("N_P <= 3", when="N_P >= 3"), "not a condition"),
        (rule("N_P <= 3", when="colocatd"), "unknown mode 'colocatd'"),
        (rule("N_P <= 3", foreach="node"), "never reads 'node'"),
        (rule("N_P <= 3", relaxable="false", soft="{penalty: 1s}"), "a soft rule is relaxable"),
        (rule("N_P <= 3", soft="{penalty: 1}"), "penalty is in a plain number"),
        ("constraints: [{name: r, require: N_P <= 1}, {name: r, require: N_P <= 2}]\n", "duplicate rule 'r'"),
        ("constraints: [{name: r}]\n", "requires nothing"),
    ],
)
def test_faulty_sections(tmp_path, spec, message):
    with pytest.raises(PolicyError) as caught:
        loaded(tmp_path, spec)
    faults = [fault for fault in caught.value.faults if "never read" not in fault.message or "never reads" in message]
    assert len(faults) == 1, caught.value
    assert message in faults[0].message
    assert faults[0].span is not None


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ("  objective: {tiers: [{name: a, maximize: T}]}\n", "slower"),
        ("  objective: {tiers: [{name: a, minimize: 'min(N_P, N_D)'}]}\n", "at least one of"),
        ("  objective: {tiers: [{name: a, minimize: N_P, maximize: N_D}]}\n", "both minimize and maximize"),
        ("  objective: {tiers: [{name: a}]}\n", "nothing to optimise"),
        ("  objective: {tiers: [{name: a, minimize: N_P}, {name: a, minimize: T}]}\n", "two tiers"),
        ("  objective: {tiers: [{name: a, minimize: T, tolerance: 200%}]}\n", "tolerance is out of range"),
        ("", "no objective"),
    ],
)
def test_faulty_objectives(tmp_path, tiers, message):
    with pytest.raises(PolicyError, match=message) as caught:
        loaded(tmp_path, "solver: {seed: 1}\n", tiers=tiers)
    assert len(caught.value.faults) == 1


def test_penalties_need_a_first_tier_in_seconds(tmp_path):
    tiers = "  objective: {tiers: [{name: few, minimize: N_P}]}\n"
    with pytest.raises(PolicyError, match="make the first tier a time"):
        loaded(tmp_path, rule("N_P <= 3", soft="{penalty: 4s}"), tiers=tiers)
    assert loaded(tmp_path, rule("N_P <= 3"), tiers=tiers).hysteresis.when_stay_infeasible is None


def test_chains_of_products_stay_bounded(tmp_path):
    squares = "".join(f"  l{i}: l{i - 1} * l{i - 1}\n" for i in range(1, 60))
    with pytest.raises(PolicyError, match="too large"):
        loaded(tmp_path, f"let:\n  l0: 1.0001\n{squares}" + rule("l59 * N_P <= 3"))
    doubled = "".join(f"  m{i}: max(m{i - 1}, m{i - 1})\n" for i in range(1, 60))
    with pytest.raises(PolicyError, match="more than 64"):
        loaded(tmp_path, f"let:\n  m0: max(N_P, N_D)\n{doubled}" + rule("m59 <= 3"))
    sums = "".join(f"  s{i}: s{i - 1} * (B + K_seq / 1 token) + s{i - 1} * turns\n" for i in range(1, 100))
    assert loaded(tmp_path, f"let:\n  s0: B\n{sums}" + rule("s99 * N_P <= 3"))
