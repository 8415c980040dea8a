"""The tick: observe → track → pose → solve → gate → diff → apply, pure but for its two ends.

`deliberate` is everything between them. Simulation, replay, shadow and live call it with the same arguments and differ
only in where the situation comes from and in who carries the plan out.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl.core.decision import Decision, Outcome, Reason, ReasonCode
from pearl.core.grouping import group_workers
from pearl.core.plan import Plan
from pearl.core.situation import Situation
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


def deliberate(
    situation: Situation,
    policy: Policy,
    *,
    predictor: Predictor,
    solver: Solver,
    time_limit_s: float | None = None,
    seed: int | None = None,
) -> Tick:
    """Decide and plan. Workers that must leave do so whatever the outcome; all else moves only on a switch."""
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
    )
    plan = make_plan(situation.state, verdict.posed.groups, verdict.assignment, situation.costs)
    return Tick(decision=summarise(verdict, solver), plan=plan, verdict=verdict)


def _nothing_known(situation: Situation) -> Tick:
    groups = group_workers(situation.state, by_node=False, by_risk=False)
    plan = make_plan(situation.state, groups, stay_assignment(groups), situation.costs)
    counts = situation.state.counts
    reason = Reason(code=ReasonCode.NO_DATA, text="no workload has been measured yet; nothing is changed")
    return Tick(decision=Decision(outcome=Outcome.KEEP, mode=counts.mode, counts=counts, reasons=(reason,)), plan=plan)

