from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings

from pearl.core.cluster import SERVING_ROLES, ClusterState, Role, Status, Worker, Zone
from pearl.core.grouping import current_role, group_workers
from pearl.core.plan import (
    Activate,
    AdmitGroup,
    Borrow,
    ChangeRole,
    Deactivate,
    Drain,
    Plan,
    Return,
    Start,
    Step,
    Stop,
)
from pearl.planning import StalePlanError, advance, apply_plan, estimate_s, make_plan, touched
from pearl.planning.rolling import Service, service
from tests.planning.cases import (
    COSTS,
    PURE_MODES,
    Case,
    cases,
    chosen_roles,
    one_group_per_role,
    own_assignment,
    roles,
    worker,
)


def changed(case: Case, plan: Plan) -> dict[str, tuple[Role, Role]]:
    """Free workers that the plan moves to another role."""
    after = apply_plan(case.state, plan).by_id
    pairs = {w.id: (current_role(w), current_role(after[w.id])) for w in case.state.workers if not w.must_leave}
    return {name: pair for name, pair in pairs.items() if pair[0] is not pair[1]}


def fewest_changes(case: Case) -> int:
    """Brute force: every way to hand the chosen roles of a pool to its workers."""
    today: defaultdict[tuple[object, ...], list[Role]] = defaultdict(list)
    target: defaultdict[tuple[object, ...], list[Role]] = defaultdict(list)
    for entry in case.groups:
        today[entry.group.pool] += [] if entry.group.leaving else [entry.group.role] * entry.group.size
        for role in entry.group.targets:
            number = case.assignment.get((entry.group.id, role), 0)
            target[entry.group.pool] += [] if entry.group.leaving else [role] * number
    return sum(
        min(sum(a is not b for a, b in zip(now, order, strict=True)) for order in itertools.permutations(target[pool]))
        for pool, now in today.items()
    )


def prefixes(state: ClusterState, steps: tuple[Step, ...]) -> Iterator[ClusterState]:
    for step in steps:
        by_id = dict(state.by_id)
        for name in touched(step):
            by_id[name] = advance(by_id[name], step)
        state = replace(state, workers=tuple(by_id.values()))
        yield state


def serving(state: ClusterState) -> Counter[Role]:
    """Workers that take requests at this moment."""
    return Counter(w.role for w in state.workers if w.status is Status.ACTIVE and w.role is not Role.INACTIVE)


@pytest.mark.slow
@given(case=cases(max_workers=6))
@settings(max_examples=200, deadline=None)
def test_no_plan_for_the_same_counts_changes_fewer(case: Case) -> None:
    plan = case.plan()
    assert len(changed(case, plan)) == fewest_changes(case)
    role_changes = [step for step in plan.steps if isinstance(step, ChangeRole)]
    both = [pair for pair in changed(case, plan).values() if Role.INACTIVE not in pair]
    assert len(role_changes) == len(both)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_the_result_has_the_chosen_counts(case: Case) -> None:
    after = apply_plan(case.state, case.plan())
    assert roles(after) == chosen_roles(case)
    for entry in case.groups:
        if entry.group.leaving:
            assert all(after.by_id[name].role is Role.INACTIVE for name in entry.workers)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_the_plan_of_what_is_already_so_is_empty(case: Case) -> None:
    stays = replace(case.state, workers=tuple(w for w in case.state.workers if not w.must_leave))
    groups = group_workers(stays, by_node=True, by_risk=True)
    assert make_plan(stays, groups, own_assignment(groups), COSTS) == Plan(from_epoch=stays.epoch)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_after_a_plan_there_is_nothing_left_to_do(case: Case) -> None:
    after = apply_plan(case.state, case.plan())
    groups = group_workers(after, by_node=True, by_risk=True)
    assert make_plan(after, groups, own_assignment(groups), COSTS).empty


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_a_plan_or_a_step_applied_twice_changes_nothing_the_second_time(case: Case) -> None:
    plan = case.plan()
    once = apply_plan(case.state, plan)
    again = apply_plan(replace(once, epoch=plan.from_epoch), plan)
    assert again.workers == once.workers
    twice = tuple(itertools.chain.from_iterable((step, step) for step in plan.steps))
    assert apply_plan(case.state, replace(plan, steps=twice)).workers == once.workers


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_the_plan_does_not_depend_on_the_order_of_workers(case: Case) -> None:
    backwards = replace(case.state, workers=case.state.workers[::-1])
    assert make_plan(backwards, case.groups, case.assignment, COSTS) == case.plan()


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_mandatory_steps_come_first(case: Case) -> None:
    leaving = {w.id for w in case.state.workers if w.must_leave}
    mandatory = [leaving.issuperset(touched(step)) for step in case.plan().steps]
    assert mandatory == sorted(mandatory, reverse=True)
    for step in case.plan().steps:
        if leaving.issuperset(touched(step)):
            assert isinstance(step, Drain | Return | Stop)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_somebody_serves_throughout_where_somebody_may(case: Case) -> None:
    """The worker that only one, itself changing role, could replace is the one exception: there is nobody else."""
    plan = case.plan()
    stays = [w for w in case.state.workers if not w.must_leave and serving(ClusterState(workers=(w,)))]
    moved = changed(case, plan)
    survivor = any(w.id not in moved for w in stays)
    two = len([w for w in stays if moved.get(w.id, (None, Role.DECODE))[1] is not Role.INACTIVE]) > 1
    if survivor or two:
        assert all(serving(state) for state in prefixes(case.state, plan.steps))


def lowest_service(state: ClusterState, steps: tuple[Step, ...]) -> Service:
    return min((service(serving(s)) for s in prefixes(state, steps)), default=Service.WHOLE)


@pytest.mark.slow
@given(case=cases(max_workers=6, modes=PURE_MODES))
@settings(max_examples=200, deadline=None)
def test_no_other_order_of_role_changes_serves_more(case: Case) -> None:
    stays = tuple(w for w in case.state.workers if not w.must_leave)
    names = {w.id for w in stays}
    steps = tuple(step for step in case.plan().steps if names.issuperset(touched(step)))
    state = replace(case.state, workers=stays)
    changes = [step for step in steps if isinstance(step, ChangeRole)]
    if not changes or service(serving(state)) is not Service.WHOLE:
        return
    moving = {step.worker for step in changes}
    others = [step for step in steps if not moving.issuperset(touched(step))]
    joins = tuple(step for step in others if isinstance(step, Start | Activate | Borrow | AdmitGroup))
    leaves = tuple(step for step in others if step not in joins)
    best = max(
        lowest_service(
            state,
            (*joins, *(s for change in order for s in (Drain(worker=change.worker, estimated_s=0), change)), *leaves),
        )
        for order in itertools.permutations(changes)
    )
    assert lowest_service(state, steps) == best


def kinds(plan: Plan) -> list[tuple[str, str]]:
    return [(type(step).__name__, ",".join(touched(step))) for step in plan.steps]


def state_of(*members: Worker) -> ClusterState:
    return ClusterState(workers=members, epoch=7)


def test_gpus_under_notice_go_first_and_the_soonest_deadline_leads() -> None:
    state = state_of(
        worker("late", zone=Zone.PREEMPTIBLE, leave_s=30),
        worker("whenever", zone=Zone.PREEMPTIBLE, must_leave=True),
        worker("trainer", zone=Zone.OVERLAP, leave_s=1),
        worker("asleep", Role.INACTIVE, Zone.OVERLAP, leave_s=1),
        worker("idle", Role.INACTIVE, Zone.PREEMPTIBLE, leave_s=40),
        worker("empty", Role.INACTIVE, Zone.PREEMPTIBLE, started=False, leave_s=1),
        worker("stays"),
        worker("spare", Role.INACTIVE),
    )
    plan = one_group_per_role(state, colocated=2).plan()
    assert kinds(plan) == [
        ("Drain", "trainer"),
        ("Drain", "late"),
        ("Drain", "whenever"),
        ("Return", "trainer"),
        ("Stop", "late"),
        ("Stop", "idle"),
        ("Stop", "whenever"),
        ("Activate", "spare"),
    ]
    assert [(s.deadline_s, s.estimated_s) for s in plan.steps if isinstance(s, Drain)] == [(1, 1), (30, 2), (None, 2)]


def test_a_mode_change_rolls_and_keeps_whole_trajectories_served() -> None:
    state = state_of(*(worker(f"w{i}") for i in range(8)))
    plan = one_group_per_role(state, prefill=3, decode=5).plan()
    runs = [(name, len(list(group))) for name, group in itertools.groupby(kinds(plan), key=lambda pair: pair[0])]
    assert runs[:2] == [("Drain", 4), ("ChangeRole", 4)]
    assert lowest_service(state, plan.steps) is Service.WHOLE
    assert estimate_s(plan) == pytest.approx(len(runs) // 2 * (COSTS.drain_s + COSTS.change_role_s))


def test_the_last_old_worker_waits_for_the_new_ones() -> None:
    state = state_of(
        worker("old"), worker("new", Role.INACTIVE, Zone.PREEMPTIBLE, started=False), worker("lent", zone=Zone.OVERLAP)
    )
    groups = group_workers(state, by_node=False, by_risk=False)
    assignment = {
        ("reserved/colocated", Role.PREFILL): 1,
        ("preemptible/inactive/new", Role.DECODE): 1,
        ("overlap/colocated", Role.INACTIVE): 1,
    }
    plan = make_plan(state, groups, assignment, COSTS)
    assert kinds(plan) == [
        ("Start", "new"),
        ("Drain", "old"),
        ("ChangeRole", "old"),
        ("AdmitGroup", "new"),
        ("Drain", "lent"),
        ("Return", "lent"),
    ]
    alone = replace(state, workers=state.workers[:2])
    groups = group_workers(alone, by_node=False, by_risk=False)
    plan = make_plan(alone, groups, {k: n for k, n in assignment.items() if "overlap" not in k[0]}, COSTS)
    assert kinds(plan) == [("Start", "new"), ("AdmitGroup", "new"), ("Drain", "old"), ("ChangeRole", "old")]
    assert estimate_s(plan) == pytest.approx(COSTS.start_s + COSTS.admit_s + COSTS.drain_s + COSTS.change_role_s)


def test_an_early_role_change_does_not_take_the_role_that_a_later_one_needs() -> None:
    """The prefill worker could change at once, and the last colocated one would then leave no prefill behind."""
    state = state_of(worker("c"), worker("p", Role.PREFILL, Zone.OVERLAP), worker("new", Role.INACTIVE, started=False))
    groups = group_workers(state, by_node=False, by_risk=False)
    assignment = {
        ("reserved/colocated", Role.PREFILL): 1,
        ("overlap/prefill", Role.DECODE): 1,
        ("reserved/inactive/new", Role.DECODE): 1,
    }
    plan = make_plan(state, groups, assignment, COSTS)
    assert kinds(plan)[:2] == [("Start", "new"), ("AdmitGroup", "new")]
    assert lowest_service(state, plan.steps) is Service.WHOLE


def test_those_likely_to_be_reclaimed_are_given_up_first() -> None:
    state = state_of(
        worker("safe", zone=Zone.PREEMPTIBLE),
        worker("risky", zone=Zone.PREEMPTIBLE, risk=0.9),
        worker("middling", zone=Zone.PREEMPTIBLE, risk=0.5),
        worker("spare-risky", Role.INACTIVE, Zone.PREEMPTIBLE, risk=0.4),
    )
    assert kinds(one_group_per_role(state, colocated=1, inactive=3).plan()) == [
        ("Drain", "risky"),
        ("Drain", "middling"),
        ("Deactivate", "risky"),
        ("Deactivate", "middling"),
    ]


def test_a_plan_for_another_epoch_is_refused() -> None:
    state = state_of(worker("w"), worker("v", Role.INACTIVE))
    plan = one_group_per_role(state, colocated=2).plan()
    with pytest.raises(StalePlanError, match="epoch 7, and the state is at epoch 8"):
        apply_plan(apply_plan(state, plan), plan)
    with pytest.raises(StalePlanError, match="names worker 'v'"):
        apply_plan(replace(state, workers=state.workers[:1]), plan)


def test_a_pinned_worker_is_left_alone() -> None:
    state = state_of(worker("busy", Role.DECODE, status=Status.TRANSITIONING), worker("w", Role.DECODE))
    plan = one_group_per_role(state, prefill=1).plan()
    assert {name for step in plan.steps for name in touched(step)} == {"w"}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ({("reserved/colocated", Role.DECODE): 2}, "places 2 workers of 'reserved/colocated', which has 1"),
        ({}, "places 0 workers"),
        ({("reserved/prefill", Role.DECODE): 1}, "'reserved/prefill' the role 'decode'"),
    ],
)
def test_an_assignment_that_does_not_fit_is_refused(assignment: dict[tuple[str, Role], int], message: str) -> None:
    state = state_of(worker("w"))
    groups = group_workers(state, by_node=False, by_risk=False)
    with pytest.raises(ValueError, match=message):
        make_plan(state, groups, assignment, COSTS)
    with pytest.raises(ValueError, match="not those of this state"):
        make_plan(state_of(worker("other")), groups, {("reserved/colocated", Role.COLOCATED): 1}, COSTS)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_steps_fit_the_zone_of_their_worker(case: Case) -> None:
    for step in case.plan().steps:
        zones = {case.state.by_id[name].zone for name in touched(step)}
        if isinstance(step, Borrow | Return):
            assert zones == {Zone.OVERLAP}
        if isinstance(step, Activate | Deactivate | Stop):
            assert Zone.OVERLAP not in zones
        if isinstance(step, Start | Activate | Borrow):
            assert step.role in SERVING_ROLES
