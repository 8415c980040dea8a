from __future__ import annotations

import pytest
from hypothesis import given, settings

from pearl.core.cluster import ClusterState, Role, Status, Zone
from pearl.core.event import Event, EventKind
from pearl.core.grouping import group_workers
from pearl.core.plan import Activate, AdmitGroup, Borrow, ChangeRole, Deactivate, Drain, Return, Start, Stop
from pearl.core.ports import Clock, Executor
from pearl.planning import make_plan
from pearl.planning.apply import apply_plan
from pearl.sim.executor import SimClock, SimExecutor
from pearl.sim.log import Happening, to_jsonl
from tests.planning.cases import Case, cases
from tests.sim.sim_cluster import COSTS, Bench, pool_of, worker
from tests.sim.sim_samples import profile, turn

LONG = (turn(1000, 2000),)
"""About eleven seconds of decoding."""


def drain(name: str) -> Drain:
    return Drain(worker=name, estimated_s=2.0)


def change(name: str, after: Role) -> ChangeRole:
    return ChangeRole(worker=name, before=Role.COLOCATED, after=after, estimated_s=0.5)


def kinds(bench: Bench, what: Happening) -> list[str]:
    return [str(record.data["step"]) for record in bench.cluster.log if record.what is what]


@given(case=cases(max_workers=8))
@settings(max_examples=25, deadline=None)
def test_a_plan_leads_to_the_state_that_planning_says(case: Case):
    bench = Bench(case.state)
    state = bench.cluster.state
    groups = group_workers(state, by_node=False, by_risk=False)
    goals = iter(sorted(case.assignment.elements()))
    assignment: dict = {}
    for entry in groups:
        for _ in range(entry.group.size):
            wanted = next(goals)[1]
            target = wanted if wanted in entry.group.targets else entry.group.targets[0]
            key = (entry.group.id, target)
            assignment[key] = assignment.get(key, 0) + 1
    plan = make_plan(state, groups, assignment, COSTS)
    expected = apply_plan(state, plan)
    for step in plan.steps:
        bench.cluster.apply(step)
        bench.cluster.apply(step)
    bench.run()
    assert bench.cluster.state.workers == expected.workers
    assert not bench.cluster.in_transition
    serving = {w.id for w in expected.workers if w.status is Status.ACTIVE and w.role is not Role.INACTIVE}
    assert {seat for seat, held in bench.cluster._seats.items() if held.engine is not None} == serving
    for step in plan.steps:
        bench.cluster.apply(step)
    assert bench.run().cluster.state.workers == expected.workers, "nor does the whole plan change anything again"


def test_the_seams_are_those_of_the_scheduler():
    bench = Bench(pool_of(worker("a")))
    executor: Executor = SimExecutor(bench.cluster)
    clock: Clock = SimClock(bench.queue)
    executor.apply(Deactivate(worker="a", estimated_s=1.0))
    assert executor.observe().by_id["a"].status is Status.TRANSITIONING
    bench.run()
    assert executor.observe().by_id["a"].status is Status.INACTIVE
    assert clock.now_s() == COSTS.deactivate_s


def test_an_interrupted_turn_goes_on_elsewhere_from_the_tokens_that_are_out():
    engine = profile()
    bench = Bench(pool_of(worker("a"), worker("b")), engine)
    bench.start(LONG)
    bench.happen_at(5.0, Event(kind=EventKind.GPUS_LOST, workers=("a",)))
    bench.run()
    now, out = engine.prefill.seconds(1000), 1
    while now + engine.decode.seconds(1, 1000 + out) <= 5.0:
        now += engine.decode.seconds(1, 1000 + out)
        out += 1
    rest = engine.prefill.seconds(1000 + out) + sum(
        engine.decode.seconds(1, context) for context in range(1000 + out + 1, 3000)
    )
    assert bench.finish_s[0] == pytest.approx(5.0 + rest)
    assert bench.pool.tally.output_tokens == 2000
    assert bench.pool.tally.recomputed_tokens == 1000 + out
    assert bench.pool.tally.interruptions == 1


def test_a_drained_worker_finishes_what_it_can_and_takes_nothing_new():
    bench = Bench(pool_of(worker("a"), worker("b")))
    bench.start((turn(1000, 100, 0.2), turn(10, 10)), (turn(10, 10),))
    bench.apply_at(0.1, drain("a"), change("a", Role.COLOCATED))
    bench.run()
    assert bench.pool.tally.interruptions == 0, "half a second of work fits into the drain"
    late = Bench(pool_of(worker("a"), worker("b")))
    late.start(LONG)
    late.apply_at(1.0, drain("a"), change("a", Role.COLOCATED))
    late.run(3.1)
    assert late.pool.tally.interruptions == 1, "ten seconds do not"
    assert late.now("a") == (Role.COLOCATED, Status.TRANSITIONING)
    assert late.run().now("a") == (Role.COLOCATED, Status.ACTIVE)


def test_role_changes_carry_a_pool_from_one_mode_to_the_other_and_lose_nothing():
    bench = Bench(pool_of(*(worker(name) for name in "abcd")))
    bench.start(*[(turn(500, 300, 0.3),) * 6] * 12)
    for name, role in zip("abcd", [Role.PREFILL, Role.DECODE] * 2, strict=True):
        bench.apply_at(2.0, drain(name), change(name, role))
    bench.run()
    assert bench.cluster.state.counts.label() == "2P2D"
    assert len(bench.finish_s) == 12
    assert bench.pool.tally.output_tokens == 12 * 6 * 300
    assert bench.pool.tally.busy_s[Role.DECODE] > bench.pool.tally.busy_s[Role.PREFILL] > 0


def test_expansion_serves_after_start_and_admission_as_one_group():
    bench = Bench(pool_of(worker("a"), worker("x", Role.INACTIVE, started=False)))
    bench.happen_at(1.0, Event(kind=EventKind.GPUS_ADDED, added=(worker("y", Role.INACTIVE, started=False),)))
    for name in "xy":
        bench.apply_at(1.0, Start(worker=name, role=Role.COLOCATED, estimated_s=61.5))
    bench.apply_at(1.0, AdmitGroup(workers=("x", "y"), estimated_s=14.5))
    bench.run(1.0 + 61.5 + 14.4)
    assert bench.now("x") == bench.now("y") == (Role.COLOCATED, Status.TRANSITIONING)
    bench.run(1.0 + 61.5 + 14.6)
    assert bench.now("x") == bench.now("y") == (Role.COLOCATED, Status.ACTIVE)


@pytest.mark.parametrize("at_s", [30.0, 70.0])
def test_a_group_that_loses_a_member_is_rolled_back_whole(at_s):
    bench = Bench(pool_of(worker("a"), *(worker(n, Role.INACTIVE, started=False) for n in "xy")))
    for name in "xy":
        bench.apply_at(0.0, Start(worker=name, role=Role.COLOCATED, estimated_s=61.5))
    bench.apply_at(0.0, AdmitGroup(workers=("x", "y"), estimated_s=14.5))
    bench.happen_at(at_s, Event(kind=EventKind.GPUS_LOST, workers=("y",)))
    bench.run()
    assert bench.now("x") == (Role.INACTIVE, Status.INACTIVE)
    assert [r.what for r in bench.cluster.log].count(Happening.GROUP_ROLLED_BACK) == 1
    bench.cluster.apply(Activate(worker="x", role=Role.COLOCATED, estimated_s=1.0))
    assert bench.run().now("x") == (Role.COLOCATED, Status.ACTIVE), "its engine is up: it need not start again"


def test_borrow_and_return_take_their_time():
    bench = Bench(pool_of(worker("a"), worker("o", Role.INACTIVE, Zone.OVERLAP)))
    bench.cluster.apply(Borrow(worker="o", role=Role.COLOCATED, estimated_s=6.0))
    bench.run(5.9)
    assert bench.now("o") == (Role.COLOCATED, Status.TRANSITIONING)
    bench.run(6.1)
    assert bench.now("o") == (Role.COLOCATED, Status.ACTIVE)
    bench.apply_at(10.0, drain("o"), Return(worker="o", estimated_s=3.8))
    bench.run(13.7)
    assert bench.now("o") == (Role.INACTIVE, Status.TRANSITIONING)
    assert bench.run().now("o") == (Role.INACTIVE, Status.INACTIVE)


def test_gpus_go_when_their_grace_is_over():
    bench = Bench(pool_of(worker("a"), worker("p", zone=Zone.PREEMPTIBLE), worker("q", zone=Zone.PREEMPTIBLE)))
    bench.start(*[LONG] * 6)
    bench.happen_at(1.0, Event(kind=EventKind.RECLAIM_NOTICE, workers=("p", "q"), within_s=5.0))
    bench.apply_at(1.0, drain("q"), Stop(worker="q", estimated_s=2.0))
    bench.run(5.9)
    assert bench.now("p") == (Role.COLOCATED, Status.ACTIVE)
    assert bench.now("q") == (Role.INACTIVE, Status.INACTIVE)
    bench.run()
    assert set(bench.cluster.state.by_id) == {"a"}
    assert [event.kind for event in bench.heard] == [EventKind.RECLAIM_NOTICE, EventKind.GPUS_LOST]
    assert len(bench.finish_s) == 6


def test_the_end_of_training_takes_no_reclaim_notice_back():
    idle = [worker(name, Role.INACTIVE, Zone.OVERLAP) for name in ("kept", "taken")]
    bench = Bench(pool_of(worker("a"), *idle))
    bench.happen_at(1.0, Event(kind=EventKind.TRAINING_STARTED, within_s=10.0))
    bench.happen_at(2.0, Event(kind=EventKind.RECLAIM_NOTICE, workers=("taken",), within_s=30.0))
    bench.happen_at(3.0, Event(kind=EventKind.TRAINING_FINISHED))
    bench.happen_at(4.0, Event(kind=EventKind.TRAINING_STARTED, within_s=10.0))
    bench.run(3.5)
    told = {name: (w.must_leave, w.leave_within_s) for name, w in bench.cluster.state.by_id.items()}
    assert told == {"a": (False, None), "kept": (False, None), "taken": (True, 30.0)}
    bench.run(5.0)
    assert bench.cluster.state.by_id["taken"].leave_within_s == 30.0, "nor does the next begin change it"
    bench.run()
    assert set(bench.cluster.state.by_id) == {"a", "kept"}
    assert bench.heard[-1].workers == ("taken",)


def test_a_worker_that_comes_back_after_a_reclaim_is_lent_again():
    lent = worker("o", Role.INACTIVE, Zone.OVERLAP)
    bench = Bench(pool_of(worker("a"), lent))
    bench.happen_at(1.0, Event(kind=EventKind.RECLAIM_NOTICE, workers=("o",), within_s=1.0))
    bench.happen_at(3.0, Event(kind=EventKind.GPUS_ADDED, added=(lent,)))
    bench.happen_at(4.0, Event(kind=EventKind.TRAINING_STARTED, within_s=10.0))
    bench.happen_at(5.0, Event(kind=EventKind.TRAINING_FINISHED))
    bench.run(4.5)
    assert bench.cluster.state.by_id["o"].must_leave
    bench.run()
    assert not bench.cluster.state.by_id["o"].must_leave


def test_workers_that_are_under_notice_from_the_start_leave_in_time():
    leaving = {"must_leave": True, "leave_within_s": 4.0}
    spot, lent = worker("p", zone=Zone.PREEMPTIBLE, **leaving), worker("o", zone=Zone.OVERLAP, **leaving)
    bench = Bench(pool_of(worker("a"), spot, lent))
    bench.run(3.9)
    assert bench.now("p") == bench.now("o") == (Role.COLOCATED, Status.ACTIVE)
    bench.run()
    assert "p" not in bench.cluster.state.by_id
    assert bench.now("o") == (Role.INACTIVE, Status.INACTIVE)


def test_a_newer_plan_drops_what_has_not_begun_and_drained_workers_serve_on():
    bench = Bench(pool_of(worker("a"), worker("b")))
    bench.start(LONG, LONG)
    bench.apply_at(1.0, drain("a"), change("a", Role.PREFILL), drain("b"), change("b", Role.DECODE))
    bench.queue.at(2.0, 0, lambda _: bench.cluster.cancel_pending())
    bench.run()
    assert bench.now("a") == bench.now("b") == (Role.COLOCATED, Status.ACTIVE)
    assert bench.pool.tally.interruptions == 0
    assert kinds(bench, Happening.STEP_DROPPED) == ["ChangeRole", "Drain", "ChangeRole"]


def test_a_newer_plan_does_not_wait_for_an_expansion_under_way():
    """Draining for a reclaim, returning for the trainer: minutes would be too late."""
    bench = Bench(pool_of(worker("a"), worker("p", Role.INACTIVE, Zone.PREEMPTIBLE, started=False)))
    bench.start(LONG, LONG)
    bench.apply_at(
        0.0,
        Start(worker="p", role=Role.COLOCATED, estimated_s=COSTS.start_s),
        AdmitGroup(workers=("p",), estimated_s=COSTS.admit_s),
        drain("a"),
    )
    bench.queue.at(2.0, 0, lambda _: bench.cluster.cancel_pending())
    bench.apply_at(2.0, drain("a"), change("a", Role.PREFILL))
    bench.run(2.0 + COSTS.drain_s + COSTS.change_role_s)
    assert bench.now("a") == (Role.PREFILL, Status.ACTIVE)
    assert not bench.cluster.in_transition
    assert bench.now("p") == (Role.COLOCATED, Status.TRANSITIONING)
    bench.run(COSTS.start_s + COSTS.admit_s)
    assert bench.now("p") == (Role.COLOCATED, Status.ACTIVE)
    assert kinds(bench, Happening.GROUP_ROLLED_BACK) == []


def test_an_expansion_that_a_newer_plan_superseded_before_its_turn_is_admitted_all_the_same():
    """The group's admission was still to begin; its engine had been starting."""
    bench = Bench(pool_of(worker("a"), worker("p", Role.INACTIVE, Zone.PREEMPTIBLE, started=False)))
    bench.start(LONG, LONG)
    bench.apply_at(
        0.0,
        Start(worker="p", role=Role.COLOCATED, estimated_s=COSTS.start_s),
        drain("a"),
        AdmitGroup(workers=("p",), estimated_s=COSTS.admit_s),
    )
    for at_s in (1.0, 1.5):
        bench.queue.at(at_s, 0, lambda _: bench.cluster.cancel_pending())
    bench.run(COSTS.start_s + COSTS.admit_s)
    assert bench.now("p") == (Role.COLOCATED, Status.ACTIVE)
    assert kinds(bench, Happening.STEP_ENDED).count("AdmitGroup") == 1


def test_an_expansion_that_never_began_is_dropped_and_not_rolled_back():
    bench = Bench(pool_of(worker("a"), worker("p", Role.INACTIVE, Zone.PREEMPTIBLE, started=False)))
    bench.start(LONG, LONG)
    bench.apply_at(
        0.0,
        drain("a"),
        Start(worker="p", role=Role.COLOCATED, estimated_s=COSTS.start_s),
        AdmitGroup(workers=("p",), estimated_s=COSTS.admit_s),
    )
    bench.queue.at(1.0, 0, lambda _: bench.cluster.cancel_pending())
    bench.run()
    assert bench.now("p") == (Role.INACTIVE, Status.INACTIVE)
    assert kinds(bench, Happening.STEP_DROPPED) == ["Start", "AdmitGroup"]
    assert kinds(bench, Happening.GROUP_ROLLED_BACK) == []


def test_steps_for_workers_that_are_gone_or_must_leave_are_dropped_and_say_so():
    bench = Bench(pool_of(worker("a"), worker("p", Role.INACTIVE, Zone.PREEMPTIBLE)))
    bench.cluster.happen(Event(kind=EventKind.RECLAIM_NOTICE, workers=("p",), within_s=30.0))
    bench.cluster.apply(Activate(worker="p", role=Role.COLOCATED, estimated_s=1.0))
    bench.cluster.apply(drain("nobody"))
    assert kinds(bench, Happening.STEP_DROPPED) == ["Activate", "Drain"]


def test_nothing_serves_for_a_while_and_nothing_is_lost():
    bench = Bench(pool_of(worker("a")))
    bench.start(*[(turn(100, 400, 0.1),) * 3] * 4)
    bench.happen_at(1.0, Event(kind=EventKind.GPUS_LOST, workers=("a",)))
    bench.run(50.0)
    assert bench.pool.lost() == []
    assert len(bench.pool.live) == 4
    bench.happen_at(60.0, Event(kind=EventKind.GPUS_ADDED, added=(worker("b"),)))
    bench.run()
    assert len(bench.finish_s) == 4
    assert bench.pool.tally.output_tokens == 4 * 3 * 400


def test_new_workers_get_their_share_of_the_sessions():
    bench = Bench(pool_of(worker("a"), worker("b", Role.INACTIVE)))
    bench.start(*[(turn(100, 100, 0.5),) * 20] * 8)
    bench.apply_at(1.0, Activate(worker="b", role=Role.COLOCATED, estimated_s=1.0))
    bench.run(8.0)
    loads = [seat.engine.load for seat in bench.cluster._seats.values()]
    assert loads == [4, 4]


def test_a_weight_update_pauses_the_engines_and_drops_prefixes():
    plain, updated = Bench(pool_of(worker("a"))), Bench(pool_of(worker("a")))
    for bench in (plain, updated):
        bench.start((turn(5000, 10, 5.0), turn(10, 10)))
    updated.queue.at(2.0, 0, lambda _: updated.cluster.update_weights())
    plain.run()
    updated.run()
    assert plain.pool.tally.hit_tokens == 5009
    assert updated.pool.tally.hit_tokens == 0
    running = Bench(pool_of(worker("a")))
    running.start(LONG)
    running.queue.at(2.0, 0, lambda _: running.cluster.update_weights())
    calm = Bench(pool_of(worker("a")))
    calm.start(LONG)
    assert running.run().finish_s[0] == pytest.approx(calm.run().finish_s[0] + COSTS.sync_weights_s, abs=0.01)


def test_gpu_seconds_add_up():
    bench = Bench(pool_of(worker("a", gpus=2), worker("p", zone=Zone.PREEMPTIBLE)))
    bench.happen_at(10.0, Event(kind=EventKind.GPUS_LOST, workers=("p",)))
    bench.apply_at(20.0, Deactivate(worker="a", estimated_s=1.0))
    bench.run(100.0)
    assert bench.cluster.usage.read(100.0) == {
        (Zone.RESERVED, Role.COLOCATED, Status.ACTIVE): 40.0,
        (Zone.RESERVED, Role.INACTIVE, Status.TRANSITIONING): 2.0,
        (Zone.RESERVED, Role.INACTIVE, Status.INACTIVE): 158.0,
        (Zone.PREEMPTIBLE, Role.COLOCATED, Status.ACTIVE): 10.0,
    }


def test_the_log_is_lines_of_json_in_time_order():
    bench = Bench(ClusterState(workers=(worker("a"),)))
    bench.apply_at(1.5, Deactivate(worker="a", estimated_s=1.0))
    bench.run()
    lines = to_jsonl(bench.cluster.log).splitlines()
    assert lines[1] == '{"at_s": 1.5, "what": "step_began", "step": "Deactivate", "workers": ["a"]}'
    assert [r.at_s for r in bench.cluster.log] == sorted(r.at_s for r in bench.cluster.log)
