"""A study: what is checked before the first run, and what each run was carried out with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pearl.errors import InputError, UsageError
from pearl.policy.load import builtin_folder, load_policy
from pearl.scenario.load import shipped_scenarios
from pearl.sim.study import TICK_S, RunSpec, execute, prepare, set_up

TRACE = "at_s,event,node,gpus,grace_s\n0.0,add,spot-0,1,\n60.0,reclaim,spot-0,1,30.0\n300.0,end,,,\n"


def spec(policy: str | Path | None = None, **fields: object) -> RunSpec:
    settings: dict = {"scenario": "small-4gpu", "seed": 0, "horizon_s": 60.0, **fields}
    return RunSpec(policy=None if policy is None else str(policy), **settings)


def copy_of(path: Path, *, name: str = "pearl") -> Path:
    text = (builtin_folder() / "pearl.yaml").read_text(encoding="utf-8")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace("name: pearl\n", f"name: {name}\n", 1), encoding="utf-8")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "spot.csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


def test_policies_are_called_by_their_names() -> None:
    ready = prepare([spec(name, seed=seed) for name in ("pearl", "rlboost-plus") for seed in (0, 1)])
    assert [(one.label, one.seed) for one in ready] == [
        ("pearl", 0),
        ("pearl", 1),
        ("rlboost-plus", 0),
        ("rlboost-plus", 1),
    ]


def test_policies_of_one_name_are_called_by_their_files(tmp_path: Path) -> None:
    mild, strict = copy_of(tmp_path / "mild.yaml"), copy_of(tmp_path / "strict.yaml")
    assert [one.label for one in prepare([spec(mild), spec(strict), spec("roll-fixed")])] == [
        "mild",
        "strict",
        "roll-fixed",
    ]
    assert [one.label for one in prepare([spec(mild), spec("roll-fixed")])] == ["pearl", "roll-fixed"]


def test_policies_that_results_could_not_tell_apart_are_refused(tmp_path: Path) -> None:
    here, there = copy_of(tmp_path / "mine.yaml"), copy_of(tmp_path / "x" / "mine.yaml")
    with pytest.raises(UsageError, match="could not be told apart"):
        prepare([spec(here), spec(there)])
    third = copy_of(tmp_path / "third.yaml", name="mine")
    other = copy_of(tmp_path / "other.yaml")
    with pytest.raises(UsageError, match=r"mine\.yaml.*third\.yaml"):
        prepare([spec(here), spec(other), spec(third)])


def test_the_label_is_what_figures_call_the_policy() -> None:
    assert execute(spec("roll-fixed", label="mine")).figures.policy == "mine"


def test_every_fault_of_every_policy_is_found_before_a_run(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("apiVersion: pearl.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: bad}\nspec: {}\n")
    with pytest.raises(InputError) as raised:
        prepare([spec("pearl"), spec(bad), spec("nope"), spec("roll-fixed", sets={"nothing": "1"})])
    said = str(raised.value)
    assert all(part in said for part in ("bad.yaml", "no policy 'nope'", "nothing"))


def test_a_policy_that_does_not_fit_the_scenario_is_found_before_a_run(tmp_path: Path) -> None:
    """It loads; only bound to the scenario does it show that its penalty, which must not be negative, is."""
    policy = tmp_path / "negative.yaml"
    policy.write_text(
        "apiVersion: pearl.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: negative}\n"
        "extends: [builtin/feasibility@v1]\nspec:\n"
        "  constraints:\n    - {name: few, require: N_P <= 4, soft: {penalty: 0 s - T_stay, per: 1}}\n"
        "  objective: {tiers: [{name: makespan, minimize: T}]}\n",
        encoding="utf-8",
    )
    assert load_policy(policy).name == "negative"
    with pytest.raises(InputError, match=r"negative\.yaml:7:\d+: may not be negative"):
        prepare([spec("pearl"), spec(policy)])


def test_the_trace_must_cover_the_run(trace: Path) -> None:
    assert set_up(spec(trace=str(trace), horizon_s=300.0)).experiment.trace is not None
    with pytest.raises(UsageError, match=r"holds 300 s of availability, and 301 s .* \(--horizon 300 at most\)"):
        set_up(spec(trace=str(trace), horizon_s=301.0))
    with pytest.raises(UsageError, match=r"from 250 s on holds 50 s"):
        set_up(spec(trace=str(trace), trace_from_s=250.0))
    with pytest.raises(UsageError, match=r"from 400 s on holds 0 s .* \(it ends at 300 s\)"):
        set_up(spec(trace=str(trace), trace_from_s=400.0))


def test_a_start_in_a_trace_needs_one() -> None:
    with pytest.raises(UsageError, match="there is none"):
        set_up(spec(trace_from_s=3.0))


def test_what_is_in_force_names_the_scenarios_own_trace(tmp_path: Path, trace: Path) -> None:
    scenario = tmp_path / "mine.yaml"
    text = shipped_scenarios()["small-4gpu"].read_text(encoding="utf-8")
    scenario.write_text(f"{text.rstrip()}\n  simulation: {{horizon: 120s, trace: spot.csv}}\n", encoding="utf-8")
    own = set_up(spec(scenario=str(scenario), horizon_s=None)).in_force
    assert (own.trace, own.horizon_s) == (str(trace), 120.0)
    assert set_up(spec(scenario=str(scenario), trace=str(trace))).in_force.trace == str(trace)
    assert set_up(spec()).in_force.trace is None


def test_the_period_of_decisions_is_in_force_where_the_policy_asks_for_one() -> None:
    assert set_up(spec("prorsa")).in_force.tick_s == TICK_S
    assert set_up(spec("pearl")).in_force.tick_s is None
    assert set_up(spec("pearl", tick_every_s=7.0)).in_force.tick_s == 7.0
