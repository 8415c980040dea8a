"""Binding: rows against an independent evaluation of the same text, exactness, rounding, forecasts and thresholds."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.cluster import Mode, Role, Zone
from pearl.core.facts import ColumnTable, ForecastSamples
from pearl.core.problem import AXIS_ROLE, Axis, Linear
from pearl.errors import PolicyError
from pearl.policy.bind import bind_policy
from pearl.policy.forecasts import quantile
from pearl.policy.load import load_policy
from tests.policy.samples import MAPS, ROLES, SCALARS, curves, facts, groups, loaded, rule


def counted(assignment, *, role=None, zone=None, node=None, weight=lambda group: 1):
    """Workers of an assignment {(group, target): number} that a count covers."""
    return sum(
        number * weight(group)
        for (group, target), number in assignment.items()
        if (target.value == role if role else target is not Role.INACTIVE)
        and (zone is None or group.zone.value == zone)
        and (node is None or group.node == node)
    )


def namespace(assignment, makespan_s, tables):
    """Values of every name at an assignment, for Python's own evaluation of the same text."""
    counts = {role: counted(assignment, role=role.value) for role in ROLES}
    changes = [(g, t, n) for (g, t), n in assignment.items()]
    serving = Role.INACTIVE

    def at(name):
        return sum(column[counts[AXIS_ROLE[axis]]] for axis, column in tables[name].columns.items())

    return {
        **SCALARS,
        "workers": float(sum(assignment.values())),
        "price": MAPS["price"],
        "power": MAPS["power"],
        "N_P": counts[Role.PREFILL],
        "N_D": counts[Role.DECODE],
        "N_C": counts[Role.COLOCATED],
        "role_changes": sum(n for g, t, n in changes if g.role != t and serving not in (g.role, t)),
        "adds": sum(n for g, t, n in changes if g.role is serving and t is not serving),
        "removes": sum(n for g, t, n in changes if g.role is not serving and t is serving),
        "borrowed": counted(assignment, zone="overlap"),
        "count": lambda **words: counted(assignment, **words),
        "exposure": lambda **words: counted(assignment, **words, weight=lambda g: g.reclaim_probability),
        "T": makespan_s,
        **{name: at(name) for name in tables},
        "decode": "decode",
        "reserved": "reserved",
        "preemptible": "preemptible",
    }


def value(row: Linear, assignment, makespan_ms: int) -> int:
    """The integer row at an assignment."""
    numbers = {(group.id, target): n for (group, target), n in assignment.items()}
    counts = {role: counted(assignment, role=role.value) for role in ROLES}
    return (
        row.constant
        + sum(c * numbers.get((g, r), 0) for g, r, c in row.counts)
        + row.makespan * makespan_ms
        + sum(table.values[counts[AXIS_ROLE[table.axis]]] for table in row.tables)
    )


@st.composite
def assignments(draw):
    """A role for every worker of four nodes with four workers, all in one mode."""
    mode = draw(st.sampled_from([(Role.COLOCATED,), (Role.PREFILL, Role.DECODE)]))
    result = {}
    for group in groups():
        left = group.size
        for role in mode:
            n = draw(st.integers(0, left))
            left -= n
            result[group, role] = n
        result[group, Role.INACTIVE] = left
    return result


ROWS = [
    "N_P * prefill_rate >= demand_rate",
    "B * K_seq <= N_D * H_max * 0.95",
    "role_changes <= 0.25 * workers",
    "3*role_changes + 2*adds + removes - borrowed <= 7",
    "count(role=decode, zone=reserved) + count(zone=preemptible) / 3 >= 1.5",
    "exposure(role=decode) + 2 * exposure(zone=preemptible) <= 0.55",
    "price['reserved']*count(zone=reserved) + price['preemptible']*count() <= "
    "14.5 * price['reserved'] * T_stay / T_prefill",
    "T / T_stay + T_prefill / (2 * T_stay) <= 3.3 + 0.001 * N_P",
    "T_decode - T_prefill <= 0.123456789 * T_stay",
    "(N_P - N_D) * 1e-7 <= 0.3",
    "count(node='node-1') <= 2",
]


@pytest.mark.parametrize("require", ROWS)
@given(assignment=assignments(), makespan_ms=st.integers(0, 10**7))
@settings(max_examples=25, deadline=None)
def test_a_row_never_is_looser_than_its_text_and_hardly_tighter(require, assignment, makespan_ms, tmp_path_factory):
    policy = loaded(tmp_path_factory.mktemp("p"), rule(require))
    given_facts = facts()
    (found,) = bind_policy(policy, given_facts).rules
    names = namespace(assignment, makespan_ms / 1000, given_facts.tables)
    if found.when is not None and any(
        n
        for (_, t), n in assignment.items()
        if t is not Role.INACTIVE and (t is Role.COLOCATED) != (found.when is Mode.COLOCATED)
    ):
        return
    if "/ T_prefill" in require and not names["T_prefill"]:
        return
    left, op, right = require.replace("<=", "|<=|").replace(">=", "|>=|").split("|")
    wanted = eval(f"({left}) - ({right})", {"__builtins__": {}}, names) * (1 if op == "<=" else -1)
    got = value(found.expr, assignment, makespan_ms) / found.expr.scale
    size = max(abs(wanted), abs(float(left_size(found.expr))), 1.0)
    assert float(got) >= wanted - 1e-12 * size
    assert float(got) <= wanted + 2.0**-24 * size


def left_size(row: Linear) -> Fraction:
    """The largest magnitude in a row, in the user's unit."""
    numbers = [row.constant, row.makespan * 10**7, *(16 * c for _, _, c in row.counts)]
    return max(abs(n) for n in [*numbers, *(v for t in row.tables for v in t.values)]) / row.scale


def bound(tmp_path, spec, *, given_facts=None, **options):
    return bind_policy(loaded(tmp_path, spec, **options), given_facts or facts())


def test_short_decimals_stay_exact(tmp_path):
    (found,) = bound(tmp_path, rule("0.125 * N_P + T / 1000 s <= 0.3")).rules
    assert found.expr.scale * Fraction(3, 10) == -found.expr.constant
    assert {c / found.expr.scale for _, _, c in found.expr.counts} == {Fraction(1, 8)}
    assert found.expr.makespan / found.expr.scale == Fraction(1, 10**6)


def test_counts_are_canonical(tmp_path):
    (found,) = bound(tmp_path, rule("N_P - N_P + count(role=decode) <= 3")).rules
    keys = [(g, r) for g, r, _ in found.expr.counts]
    assert keys == sorted(set(keys))
    assert {r for _, r in keys} == {Role.DECODE}
    assert all(c for _, _, c in found.expr.counts)


def test_targets_that_a_group_may_not_take_are_left_out(tmp_path):
    pinned = [dataclasses.replace(g, targets=(g.role,)) for g in groups()]
    given_facts = dataclasses.replace(facts(), groups=tuple(pinned))
    (found,) = bound(tmp_path, rule("N_P + N_C <= 3"), given_facts=given_facts).rules
    assert {r for _, r, _ in found.expr.counts} == {Role.COLOCATED}


def test_leaving_workers_are_neither_changes_nor_removes(tmp_path):
    leaving = [dataclasses.replace(g, targets=(Role.INACTIVE,), leaving=True) for g in groups()]
    given_facts = dataclasses.replace(facts(), groups=tuple(leaving))
    (found,) = bound(tmp_path, rule("role_changes + adds + removes <= 3"), given_facts=given_facts).rules
    assert found.expr.counts == ()


def test_foreach_and_split_rows_are_named(tmp_path):
    names = [r.name for r in bound(tmp_path, rule("count(node=node) <= 2 and count() <= 9", foreach="node")).rules]
    assert names == [f"r[node-{n}].{i}" for n in range(4) for i in (1, 2)]
    zones = [r.name for r in bound(tmp_path, rule("price[zone] * count(zone=zone) <= 9 usd", foreach="zone")).rules]
    assert zones == ["r[reserved]", "r[preemptible]", "r[overlap]"]


@pytest.mark.parametrize(
    ("when", "mode"),
    [
        ("disaggregated", Mode.DISAGGREGATED),
        ("colocated and job_priority >= 3", Mode.COLOCATED),
        ("job_priority >= 3", None),
    ],
)
def test_when_confines_a_rule_to_a_mode(tmp_path, when, mode):
    (found,) = bound(tmp_path, rule("N_P <= 3", when=when)).rules
    assert found.when is mode


@pytest.mark.parametrize("when", ["job_priority > 3", "colocated and disaggregated", "false", "not job_priority == 3"])
def test_rules_whose_condition_is_false_are_left_out(tmp_path, when):
    assert bound(tmp_path, rule("N_P <= 3", when=when)).rules == ()


def test_division_by_a_table_confines_a_rule_to_the_modes_of_the_table(tmp_path):
    (found,) = bound(tmp_path, rule("N_P / 1 s <= 3 token / s / demand_rate / 1 s")).rules
    assert found.when is Mode.DISAGGREGATED
    (both,) = bound(tmp_path, rule("N_P / 1 s <= 3 / T_prefill")).rules
    assert both.when is None
    assert [t.axis for t in both.expr.tables] == [Axis.COLOCATED, Axis.PREFILL]
    assert all(t.values[0] == 0 for t in both.expr.tables)


def test_division_by_a_table_that_is_zero_is_a_fault(tmp_path):
    tables = {**curves(16), "demand_rate": ColumnTable(columns={Axis.DECODE: (0.0, 5.0, 0.0)})}
    with pytest.raises(PolicyError, match="zero at 2 decode workers"):
        bound(tmp_path, rule("N_P / 1 s <= 3 token / s / demand_rate / 1 s"), given_facts=facts(tables=tables))


def test_soft_rules_are_counted_in_units_of_violation(tmp_path):
    soft = "{penalty: 1.5s, max_violation: 3}"
    (plain,) = bound(tmp_path, rule("2 * N_P <= 3", soft=soft)).rules
    assert (plain.soft.penalty_ms, plain.soft.max_violation, plain.expr.scale, plain.expr.unit) == (1500, 3, 1, "")
    (tokens,) = bound(tmp_path, rule("B * K_seq <= N_D * H_max", soft=soft)).rules
    (coefficient,) = {c for _, _, c in tokens.expr.counts}
    assert (tokens.expr.scale, tokens.expr.unit) == (-coefficient, "workers")
    (per,) = bound(tmp_path, rule("B * K_seq <= N_D * H_max", soft="{penalty: 1s, per: 100000 tokens}")).rules
    assert per.expr.scale == tokens.expr.scale / 4


def test_tiers(tmp_path):
    tiers = (
        "  objective:\n    tiers:\n      - {name: a, minimize: 'max(T_prefill, 2 * T_decode)', tolerance: 1%}\n"
        "      - {name: b, maximize: 'min(N_P, N_D / 3)'}\n      - {name: c, minimize: 2*T + 1s * N_P}\n"
    )
    a, b, c = bound(tmp_path, tiers=tiers, spec="solver: {seed: 1}\n").tiers
    assert a.tolerance == Fraction(1, 100)
    assert [t.scale for t in a.terms] == [1000, 1000]
    assert a.terms[1].tables[1].values[1] == 2 * round(5012.3 * 1000)
    assert [t.scale for t in b.terms] == [3, 3]
    assert {c for _, _, c in b.terms[0].counts} == {-3}
    assert (c.terms[0].makespan, c.terms[0].scale, c.terms[0].counts[0][2]) == (2, 1000, 1000)


def test_a_rule_that_only_a_slower_batch_meets_is_refused_when_its_sign_shows(tmp_path):
    policy = loaded(tmp_path, rule("(T_stay - overlap_window) / 1 s * T <= 3s"))
    with pytest.raises(PolicyError, match="slower"):
        bind_policy(policy, facts())
    assert bind_policy(policy, facts(scalars={"T_stay": 400.0})).rules


@pytest.mark.parametrize("samples", [(1.0,), (3.0, 1.0, 2.0), tuple(map(float, range(10)))])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_quantile_agrees_with_numpy(samples, share):
    numpy = pytest.importorskip("numpy")
    assert quantile(samples, share) == pytest.approx(numpy.quantile(samples, share))


BORROW = """
forecast:
  w: {{source: overlap_window, max_age: 60s{extra}}}
decision:
  borrow: {{enabled: true, window: "forecast['w']"}}
"""


@pytest.mark.parametrize(
    ("extra", "samples", "expected"),
    [
        ("", (100.0,), 100.0),
        (", on_stale: no_borrow", None, "no samples"),
        (", on_stale: no_borrow, default: 70s", None, 70.0),
        (", on_stale: no_borrow", (100.0, 61.0), "61 s old"),
        (", on_stale: keep_last", (100.0, 61.0), 100.0),
        ("", None, PolicyError),
        ("", (100.0, 61.0), PolicyError),
        (", on_stale: keep_last", None, PolicyError),
    ],
)
def test_stale_and_missing_forecasts(tmp_path, extra, samples, expected):
    policy = loaded(tmp_path, BORROW.format(extra=extra))
    known = {}
    if samples:
        known["overlap_window"] = ForecastSamples(values=samples[:1], age_s=samples[1] if samples[1:] else 0.0)
    given_facts = facts(samples=known)
    if expected is PolicyError:
        with pytest.raises(PolicyError) as caught:
            bind_policy(policy, given_facts)
        assert caught.value.faults[0].hint
        return
    borrow = bind_policy(policy, given_facts).borrow
    if isinstance(expected, str):
        assert not borrow.enabled
        assert expected in borrow.stale
    else:
        assert (borrow.enabled, borrow.window_s, borrow.stale) == (True, expected, "")


def test_a_metric_that_lacks_a_fact_is_an_error_only_where_it_is_read(tmp_path):
    poor = dataclasses.replace(facts(), maps={})
    spec = "let:\n  cost: price['reserved'] * count()\n  double: 2 * cost\n"
    assert bound(tmp_path, spec, given_facts=poor).metrics == {}
    with pytest.raises(PolicyError, match=r"metric 'double'.*metric 'cost'.*price\['reserved'\]"):
        bound(tmp_path, spec + rule("double <= 3 usd"), given_facts=poor)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_facts_that_are_not_finite_are_faults(tmp_path, bad):
    with pytest.raises(PolicyError, match="not finite"):
        bound(tmp_path, rule("N_P <= job_priority"), given_facts=facts(scalars={"job_priority": bad}))
    tables = {"T_prefill": ColumnTable(columns={Axis.PREFILL: (0.0, bad)})}
    with pytest.raises(PolicyError, match="not finite"):
        bound(tmp_path, rule("T_prefill <= 3s"), given_facts=facts(tables=tables))


def test_the_example_policy(shared_policy):
    found = bind_policy(load_policy(shared_policy), facts())
    names = [r.name for r in found.rules]
    assert names[:5] == [
        "prefill_capacity",
        "kv_capacity",
        "kv_capacity_colo",
        "survive_reclaim",
        "keep_reserved_decode",
    ]
    assert names[5:9] == [f"spread_decode[node-{n}]" for n in range(4)]
    assert names[9:] == ["limit_churn", "batch_budget.1", "batch_budget.2"]
    assert [r.relaxable for r in found.rules[:4]] == [False, False, False, True]
    assert (found.hysteresis.mode_s, found.hysteresis.ratio_s, found.hysteresis.resize_s) == (12.0, 3.6, 0.0)
    assert found.hysteresis.cooldown_mode.steps == 2
    assert (found.borrow.enabled, found.borrow.window_s, found.borrow.max_workers) == (True, 140.0, 8)
    assert found.borrow.min_saving_s == 9.8
    assert set(found.metrics) == {"usd_rate", "watts"}
    assert found.constants["budget"] == 14500
    assert found.solver.time_limit_s == 0.3
    assert all(g.zone in Zone for g in groups())
