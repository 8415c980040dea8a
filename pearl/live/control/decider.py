"""From an event to a plan under way: one tick in a thread, stored before its first step begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from pearl.core.cluster import ClusterState, Status
from pearl.core.decision import Decision
from pearl.core.engine import TransitionCosts
from pearl.core.event import Event, EventKind
from pearl.core.grouping import group_workers
from pearl.core.plan import Plan
from pearl.core.ports import Clock
from pearl.core.problem import Change
from pearl.deciding.posing import pose, stay_assignment
from pearl.errors import PearlError
from pearl.live.control.documents import Document, decision_document
from pearl.live.control.facade import TickFacade
from pearl.live.control.log import log
from pearl.live.control.metrics import ControlMetrics
from pearl.live.control.ports import Executor, Observer
from pearl.live.control.progress_log import decision_id, plan_id
from pearl.live.control.recovery import change_ages
from pearl.live.control.store import AddDecision, AddPlan, ControlStore
from pearl.makespan.protocol import Predictor
from pearl.planning import make_plan, plan_to_dict
from pearl.policy.model import Policy
from pearl.scheduler import ElasticScheduler, Tick
from pearl.solving.protocol import Solver


@dataclass(frozen=True, kw_only=True)
class Rulebook:
    """How decisions are taken: replaced as a whole when another policy is set."""

    policy: Policy
    solver: Solver
    predictor: Predictor


@dataclass(frozen=True, kw_only=True)
class _Noted:
    tick: Tick
    now_s: float
    changes: frozenset[Change]


class Decider:
    """Takes decisions, one at a time; on the event loop, but for the tick itself."""

    def __init__(
        self,
        *,
        rules: Rulebook,
        executor: Executor,
        observer: Observer,
        store: ControlStore,
        metrics: ControlMetrics,
        clock: Clock,
        check: Callable[[], None],
        shadow: bool = False,
    ) -> None:
        """`check` raises where this controller may not act any more."""
        self.rules = rules
        self.shadow = shadow
        self.plan: str | None = None
        """Id of the newest plan that was handed over."""
        self.plan_steps = 0
        self.left_alone = False
        """Whether the newest decision had to leave workers as they were, since they were in transition."""
        self._executor = executor
        self._observer = observer
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._check = check
        self._decisions = store.last("decisions")
        self._plans = store.last("plans")
        self._noted: _Noted | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tick")
        loop = asyncio.get_running_loop()
        self._facade = TickFacade(executor=executor, observer=observer, loop=loop, shadow=shadow)
        self._scheduler = ElasticScheduler(
            policy=rules.policy,
            predictor=rules.predictor,
            solver=rules.solver,
            executor=self._facade,
            clock=clock,
            situate=self._facade.situate,
            note=self._note,
            changed=change_ages(store, now_unix_s=clock.now_s()),
        )

    async def tick(self, number: int, event: Event) -> bool:
        """Decide on the state as it is, and hand the plan over. A tick that fails still lets go what must leave.

        Returns whether nothing is known of the workload yet, so that nothing could be decided.
        """
        began_s, policy = self._clock.now_s(), self.rules.policy
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._scheduler.on_event, event)
        except Exception as e:
            self._facade.take()
            self._failed(number, event, policy, e, began_s)
            return False
        self._facade.take()
        noted, self._noted = self._noted, None
        assert noted is not None, "the scheduler notes every tick"
        self._decided(number, event, policy, noted, began_s)
        return noted.tick.verdict is None

    def carry_out(self, plan: Plan, *, because: str) -> None:
        """Hand over a plan that no policy decided on."""
        document = {"outcome": "bootstrap", "reasons": [{"code": "no_data", "text": because, "data": {}}]}
        self._hand_over(None, self.rules.policy, plan, {"decision": document}, acts=True)

    async def try_out(self, rules: Rulebook) -> None:
        """Raises `PolicyError` where a policy has no value under the situation of now."""
        state = self._executor.observe()
        situation = self._observer.situation(state, self._clock.now_s(), {})
        workload = situation.workload
        if workload is not None:
            posing = partial(pose, situation, workload, rules.policy, rules.predictor)
            await asyncio.get_running_loop().run_in_executor(self._thread, posing)

    def use(self, rules: Rulebook) -> None:
        """Decide by another policy from the next event on; cooldowns go on. A tick under way ends by the old one."""
        self.rules = rules
        using = partial(self._scheduler.use, policy=rules.policy, predictor=rules.predictor, solver=rules.solver)
        self._thread.submit(using)

    def close(self) -> None:
        """End the thread; a tick in it comes to nothing."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _note(self, _: Event, now_s: float, tick: Tick, changes: frozenset[Change]) -> None:
        self._noted = _Noted(tick=tick, now_s=now_s, changes=changes)

    def _decided(self, number: int, event: Event, policy: Policy, noted: _Noted, began_s: float) -> None:
        # What is only looked at is not carried out: a switch decided on again is no plan that goes on.
        tick = replace(noted.tick, repeats=False) if self.shadow else noted.tick
        if tick.verdict is not None:
            state = tick.verdict.posed.situation.state
            self.left_alone = any(worker.status is Status.TRANSITIONING for worker in state.workers)
        document = {
            **decision_document(tick),
            "calibration_error": tick.verdict.posed.situation.calibration_error if tick.verdict else None,
            "changes": sorted(kind.value for kind in noted.changes),
            "seconds": round(self._clock.now_s() - began_s, 6),
        }
        self._metrics.decision(tick.told.outcome.value, self._clock.now_s() - began_s)
        self._inform(event, noted.now_s, tick.decision)
        self._hand_over((number, event), policy, tick.plan, document, acts=not self.shadow)

    def _inform(self, event: Event, now_s: float, decision: Decision) -> None:
        if event.kind is EventKind.BATCH_STARTED:
            self._observer.batch_began(now_s, decision)
        else:
            self._observer.decided(now_s, decision)

    def _failed(self, number: int, event: Event, policy: Policy, error: Exception, began_s: float) -> None:
        log(
            "decision_failed",
            level=logging.ERROR,
            seq=number,
            error=f"{type(error).__name__}: {error}",
            exc_info=not isinstance(error, PearlError),
        )
        seconds = self._clock.now_s() - began_s
        self._metrics.decision("failed", seconds)
        reason = {"code": "failed", "text": f"{type(error).__name__}: {error}", "data": {}}
        document = {"decision": {"outcome": "failed", "reasons": [reason]}, "seconds": round(seconds, 6)}
        if not self.shadow:
            self._executor.cancel_pending()
        plan = mandatory_plan(self._executor.observe())
        self._hand_over((number, event), policy, plan, document, acts=not self.shadow)

    def _hand_over(
        self, cause: tuple[int, Event] | None, policy: Policy, plan: Plan, document: Document, *, acts: bool
    ) -> None:
        """Store decision and plan, then let the executor begin."""
        self._check()
        self._decisions += 1
        decision, now_s = self._decisions, self._clock.now_s()
        planned = () if plan.empty else (self._planned(plan, decision, now_s),)
        event = {"seq": cause[0], "kind": cause[1].kind.value, "workers": list(cause[1].workers)} if cause else None
        whole = {
            "event": event,
            "policy": {"name": policy.name, "sha256": policy.sha256},
            "shadow": self.shadow,
            "epoch": plan.from_epoch,
            "plan": plan_id(self._plans) if planned else None,
            **document,
        }
        entry = AddDecision(number=decision, at_unix_s=now_s, event=cause[0] if cause else None, document=whole)
        self._store.write(entry, *planned)
        outcome = whole["decision"]["outcome"]
        log("decision", decision=decision_id(decision), plan=whole["plan"], outcome=outcome, steps=len(plan.steps))
        if acts and planned:
            self.plan, self.plan_steps = plan_id(self._plans), len(plan.steps)
            self._executor.begin_plan(self.plan)
            for step in plan.steps:
                self._executor.apply(step)

    def _planned(self, plan: Plan, decision: int, now_s: float) -> AddPlan:
        self._plans += 1
        return AddPlan(number=self._plans, at_unix_s=now_s, decision=decision, document=dict(plan_to_dict(plan)))


def mandatory_plan(state: ClusterState) -> Plan:
    """What must happen whatever is decided: workers that must leave do, all others stay as they are."""
    groups = group_workers(state, by_node=False, by_risk=False)
    return make_plan(state, groups, stay_assignment(groups), TransitionCosts())
