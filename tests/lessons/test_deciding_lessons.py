"""Lessons on deciding: each fault that users of other systems met, and its whole kind (the list: docs/lessons.md)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import yaml

import pearl
from pearl.api import choose_solver, situation_of
from pearl.cli.main import run
from pearl.core.cluster import ClusterState, Counts, Mode, Role, Status, Zone, count_gpus
from pearl.core.decision import Outcome, ReasonCode
from pearl.core.event import Event, EventKind
from pearl.core.plan import Step
from pearl.core.problem import Change, assignment_counts
from pearl.core.situation import Situation
from pearl.errors import InputError
from pearl.makespan.registry import get_predictor
from pearl.planning import apply_plan
from pearl.planning.apply import advance
from pearl.policy.load import load_policy
from pearl.policy.model import Policy
from pearl.scheduler import ElasticScheduler, deliberate
from pearl.sim.experiment import Experiment, run_experiment
from pearl.sim.log import Happening
from pearl.sim.traces.generator import SpotMarket, generate, oscillate
from pearl.solving.registry import resolve
from tests.deciding.worlds import TablePredictor, situation, workers
from tests.deciding.worlds import policy as gated_policy
from tests.lessons.worlds import TRAINING, simulated, steady, switches_after_the_first, two_hours

STABLE = ("pearl", "rlboost-plus", "prorsa", "cost-budget")
EXACT = ("cpsat", "enumerate", "highs", "mathopt", "scip", "pyomo")
RESERVED = workers(Zone.RESERVED, 4, Role.COLOCATED)


def written(tmp_path: Path, spec: str) -> Policy:
    """A policy of the given `spec` section."""
    head = "apiVersion: pearl.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: lesson}\nspec:\n"
    path = tmp_path / "lesson.yaml"
    path.write_text(head + spec, encoding="utf-8")
    return load_policy(path)


# -- constant load, and load that is not ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STABLE)
def test_constant_load_for_two_hours_is_at_most_one_switch_after_the_first(name):
    """dynamo#9294, kueue#14468: constant load, and replicas oscillate between 2 and 1."""
    report = two_hours(name)
    assert len(report.rollout.batches) > 40
    assert switches_after_the_first(report) <= 1
    assert report.rollout.lost == 0


def test_constant_load_for_a_few_batches_is_at_most_one_switch_after_the_first():
    """dynamo#9294, small enough for every run."""
    report = simulated("pearl", world=steady(trajectories=8), horizon_s=400.0)
    assert report.decisions > 6
    assert switches_after_the_first(report) <= 1


THRIFTY = """
  params: {tokens_per_worker: {value: 8}}
  constraints:
    - {name: memory, require: B <= tokens_per_worker * (N_C + N_P + N_D)}
  objective:
    tiers:
      - {name: workers, minimize: N_C + N_P + N_D}
"""


@pytest.mark.parametrize("solver", EXACT)
def test_a_shrink_is_refused_where_the_survivors_would_exceed_the_memory(tmp_path, solver):
    """dynamo#9294: 32 trajectories at 8 per worker need four workers, however much one would rather have fewer."""
    predictor = TablePredictor(colocated=dict.fromkeys(range(1, 5), 100_000))
    kept = deliberate(situation(RESERVED), written(tmp_path, THRIFTY), predictor=predictor, solver=resolve(solver))
    assert (kept.decision.outcome, kept.decision.counts.label()) == (Outcome.KEEP, "4C")
    roomy = written(tmp_path, THRIFTY.replace("value: 8", "value: 16"))
    shrunk = deliberate(situation(RESERVED), roomy, predictor=predictor, solver=resolve(solver))
    assert shrunk.decision.counts.label() == "2C"


@pytest.mark.slow
@pytest.mark.parametrize("period_s", [60.0, 240.0, 900.0])
def test_oscillating_availability_makes_no_more_mode_changes_than_the_cooldown_admits(period_s):
    """verl#7665. A cooldown of two rollout steps admits one optional change in two batches: horizon/(2·batch) + 1."""
    horizon_s = 1800.0
    trace = oscillate(low_nodes=4, high_nodes=8, period_s=period_s, horizon_s=horizon_s, grace_s=20.0)
    report = simulated("pearl", horizon_s=horizon_s, trace=trace)
    edges = 2 * horizon_s / period_s
    assert report.switches[Change.MODE] <= horizon_s / (2 * fmean(report.rollout.makespans_s)) + 1
    assert report.switches[Change.MODE] <= 2, "what was measured: 1"
    assert report.switches[Change.RATIO] <= edges / 2
    assert report.rollout.lost == 0


CHURN = """
  params: {most: {value: 8}}
  constraints:
    - {name: limit_churn, require: role_changes + adds + removes <= most}
  objective:
    tiers:
      - {name: makespan, minimize: T}
      - {name: churn, minimize: role_changes + adds + removes}
"""


def test_a_long_way_is_gone_in_bounded_steps_and_not_past_the_goal(tmp_path):
    """verl#7665: a controller fell from 1024 to 8 at once."""
    rules = written(tmp_path, CHURN)
    predictor = TablePredictor(colocated={n: 100_000 + 1_000 * abs(n - 8) for n in range(1, 65)})
    at = situation(workers(Zone.RESERVED, 64, Role.COLOCATED))
    sizes = [64]
    while len(sizes) < 20:
        tick = deliberate(at, rules, predictor=predictor, solver=resolve("cpsat"))
        if tick.plan.empty:
            break
        at = replace(at, state=apply_plan(at.state, tick.plan))
        sizes.append(at.state.counts.serving)
    assert sizes == [64, 56, 48, 40, 32, 24, 16, 8]


# -- what is counted, and what is emitted --------------------------------------------------------------------------


def test_gpus_of_large_workers_count_and_the_budget_holds():
    """aiconfigurator#1476: an 8-GPU worker was counted as one."""
    assert count_gpus(workers(Zone.RESERVED, 3, Role.COLOCATED, gpus=8)) == 24
    with pytest.raises(InputError, match="36 GPUs; expected at most 28"):
        pearl.solve("qwen3-8b-swe", event="gpus_added:8;node=spot-9")
    world = pearl.load_scenario("qwen3-8b-swe")
    assert count_gpus(situation_of(world).state.workers) == world.max_gpus == 28


WORLDS = ("small-4gpu", "reclaim", "qwen3-8b-swe")


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("scenario", WORLDS)
def test_emitted_targets_are_the_solved_ones(scenario, solver):
    """dynamo#12774: a target was computed and then discarded."""
    result = pearl.solve(scenario, solver=solver)
    solved = result.verdict.solution.assignment
    assert solved is not None
    counts = assignment_counts(result.verdict.problem, solved)
    after = apply_plan(situation_of(result.scenario).state, result.plan).counts
    assert (after.colocated, after.prefill, after.decode, after.borrowed) == (
        counts.colocated,
        counts.prefill,
        counts.decode,
        counts.borrowed,
    )
    assert result.decision.counts == counts
    assert {(g, r): n for g, r, n in result.decision.targets} == dict(result.verdict.assignment)


@pytest.mark.parametrize("solver", EXACT)
def test_workers_in_transition_are_pinned(tmp_path, solver):
    """dynamo#9774: a decision in the middle of a transition turned workers around."""
    moving = tuple(replace(w, status=Status.TRANSITIONING) for w in RESERVED[:2])
    predictor = TablePredictor(colocated=dict.fromkeys(range(1, 5), 400_000), pairs={(2, 2): 1_000})
    at = situation(moving, RESERVED[2:])
    tick = deliberate(at, gated_policy(tmp_path), predictor=predictor, solver=resolve(solver))
    touched = {getattr(step, "worker", None) for step in tick.plan.steps}
    assert not touched & {w.id for w in moving}
    done = replace(at, state=ClusterState(workers=RESERVED))
    later = deliberate(done, gated_policy(tmp_path), predictor=predictor, solver=resolve(solver))
    assert later.decision.counts.label() == "2P2D"


class ByHand:
    """Stub: an executor that carries steps out at once, and a state that an operator may edit between ticks."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    def observe(self) -> ClusterState:
        return self.state

    def apply(self, step: Step) -> None:
        names = {*getattr(step, "workers", ()), getattr(step, "worker", "")}
        self.state = self.state.with_workers(advance(w, step) if w.id in names else w for w in self.state.workers)

    def cancel_pending(self) -> None:
        pass

    def now_s(self) -> float:
        return 0.0

    busy = False


@pytest.mark.parametrize("role", [Role.INACTIVE, Role.PREFILL, Role.DECODE])
def test_a_state_that_was_edited_by_hand_is_brought_back_by_the_next_tick(tmp_path, role):
    """dynamo#4420: replicas that were edited by hand left the planner in a deadlock."""
    at = situation(RESERVED)
    world = ByHand(at.state)
    loop = ElasticScheduler(
        policy=gated_policy(tmp_path),
        predictor=TablePredictor(colocated={4: 100_000}),
        solver=resolve("cpsat"),
        executor=world,
        clock=world,
        situate=lambda state, _now_s, changes: replace(at, state=state, changes=changes),
        note=lambda *_: None,
    )
    loop.on_event(Event(kind=EventKind.BATCH_STARTED))
    edited = replace(RESERVED[0], role=role, status=Status.INACTIVE if role is Role.INACTIVE else Status.ACTIVE)
    world.state = world.state.with_workers((edited, *RESERVED[1:]))
    loop.on_event(Event(kind=EventKind.BATCH_STARTED))
    assert world.state.counts.label() == "4C"


# -- infeasible ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_infeasible_has_its_exit_code_and_names_what_blocks_and_by_how_much(capsys, form):
    """aiconfigurator: an infeasible target ended as 'best experiment chosen', an empty table and exit code 0."""
    assert run(["solve", "infeasible-kv", "--format", form]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    if form == "table":
        assert "kv_capacity" in out
        assert re.search(r"add \d+ preemptible worker\(s\): \d+", out)
        return
    data = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert data["decision"]["outcome"] == "infeasible"
    assert {"kv_capacity", "kv_capacity_colo"} & {rule["name"] for rule in data["diagnosis"]["conflict"]}
    added = next(fix for fix in data["diagnosis"]["resources"] if fix["kind"] == "add_workers")
    assert added["amount"] > 0
    assert data["plan"]["steps"] == []


@pytest.mark.parametrize("value", ["-5", "-5 tokens", "nan", "many"])
def test_a_length_that_is_none_is_refused_at_its_place(tmp_path, capsys, value):
    """aiconfigurator: `--isl -5` leaked the cast error of a library."""
    shipped = Path(pearl.load_scenario("small-4gpu").file)
    path = tmp_path / "s.yaml"
    text = shipped.read_text(encoding="utf-8")
    path.write_text(text.replace("first_prompt_tokens: 2000", f"first_prompt_tokens: {value}"), encoding="utf-8")
    assert run(["solve", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {path}:")
    assert "first_prompt_tokens" in err


# -- modes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pair_ms", "mode"), [(100_000, Mode.COLOCATED), (80_000, Mode.DISAGGREGATED)])
def test_disaggregation_must_win_in_prediction(tmp_path, pair_ms, mode):
    """dynamo#3774, sglang#24488: disaggregation was slower than colocation."""
    predictor = TablePredictor(colocated={4: 100_000}, pairs={(2, 2): pair_ms})
    tick = deliberate(situation(RESERVED), gated_policy(tmp_path), predictor=predictor, solver=resolve("cpsat"))
    assert tick.decision.mode is mode


def test_disaggregation_is_given_up_when_measurement_disagrees(tmp_path):
    """dynamo#3774: predicted at 80 s against 100 s, and measured at half as much again."""
    pool = (*workers(Zone.RESERVED, 2, Role.PREFILL), *workers(Zone.RESERVED, 2, Role.DECODE))
    predictor = TablePredictor(colocated={4: 100_000}, pairs={(2, 2): 80_000})

    def decided(**measured: object) -> Mode | None:
        at = situation(pool, **measured)
        return deliberate(at, gated_policy(tmp_path), predictor=predictor, solver=resolve("cpsat")).decision.mode

    assert decided() is Mode.DISAGGREGATED
    assert decided(corrections={Mode.DISAGGREGATED: 1.5}) is Mode.COLOCATED


def test_configurations_are_compared_at_equal_engine_settings_only(tmp_path, capsys):
    """sglang-omni#1599: engine flags differed between the arms that were compared."""
    shipped = Path(pearl.load_scenario("qwen3-8b-swe").file)
    path = tmp_path / "s.yaml"
    text = shipped.read_text(encoding="utf-8").replace("tensor_parallel: 1", "tensor_parallel: 2")
    path.write_text(text, encoding="utf-8")
    assert run(["solve", str(path)]) == 2
    assert "step times of one tensor-parallel size say nothing of another" in capsys.readouterr().err


def test_the_best_configuration_moves_with_the_workload():
    """PEARL 6.4, sglang-omni#1760: nothing is tuned to one workload."""
    world = steady(trajectories=64)
    assert world.workload is not None
    best = []
    for share in (0.25, 1.0, 4.0):
        load = replace(world.workload, output_tokens=world.workload.output_tokens.scaled(share))
        tables = get_predictor("bubble").tables(load, world.engine, workers=12)
        best.append(min((tables.makespan_ms(Counts(prefill=p, decode=12 - p)), p) for p in range(1, 12))[1])
    assert best == sorted(best, reverse=True), "longer answers never ask for more prefill workers"
    assert len(set(best)) > 1


# -- no data -------------------------------------------------------------------------------------------------------


def test_stale_data_keeps_and_counts(tmp_path):
    """aibrix#1713, llm-d-autoscaling#380: missing telemetry was read as zero load."""
    at: Situation = situation(RESERVED, workload=None)
    predictor = TablePredictor(colocated={1: 1, 4: 100_000})
    ticks = [deliberate(at, gated_policy(tmp_path), predictor=predictor, solver=resolve("cpsat")) for _ in range(3)]
    assert sum(r.code is ReasonCode.NO_DATA for tick in ticks for r in tick.decision.reasons) == 3
    assert all(tick.plan.empty for tick in ticks)


# -- nothing is lost -----------------------------------------------------------------------------------------------


def spot_run(seed: int):
    """The real scheduler on a market that changes twice a minute, with training GPUs to borrow and to return."""
    grace_s = (0.0, 5.0, 30.0)[seed % 3]
    market = SpotMarket(max_nodes=8, abundance=0.5, changes_per_h=120, horizon_s=400.0, grace_s=grace_s, burst=0.4)
    world = situation_of(pearl.load_scenario("qwen3-8b-swe"))
    assert world.workload is not None
    rules = pearl.load_policy("pearl")
    return run_experiment(
        Experiment(
            world=replace(world, workload=replace(world.workload, trajectories=6)),
            policy=rules,
            predictor=get_predictor("bubble"),
            solver=choose_solver(rules, "enumerate"),
            training=TRAINING,
            horizon_s=400.0,
            trace=generate(market, seed=seed),
            seed=seed,
        )
    )


def assert_nothing_lost(seed: int) -> int:
    report = spot_run(seed)
    begun = sum(batch.trajectories for batch in report.rollout.batches)
    assert report.rollout.lost == 0, seed
    assert report.rollout.finished + report.rollout.in_flight == begun, seed
    assert any(r.what is Happening.DECISION for r in report.log)
    return report.rollout.tally.interruptions


def test_nothing_is_lost_with_the_scheduler_in_the_loop():
    assert assert_nothing_lost(0) >= 0


@pytest.mark.slow
def test_nothing_is_lost_over_a_hundred_markets_with_the_scheduler_in_the_loop():
    """With tests/sim/test_rollout.py, which takes 1,000 schedules of foolish plans, over 1,000 schedules in all."""
    assert sum(assert_nothing_lost(seed) for seed in range(100)) > 100
