"""Files: inheritance, sets, hashes, and every fault at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pearl.errors import PolicyError
from pearl.policy.bind import bind_policy
from pearl.policy.load import builtin_names, load_policy
from tests.policy.samples import facts, loaded, policy_text, rule, written

GOLDEN = Path(__file__).parent / "golden"


def test_a_child_merges_by_name(tmp_path):
    parent = policy_text(
        "params:\n  limit: {value: 4, max: 9}\nlet:\n  m: N_P\n"
        "decision:\n  hysteresis: {mode: 3s, ratio: 2s}\n  borrow: {enabled: true}\n"
        "constraints:\n  - {name: a, require: m <= limit, relaxable: false, message: too many}\n"
        "  - {name: b, require: N_D <= 5}\n  - {name: c, require: N_C <= 6}\n"
    )
    written(tmp_path, parent, "parent.yaml")
    child = policy_text(
        "params:\n  limit: {value: 5}\ndecision:\n  hysteresis: {mode: 7s}\n"
        "constraints:\n  - {name: b, disabled: true}\n  - {name: a, require: m + 1 <= limit}\n"
        "  - {name: d, require: N_P >= 1}\n",
        tiers="",
        extends="parent.yaml",
    )
    policy = load_policy(written(tmp_path, child))
    assert [r.name for r in policy.rules] == ["a", "c", "d"]
    a = policy.rules[0]
    assert (a.require.text, a.relaxable, a.message) == ("m + 1 <= limit", False, "too many")
    assert a.span.file == str(tmp_path / "policy.yaml")
    assert policy.rules[1].span.file == str(tmp_path / "parent.yaml")
    found = bind_policy(policy, facts())
    assert (found.hysteresis.mode_s, found.hysteresis.ratio_s, found.borrow.enabled) == (7.0, 2.0, True)
    assert found.constants["limit"] == 5
    assert [t.name for t in found.tiers] == ["makespan"]
    assert "extends" not in policy.document
    assert [r["name"] for r in policy.document["spec"]["constraints"]] == ["a", "c", "d"]
    with pytest.raises(PolicyError, match="expected at most 9"):
        load_policy(tmp_path / "policy.yaml", sets={"limit": "10"})


def test_cycles_and_missing_parents_are_faults(tmp_path):
    written(tmp_path, policy_text("solver: {seed: 1}\n", extends="b.yaml"), "a.yaml")
    b = written(tmp_path, policy_text("solver: {seed: 1}\n", extends="a.yaml"), "b.yaml")
    with pytest.raises(PolicyError, match=r"b\.yaml leads back to itself"):
        load_policy(b)
    lonely = written(tmp_path, policy_text("solver: {seed: 1}\n", extends="absent.yaml"))
    with pytest.raises(PolicyError, match=r"policy\.yaml:4:11: cannot read"):
        load_policy(lonely)
    with pytest.raises(PolicyError, match="has no version 'v9'"):
        load_policy("builtin/feasibility@v9")


def test_extending_widely_is_bounded(tmp_path):
    for level in range(6):
        parents = ", ".join([f"l{level + 1}.yaml"] * 8) if level < 5 else "builtin/feasibility"
        written(tmp_path, policy_text("solver: {seed: 1}\n", extends=parents), f"l{level}.yaml")
    with pytest.raises(PolicyError, match="more than 32 files"):
        load_policy(tmp_path / "l0.yaml")


def test_sets_are_typed_by_the_param(tmp_path):
    spec = "params:\n  wait: {value: 3s, min: 1s}\n" + rule("T <= wait * 10")
    assert bind_policy(loaded(tmp_path, spec, sets={"wait": "500ms * 4"}), facts()).constants["wait"] == 2
    for text, message in (
        ("3", "different units"),
        ("0.5s", "expected at least 1s"),
        ("", "no value"),
        ("T", "read here"),
    ):
        with pytest.raises(PolicyError, match=message):
            loaded(tmp_path, spec, sets={"wait": text})
    with pytest.raises(PolicyError, match=r"policy '.+': unknown param 'wiat' \(did you mean 'wait'\?\)"):
        loaded(tmp_path, spec, sets={"wiat": "3s"})


def test_the_hash_covers_file_parents_and_sets(tmp_path):
    written(tmp_path, policy_text(rule("N_P <= 3")), "parent.yaml")
    spec = "params:\n  p: {value: 3}\nconstraints:\n  - {name: q, require: N_D <= p}\n"
    path = written(tmp_path, policy_text(spec, extends="parent.yaml"))
    first = load_policy(path).sha256
    assert load_policy(path).sha256 == first
    assert load_policy(path, sets={"p": "3"}).sha256 != first
    written(tmp_path, policy_text(rule("N_P <= 4")), "parent.yaml")
    assert load_policy(path).sha256 != first


def test_dimensions_and_sources_say_what_a_policy_asks_for(tmp_path):
    assert loaded(tmp_path, rule("N_P <= 3")).dimensions == frozenset()
    assert loaded(tmp_path, rule("count(node=node) <= 3", foreach="node")).dimensions == {"node"}
    assert loaded(tmp_path, rule("exposure() <= count(node='x')")).dimensions == {"node", "risk"}
    spec = "forecast:\n  f: {source: own_source, unit: tokens/s, default: 3 tokens/s}\n"
    policy = loaded(tmp_path, spec + rule("N_P * prefill_rate >= forecast['f']"))
    assert policy.sources == {"own_source"}
    assert {"N_P", "prefill_rate", "T"} <= policy.names
    assert "T_prefill" not in policy.names


def test_every_fault_is_reported_at_once_in_file_order():
    with pytest.raises(PolicyError) as caught:
        load_policy(GOLDEN / "faulty.yaml")
    lines = [str(fault).replace(str(GOLDEN) + "/", "") for fault in caught.value.faults]
    assert "\n".join(lines) + "\n" == (GOLDEN / "faulty.txt").read_text(encoding="utf-8")


def test_columns_are_right_inside_quotes_and_safe_in_folded_text(tmp_path):
    quoted = policy_text('constraints:\n  - {name: a, require: "N_P <= N_Q"}\n')
    folded = policy_text("constraints:\n  - name: a\n    require: >\n      N_P <=\n      N_Q\n")
    for text, line, column in ((quoted, 6, 34), (folded, 7, 16)):
        with pytest.raises(PolicyError) as caught:
            load_policy(written(tmp_path, text))
        (fault,) = caught.value.faults
        assert (fault.span.line, fault.span.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("[]", "policy"),
        ("spec: {}\n", "key 'apiVersion' is missing"),
        ("\xff", "UTF-8"),
        ("a: *b\n", "not valid YAML"),
        ("a: 1\na: 2\n", "duplicate key"),
    ],
)
def test_files_that_are_no_policy(tmp_path, text, message):
    path = tmp_path / "policy.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PolicyError, match=message):
        load_policy(path)


def test_references(tmp_path, monkeypatch):
    assert load_policy("pearl").file == "policies/pearl.yaml"
    assert load_policy("builtin/feasibility@v1").name == "feasibility"
    with pytest.raises(PolicyError, match="did you mean 'pearl'"):
        load_policy("perl")
    with pytest.raises(PolicyError, match="cannot read"):
        load_policy(tmp_path / "absent.yaml")
    monkeypatch.chdir(tmp_path)
    written(tmp_path, policy_text(rule("N_P <= 3")), "mine")
    assert load_policy("mine").name == "sample"


def test_the_built_in_policies_are_the_promised_ones():
    promised = {
        "pearl",
        "roll-fixed",
        "rlboost-plus",
        "prorsa",
        "cost-budget",
        "energy",
        "priority",
        "risk-aware",
        "feasibility",
    }
    assert set(builtin_names()) == promised


def test_a_built_in_name_means_the_built_in_policy_whatever_lies_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pearl").write_text("not a policy", encoding="utf-8")
    assert load_policy("pearl").name == "pearl"
    with pytest.raises(PolicyError):
        load_policy(Path("pearl"))


SOFT = "constraints:\n  - {name: q, require: N_D <= 3, soft: {penalty: 1s}}\n"


@pytest.mark.parametrize(
    ("params", "tiers", "said"),
    [
        ("params:\n  usd: {value: 3 s}\n", "[{name: v, minimize: T + usd * N_P}]", "is a unit"),
        ("", "[{name: v, minimize: T +}, {name: w, minimize: N_P}]", "ends too early"),
        ("", "[{name: v, minimise: T}, {name: w, minimize: N_P}]", "minimise"),
    ],
)
def test_a_first_tier_that_is_faulty_itself_is_not_called_one_that_is_no_time(tmp_path, params, tiers, said):
    with pytest.raises(PolicyError, match=said) as raised:
        loaded(tmp_path, params + SOFT, tiers=f"  objective: {{tiers: {tiers}}}\n")
    assert "duplicate" not in str(raised.value)
    assert "seconds are added to it" not in str(raised.value)


def test_a_first_tier_that_is_no_time_is_refused_where_seconds_are_added_to_it(tmp_path):
    with pytest.raises(PolicyError, match="tier 'w' is in a plain number, and seconds are added to it"):
        loaded(tmp_path, SOFT, tiers="  objective: {tiers: [{name: w, minimize: N_P}]}\n")
