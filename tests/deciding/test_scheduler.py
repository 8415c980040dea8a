"""The Elastic Scheduler's loop, with a stub for the executor: what supersedes what, and what counts as a change."""

from __future__ import annotations

from dataclasses import replace

from pearl.core.cluster import ClusterState, Role, Zone
from pearl.core.decision import Outcome, ReasonCode
from pearl.core.event import Event, EventKind
from pearl.core.plan import ChangeRole, Step
from pearl.core.problem import Change
from pearl.live.control.documents import decision_document
from pearl.planning import advance
from pearl.scheduler import ElasticScheduler, Tick
from pearl.solving.registry import resolve
from tests.deciding.worlds import TablePredictor, policy, situation, workers

PREDICTOR = TablePredictor(colocated={4: 100_000}, pairs={(2, 2): 60_000, (1, 3): 61_000})
BATCH = Event(kind=EventKind.BATCH_STARTED)


class SlowExecutor:
    """Stub: steps wait until `finish` carries them out."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.pending: list[Step] = []

    @property
    def busy(self) -> bool:
        return bool(self.pending)

    def observe(self) -> ClusterState:
        return self.state

    def apply(self, step: Step) -> None:
        self.pending.append(step)

    def cancel_pending(self) -> None:
        self.pending = []

    def finish(self) -> None:
        for step in self.pending:
            if isinstance(step, ChangeRole):
                changed = advance(self.state.by_id[step.worker], step)
                self.state = self.state.with_workers(changed if w.id == changed.id else w for w in self.state.workers)
        self.pending = []


class Clock:
    """Stub: a time that the test sets."""

    time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


def loop(tmp_path):
    executor, clock, notes = SlowExecutor(situation(workers(Zone.RESERVED, 4, Role.COLOCATED)).state), Clock(), []
    world = situation()
    scheduler = ElasticScheduler(
        policy=policy(tmp_path),
        predictor=PREDICTOR,
        solver=resolve("enumerate"),
        executor=executor,
        clock=clock,
        situate=lambda state, _, changes: replace(world, state=state, changes=changes),
        note=lambda event, at_s, tick, changes: notes.append((tick.decision.counts.label(), changes)),
    )
    return scheduler, executor, clock, notes


def test_a_mode_change_under_way_is_not_stopped_by_its_own_cooldown_nor_counted_twice(tmp_path):
    scheduler, executor, _, notes = loop(tmp_path)
    scheduler.on_event(BATCH)
    first = list(executor.pending)
    scheduler.on_event(BATCH)
    assert executor.pending == first
    assert notes == [("2P2D", frozenset({Change.MODE})), ("2P2D", frozenset())]


def test_a_switch_to_what_was_decided_before_says_that_it_repeats(tmp_path):
    scheduler, executor, _, _ = loop(tmp_path)
    ticks: list[Tick] = []
    scheduler._note = lambda event, at_s, tick, changes: ticks.append(tick)
    for _ in range(2):
        scheduler.on_event(BATCH)
    executor.finish()
    scheduler.on_event(BATCH)
    told = [(tick.decision.outcome, tick.repeats) for tick in ticks]
    assert told == [(Outcome.SWITCH, False), (Outcome.SWITCH, True), (Outcome.KEEP, False)]
    assert [tick.told.outcome for tick in ticks] == [Outcome.SWITCH, Outcome.KEEP, Outcome.KEEP]
    assert ticks[1].told.reasons[0].code is ReasonCode.IN_TRANSITION
    assert decision_document(ticks[1])["decision"]["outcome"] == "keep", "live records tell it alike"


def test_a_finished_change_starts_its_cooldown(tmp_path):
    scheduler, executor, _, notes = loop(tmp_path)
    scheduler.on_event(BATCH)
    executor.finish()
    assert executor.state.counts.label() == "2P2D"
    back = TablePredictor(colocated={4: 10_000}, pairs={(2, 2): 60_000})
    scheduler._predictor = back  # the world has changed: colocation would gain 50 s
    scheduler.on_event(BATCH)
    assert notes[-1][0] == "2P2D"
    scheduler.on_event(BATCH)
    assert notes[-1] == ("4C", frozenset({Change.MODE}))


def test_a_plan_that_is_carried_out_is_not_made_again(tmp_path):
    scheduler, executor, _, _ = loop(tmp_path)
    scheduler.on_event(BATCH)
    executor.finish()
    scheduler.on_event(BATCH)
    assert executor.pending == []
