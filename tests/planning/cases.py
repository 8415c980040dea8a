"""Random states with a random assignment of their groups, and small constructors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st

from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.engine import TransitionCosts
from pearl.core.grouping import WorkerGroup, current_role, group_workers
from pearl.core.plan import Plan
from pearl.core.problem import Assignment
from pearl.planning import make_plan

COSTS = TransitionCosts()
PURE_MODES = ((Role.COLOCATED, Role.INACTIVE), (Role.PREFILL, Role.DECODE, Role.INACTIVE))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A state, its groups and an assignment of them."""

    state: ClusterState
    groups: tuple[WorkerGroup, ...]
    assignment: Assignment

    def plan(self) -> Plan:
        return make_plan(self.state, self.groups, self.assignment, COSTS)


def worker(
    name: str,
    role: Role = Role.COLOCATED,
    zone: Zone = Zone.RESERVED,
    *,
    status: Status | None = None,
    started: bool = True,
    leave_s: float | None = None,
    must_leave: bool = False,
    risk: float = 0.0,
    node: str = "n",
) -> Worker:
    idle = role is Role.INACTIVE
    return Worker(
        id=name,
        node=node,
        zone=zone,
        role=role,
        status=status or (Status.INACTIVE if idle else Status.ACTIVE),
        started=started,
        must_leave=must_leave or leave_s is not None,
        leave_within_s=leave_s,
        reclaim_probability=risk,
    )


# Made once: to make a strategy takes as long as to draw from it.
_STARTED = st.sampled_from((True, True, True, False))
_STATUS = st.sampled_from((Status.ACTIVE, Status.ACTIVE, Status.INACTIVE, Status.TRANSITIONING))
_ROLE, _ZONE = st.sampled_from(Role), st.sampled_from(Zone)
_MUST_LEAVE = st.sampled_from((False, False, False, True))
_RISK = st.sampled_from((0.0, 0.2, 0.4))
_NODE = st.sampled_from(("n1", "n2"))


def drawn_worker(draw: st.DrawFn, name: str) -> Worker:
    started = draw(_STARTED)
    status = draw(_STATUS)
    if not started and status is Status.ACTIVE:
        status = Status.INACTIVE
    role = draw(_ROLE)
    return worker(
        name,
        role if status is not Status.INACTIVE else Role.INACTIVE,
        draw(_ZONE),
        status=status,
        started=started,
        must_leave=draw(_MUST_LEAVE),
        leave_s=None,
        risk=draw(_RISK),
        node=draw(_NODE),
    )


@st.composite
def cases(draw: st.DrawFn, max_workers: int = 16, modes: tuple[tuple[Role, ...], ...] = (tuple(Role),)) -> Case:
    """Free workers take a role out of one entry of `modes`."""
    allowed = draw(st.sampled_from(modes))
    size = draw(st.integers(0, max_workers))
    workers = tuple(drawn_worker(draw, f"w{i}") for i in range(size))
    state = ClusterState(workers=workers, epoch=draw(st.integers(0, 3)))
    groups = group_workers(state, by_node=draw(st.booleans()), by_risk=draw(st.booleans()))
    assignment: Counter[tuple[str, Role]] = Counter()
    for entry in groups:
        targets = [role for role in entry.group.targets if role in allowed] or entry.group.targets
        target = st.sampled_from(targets)
        for _ in range(entry.group.size):
            assignment[entry.group.id, draw(target)] += 1
    return Case(state=state, groups=groups, assignment=assignment)


def own_assignment(groups: tuple[WorkerGroup, ...]) -> Assignment:
    """What the workers do already; those that must leave become inactive."""
    return {(g.group.id, Role.INACTIVE if g.group.leaving else g.group.role): g.group.size for g in groups}


def one_group_per_role(state: ClusterState, **targets: int) -> Case:
    """A case whose free workers are one pool, with target counts by role name; pinned and leaving ones stay put."""
    groups = group_workers(state, by_node=False, by_risk=False)
    wanted = [role for role in Role for _ in range(targets.get(role.value, 0))]
    assignment: Counter[tuple[str, Role]] = Counter()
    for entry in groups:
        for _ in range(entry.group.size):
            role = entry.group.targets[0] if len(entry.group.targets) == 1 else wanted.pop()
            assignment[entry.group.id, role] += 1
    assert not wanted
    return Case(state=state, groups=groups, assignment=assignment)


def roles(state: ClusterState) -> Counter[Role]:
    return Counter(Role.INACTIVE if w.must_leave else current_role(w) for w in state.workers)


def chosen_roles(case: Case) -> Counter[Role]:
    total: Counter[Role] = Counter()
    for (_, role), number in case.assignment.items():
        total[role] += number
    return total
