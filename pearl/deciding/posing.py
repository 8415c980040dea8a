"""Posing: a policy, a situation and a predictor become a decision problem."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.core.cluster import Counts, Role, Zone, count_workers
from pearl.core.facts import BoundPolicy
from pearl.core.grouping import WorkerGroup, group_workers
from pearl.core.problem import (
    UNREACHABLE_MS,
    Assignment,
    BorrowTerms,
    DecisionProblem,
    Hurdle,
    MakespanTables,
)
from pearl.core.situation import Situation
from pearl.core.workload import Workload
from pearl.deciding.correction import corrected
from pearl.deciding.facts import best_makespan_ms, gather_facts, stay_makespan_ms
from pearl.makespan.protocol import Predictor
from pearl.policy.bind import bind_policy
from pearl.policy.model import Policy


@dataclass(frozen=True, kw_only=True)
class Posed:
    """A decision in the making: everything that was derived before any solver ran."""

    situation: Situation
    workload: Workload
    policy: Policy
    predictor: Predictor
    groups: tuple[WorkerGroup, ...]
    tables: MakespanTables
    bound: BoundPolicy
    stay: Assignment
    """Surviving workers in today's roles."""
    stay_counts: Counts
    stay_ms: int
    """Predicted makespan of staying; UNREACHABLE_MS where the survivors cannot serve."""

    @property
    def lendable(self) -> int:
        """Overlap workers that could serve."""
        return sum(
            g.group.size for g in self.groups if g.group.zone is Zone.OVERLAP and g.group.targets != (Role.INACTIVE,)
        )

    @property
    def borrow_limit(self) -> int:
        """Most overlap workers that the policy lets serve; 0 where it does not borrow."""
        rules = self.bound.borrow
        if not rules.enabled:
            return 0
        return self.lendable if rules.max_workers is None else min(rules.max_workers, self.lendable)

    def problem(
        self, *, borrow: BorrowTerms, hurdle: Hurdle | None = None, excluded: tuple[Counts, ...] = ()
    ) -> DecisionProblem:
        """The problem under the given gates."""
        return DecisionProblem(
            groups=tuple(g.group for g in self.groups),
            tables=self.tables,
            tiers=self.bound.tiers,
            rules=self.bound.rules,
            modes=self.bound.modes,
            current_mode=self.situation.state.counts.mode,
            hurdle=hurdle,
            borrow=borrow,
            excluded=excluded,
        )


def pose(situation: Situation, workload: Workload, policy: Policy, predictor: Predictor) -> Posed:
    """Group the workers, predict every count, and bind the policy to the result."""
    state = situation.state
    groups = group_workers(state, by_node="node" in policy.dimensions, by_risk="risk" in policy.dimensions)
    able = sum(g.group.size for g in groups if g.group.targets != (Role.INACTIVE,))
    tables = corrected(predictor.tables(workload, situation.engine, workers=max(able, 1)), situation.corrections)
    stay_counts = count_workers(state.workers)
    stay_ms = stay_makespan_ms(tables, stay_counts)
    known_stay_ms = best_makespan_ms(tables) if stay_ms >= UNREACHABLE_MS else stay_ms
    facts = gather_facts(situation, workload, groups=groups, tables=tables, stay_ms=known_stay_ms)
    return Posed(
        situation=situation,
        workload=workload,
        policy=policy,
        predictor=predictor,
        groups=groups,
        tables=tables,
        bound=bind_policy(policy, facts),
        stay=stay_assignment(groups),
        stay_counts=stay_counts,
        stay_ms=stay_ms,
    )


def stay_assignment(groups: tuple[WorkerGroup, ...]) -> Assignment:
    """Each surviving worker in today's role, each leaving one inactive."""
    return {
        (g.group.id, Role.INACTIVE if g.group.leaving else g.group.role): g.group.size for g in groups if g.group.size
    }
