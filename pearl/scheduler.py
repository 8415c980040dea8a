"""The tick: observe → track → pose → solve → gate → diff → apply, pure but for its two ends.

`deliberate` is everything between them, and `ElasticScheduler` the loop around it. Simulation, replay, shadow and live
differ only in the clock and the executor passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pearl.core.cluster import ClusterState, Counts
from pearl.core.decision import Decision, Outcome, Reason, ReasonCode
from pearl.core.event import Event, EventKind
from pearl.core.grouping import group_workers
from pearl.core.plan import Plan, Step
from pearl.core.ports import Clock
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.deciding.engine import Verdict, decide
from pearl.deciding.explanation import summarise
from pearl.deciding.posing import stay_assignment
from pearl.makespan.protocol import Predictor
from pearl.planning import make_plan
from pearl.policy.model import Policy
from pearl.solving.protocol import Solver


@dataclass(frozen=True, kw_only=True)
class Tick:
    """What one pass of the loop came to; `verdict` is None where nothing was known to decide on."""

    decision: Decision
    plan: Plan
    verdict: Verdict | None = None
    repeats: bool = False
    """Whether it switches to what the tick before it decided on: that is not reached yet, and its plan is made anew."""

    @property
    def told(self) -> Decision:
        """The decision as logs and records have it: to go on towards what was decided before is a keep, no switch."""
        decision = self.decision
        if not self.repeats:
            return decision
        text = f"{decision.counts.label()} was decided on before and is not reached yet; its plan goes on"
        reason = Reason(code=ReasonCode.IN_TRANSITION, text=text)
        return replace(decision, outcome=Outcome.KEEP, reasons=(reason, *decision.reasons))


def deliberate(
    situation: Situation,
    policy: Policy,
    *,
    predictor: Predictor,
    solver: Solver,
    time_limit_s: float | None = None,
    seed: int | None = None,
    explain: bool = True,
) -> Tick:
    """Decide and plan. Workers that must leave do so whatever the outcome; all else moves only on a switch.

    Without `explain`, a keep does not say which configuration a gate turned down: that takes another solve.
    """
    if situation.workload is None:
        return _nothing_known(situation)
    verdict = decide(
        situation,
        situation.workload,
        policy,
        predictor=predictor,
        solver=solver,
        time_limit_s=time_limit_s,
        seed=seed,
        explain=explain,
    )
    plan = make_plan(situation.state, verdict.posed.groups, verdict.assignment, situation.costs)
    return Tick(decision=summarise(verdict, solver), plan=plan, verdict=verdict)


def _nothing_known(situation: Situation) -> Tick:
    groups = group_workers(situation.state, by_node=False, by_risk=False)
    plan = make_plan(situation.state, groups, stay_assignment(groups), situation.costs)
    counts = situation.state.counts
    reason = Reason(code=ReasonCode.NO_DATA, text="no workload has been measured yet; nothing is changed")
    return Tick(decision=Decision(outcome=Outcome.KEEP, mode=counts.mode, counts=counts, reasons=(reason,)), plan=plan)


class PlanExecutor(Protocol):
    """What the loop asks of an executor beside `observe` and `apply`."""

    def observe(self) -> ClusterState:
        """The state as it is now."""
        ...

    def apply(self, step: Step) -> None:
        """Accept one step."""
        ...

    @property
    def busy(self) -> bool:
        """Whether steps of a plan are still being carried out."""
        ...

    def cancel_pending(self) -> None:
        """Drop the steps of an older plan that have not begun."""
        ...


Situate = Callable[[ClusterState, float, Mapping[Change, ChangeAge]], Situation]
"""The situation of a state at a time, given how long ago each kind of change was."""

Note = Callable[[Event, float, Tick, frozenset[Change]], None]
"""Told of every tick: the event, the time in seconds, what came of it, and the kinds of change that are new in it.

A decision that only repeats the target of a plan under way brings no new change.
"""


class ElasticScheduler:
    """The loop: each event leads to one tick, and its plan to the executor.

    A newer plan supersedes what has not begun of an older one; workers in transition are pinned until they are done.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        predictor: Predictor,
        solver: Solver,
        executor: PlanExecutor,
        clock: Clock,
        situate: Situate,
        note: Note,
        explain: bool = True,
        time_limit_s: float | None = None,
        changed: Mapping[Change, ChangeAge] | None = None,
    ) -> None:
        """`changed` is how long ago each kind of change was, where a scheduler before this one made it."""
        self._policy = policy
        self._predictor = predictor
        self._solver = solver
        self._executor = executor
        self._clock = clock
        self._situate = situate
        self._note = note
        self._explain = explain
        self._time_limit_s = time_limit_s
        self._steps = 0
        now_s = clock.now_s()
        self._changed = {kind: (-age.steps, now_s - age.seconds) for kind, age in (changed or {}).items()}
        self._settled: dict[Change, tuple[int, float]] = {}
        self._target: Counts | None = None

    def use(self, *, policy: Policy, predictor: Predictor, solver: Solver) -> None:
        """Decide by another policy from the next tick on; what was changed when is still known."""
        self._policy, self._predictor, self._solver = policy, predictor, solver

    def on_event(self, event: Event) -> None:
        """One tick."""
        now_s = self._clock.now_s()
        self._steps += event.kind is EventKind.BATCH_STARTED
        if self._executor.busy:
            self._changed = self._settled  # a change that is not over starts no cooldown against itself
        self._settled = self._changed
        self._executor.cancel_pending()
        state = self._executor.observe()
        situation = self._situate(state, now_s, self._ages(now_s))
        tick = deliberate(
            situation,
            self._policy,
            predictor=self._predictor,
            solver=self._solver,
            time_limit_s=self._time_limit_s,
            explain=self._explain,
        )
        tick, changes = self._remember(tick, now_s)
        for step in tick.plan.steps:
            self._executor.apply(step)
        self._note(event, now_s, tick, changes)

    def _ages(self, now_s: float) -> dict[Change, ChangeAge]:
        return {
            kind: ChangeAge(steps=self._steps - step, seconds=now_s - at_s)
            for kind, (step, at_s) in self._changed.items()
        }

    def _remember(self, tick: Tick, now_s: float) -> tuple[Tick, frozenset[Change]]:
        """Start the cooldowns of a switch; returns it with its kinds of change, unless it repeats the one before."""
        repeated = tick.decision.counts == self._target
        self._target = tick.decision.counts
        if tick.verdict is None or tick.decision.outcome is not Outcome.SWITCH:
            return tick, frozenset()
        changes = tick.verdict.chosen.changes
        self._changed = {**self._changed, **dict.fromkeys(changes, (self._steps, now_s))}
        return replace(tick, repeats=repeated), frozenset() if repeated else changes
