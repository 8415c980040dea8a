"""The scheduler in the simulated world: the loop, its log, and what it learns."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import pytest

import pearl
from pearl.api import choose_predictor, choose_solver, situation_of
from pearl.core.cluster import Role, Status, Zone
from pearl.errors import UsageError
from pearl.sim.experiment import Experiment, Report, run_experiment
from pearl.sim.log import Happening, to_jsonl
from pearl.sim.pipeline import TrainingCost
from pearl.sim.results import cost_usd, figures_of, quantile
from pearl.sim.traces.availability import AvailabilityEvent, AvailabilityTrace, Change
from pearl.sim.traces.generator import SpotMarket, generate
from pearl.tracking.forecasters import get_forecaster

HORIZON_S = 900.0
TRACE = generate(SpotMarket(max_nodes=6, abundance=0.5, changes_per_h=30, horizon_s=HORIZON_S, grace_s=20.0), seed=3)


def experiment(policy: str, **fields: object) -> Experiment:
    scenario, rules = pearl.load_scenario("qwen3-8b-swe"), pearl.load_policy(policy)
    workload = replace(scenario.workload, trajectories=24)
    settings: dict = {"trace": TRACE, "horizon_s": HORIZON_S, "training": TrainingCost(step_s=60.0), **fields}
    return Experiment(
        world=replace(situation_of(scenario), workload=workload),
        policy=rules,
        predictor=choose_predictor(rules, None),
        solver=choose_solver(rules, None),
        **settings,
    )


@pytest.fixture(scope="module")
def report() -> Report:
    return run_experiment(experiment("pearl"))


@pytest.fixture(scope="module")
def fixed() -> Report:
    return run_experiment(experiment("roll-fixed"))


def test_nothing_is_lost_and_the_log_tells_every_decision(report):
    assert report.rollout.lost == 0
    assert report.rollout.finished > 24
    decisions = [record for record in report.log if record.what is Happening.DECISION]
    assert len(decisions) == report.decisions
    assert all(record.data["reasons"] for record in decisions)
    assert [record.at_s for record in report.log] == sorted(record.at_s for record in report.log)
    events = [record for record in report.log if record.what is Happening.EVENT]
    assert len(events) == len(decisions)


def test_in_the_log_a_decision_follows_its_event_and_precedes_what_its_plan_does(report):
    log = report.log
    decided = [index for index, record in enumerate(log) if record.what is Happening.DECISION]
    for index in decided:
        cause = max(before for before in range(index) if log[before].what is Happening.EVENT)
        event, decision = log[cause], log[index]
        assert event.at_s == decision.at_s
        assert event.data["kind"] == decision.data["event"]
        between = {record.what for record in log[cause + 1 : index]}
        assert between <= {Happening.WORKER, Happening.GROUP_ROLLED_BACK, Happening.STEP_DROPPED}, "what the event did"
    assert not any(record.what is Happening.STEP_BEGAN for record in log[: decided[0]])
    superseded = [
        index
        for index, record in enumerate(log)
        if record.what is Happening.STEP_DROPPED and record.data["because"] == "superseded by a newer plan"
    ]
    assert superseded
    assert all(log[max(i for i in decided if i < index)].at_s == log[index].at_s for index in superseded)


def test_a_plan_that_goes_on_is_no_switch():
    """Decided on again before it is reached, a configuration is kept; its plan may still be made anew."""
    log = run_experiment(experiment("pearl", horizon_s=30.0, tick_every_s=5.0)).log
    decisions = [record.data for record in log if record.what is Happening.DECISION]
    assert all(facts["changes"] for facts in decisions if facts["outcome"] == "switch")
    again = [facts for facts in decisions if facts["outcome"] == "keep" and facts["steps"] > 0]
    assert again
    for facts in again:
        assert facts["reasons"][0]["code"] == "in_transition"
        assert f"{facts['configuration']} was decided on before" in facts["reasons"][0]["text"]
        assert facts["changes"] == []


def test_a_decision_in_the_log_says_by_what_it_was_decided(report):
    """Policy, T_stay, thresholds, corrections and forecasts: what a reason can be checked by."""
    policy = pearl.load_policy("pearl")
    decisions = [json.loads(r.to_json()) for r in report.log if r.what is Happening.DECISION]
    for facts in decisions:
        assert facts["policy"] == {"name": "pearl", "sha256": policy.sha256}
        assert {forecast["name"] for forecast in facts["forecasts"]} == {spec.name for spec in policy.forecasts}
        assert facts["thresholds"]["mode_s"] > 0
    kept = [facts for facts in decisions if facts["reasons"][0]["code"] == "no_better"]
    assert kept
    assert all(facts["stay_s"] == pytest.approx(facts["predicted_s"]) for facts in kept)
    assert any(facts["corrections"] for facts in decisions)


def test_the_same_seed_gives_the_same_log(report):
    again = run_experiment(experiment("pearl"))
    assert to_jsonl(again.log) == to_jsonl(report.log)


def test_a_pool_without_roles_gets_them_by_the_first_decision():
    """Nothing serves before it, the trace's first nodes included, so that no threshold on a change holds it back."""
    given = experiment("pearl", batches=1)
    idle = tuple(replace(w, role=Role.INACTIVE, status=Status.INACTIVE) for w in given.world.state.workers)
    world = replace(given.world, state=replace(given.world.state, workers=idle))
    log = run_experiment(replace(given, world=world)).log
    first = next(record for record in log if record.what is Happening.DECISION)
    assert first.data["outcome"] == "switch"
    assert first.data["changes"] == ["resize"], "the mode is chosen, not changed"
    assert any("staying breaks" in reason["text"] for reason in first.data["reasons"])


def test_another_seed_meets_other_trajectories(report):
    other = run_experiment(experiment("pearl", seed=1, batches=1))
    assert other.rollout.makespans_s[0] != report.rollout.makespans_s[0]


def test_a_fixed_pool_takes_no_preemptible_and_no_training_gpu(fixed):
    held = {(zone, role.value) for (zone, role, _), seconds in fixed.rollout.gpu_s.items() if seconds > 120.0}
    assert {zone for zone, role in held if role != "inactive"} == {Zone.RESERVED}
    assert fixed.rollout.borrowed_gpu_s == 0


def test_an_elastic_pool_beats_a_fixed_one(report, fixed):
    assert fmean(report.rollout.makespans_s) < 0.9 * fmean(fixed.rollout.makespans_s)


def test_figures_add_up(report):
    prices = {Zone.RESERVED: 3.6, Zone.PREEMPTIBLE: 1.8, Zone.OVERLAP: 0.0}
    figures = figures_of(
        report,
        predictor="network",
        solver="cpsat",
        prices_usd_per_h=prices,
        tensor_parallel=1,
        power_w=dict.fromkeys(Role, 500.0),
    )
    assert figures.makespan_s.p50 <= figures.makespan_s.p95 <= figures.makespan_s.max
    assert figures.lost == 0
    reserved_s = sum(figures.gpu_s["reserved"].values())
    assert reserved_s == pytest.approx(4 * HORIZON_S)
    spot_s = sum(figures.gpu_s["preemptible"].values())
    assert cost_usd(report, prices, tensor_parallel=1) == pytest.approx(reserved_s / 1000 + spot_s / 2000)
    assert sum(figures.energy_kwh["reserved"].values()) == pytest.approx(0.5 * reserved_s / 3600)
    assert sum(figures.energy_kwh["preemptible"].values()) == pytest.approx(0.5 * spot_s / 3600)
    assert sum(figures.energy_kwh["overlap"].values()) < 0.5 * sum(figures.gpu_s["overlap"].values()) / 3600
    assert figures.horizon_s == HORIZON_S
    assert sum(figures.outcomes.values()) == figures.decisions > figures.outcomes["switch"] > 0
    assert figures.borrowed_s <= sum(figures.gpu_s["overlap"].values())


def test_quantiles_are_of_the_values():
    assert quantile([1.0], 0.95) == 1.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.95) == 4.0


@pytest.mark.slow
@pytest.mark.parametrize("forecaster", ["last_value", "moving_average", "life_cycle"])
def test_a_forecast_driven_policy_decides_within_the_batch(forecaster):
    ticking = experiment("prorsa", forecaster=get_forecaster(forecaster), tick_every_s=20.0, trace=None)
    result = run_experiment(ticking)
    ticks = [r for r in result.log if r.what is Happening.DECISION and r.data["event"] == "profile_updated"]
    assert len(ticks) >= HORIZON_S / 20.0 - 1
    assert result.rollout.lost == 0


@pytest.mark.parametrize("at_s", [0.0, 5.0])
@pytest.mark.parametrize("zone", [Zone.RESERVED, Zone.OVERLAP])
def test_a_trace_has_no_say_over_the_nodes_that_stay(zone, at_s):
    """Else a reserved or borrowed GPU would be reclaimed, or one of the trace never arrive."""
    posed = experiment("pearl")
    fixed = next(worker for worker in posed.world.state.workers if worker.zone is zone)
    arrival = AvailabilityEvent(at_s=at_s, kind=Change.ADD, nodes=(fixed.node,))
    clash = replace(posed, trace=AvailabilityTrace(events=(arrival,), horizon_s=HORIZON_S))
    with pytest.raises(UsageError, match=rf"node '{fixed.node}' is in the {zone} zone of the cluster"):
        run_experiment(clash)


def test_a_trace_may_name_the_preemptible_nodes_that_it_stands_for():
    posed = experiment("pearl", horizon_s=60.0)
    spot = next(worker for worker in posed.world.state.workers if worker.zone is Zone.PREEMPTIBLE)
    arrival = AvailabilityEvent(at_s=5.0, kind=Change.ADD, nodes=(spot.node,))
    report = run_experiment(replace(posed, trace=AvailabilityTrace(events=(arrival,), horizon_s=60.0)))
    assert sum(seconds for key, seconds in report.rollout.gpu_s.items() if Zone.PREEMPTIBLE in key) == 55.0
