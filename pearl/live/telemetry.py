"""Telemetry of a live cluster: turns as the router sees them, engine steps as the workers measured them.

A request with a session id is a turn of the trajectory of that name; requests without one are not telemetry. All times
are on one clock, the controller's; what workers say on their wall clocks is moved to it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

from pearl.core.telemetry import ArrivalRecord, EngineRecord, Life, Stage, StepKind, StepRecord, Telemetry, TurnRecord
from pearl.live.protocol import EngineError
from pearl.live.router.ticket import Ending, Ticket

MAX_SESSIONS = 100_000
"""Sessions remembered, as many as the router keeps homes of; the least recently used one gives its place up."""
IDLE_SESSION_S = 900.0
"""Outside of batches nobody says that a trajectory is over: one that was silent for this long is taken to be."""
STEPS_PER_POLL = 32
"""Steps kept of a worker and a kind at each poll, evenly spaced: a fit needs hundreds a rollout step of all workers."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True, eq=False)
class _Session:
    """A trajectory under way."""

    id: str
    step: int
    batched: bool
    """Whether a batch was open when it began; that batch's end is then its own."""
    turns: int = 0
    """Turns asked for."""
    context_tokens: int | None = 0
    """After the last turn that ended; None where its record was lost in a restart."""
    ended_s: float | None = None
    """When that was; None before the first, and while a turn runs whose end is not known."""
    held: TurnRecord | None = None
    """The last turn that ended, until it is known whether another follows."""
    sent: bool = False
    """Whether that record was sent before a restart, as one that others follow."""
    unfinished: bool = False
    """Whether a turn was under way at a restart, whose end nobody has seen."""
    over: bool | None = None
    """None while it goes on; then whether what ran last is known to be its last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A turn under way."""

    session: _Session
    index: int
    new_prompt_tokens: int | None
    """None where the context before it is not known; the turn then leaves no record."""
    environment_s: float | None
    ticket: Ticket


@dataclass(slots=True, kw_only=True)
class TurnTelemetry:
    """Records of turns, as a `TurnListener` of the router. Call it on the router's loop.

    A turn's record is held back until the trajectory's next turn, or its batch's end, tells whether it was the last.
    """

    send: Callable[[ArrivalRecord | TurnRecord], None]
    now_s: Callable[[], float]
    step: Callable[[], int | None]
    """Index of the batch that is open; None where none is."""
    _sessions: OrderedDict[str, _Session] = field(default_factory=OrderedDict, init=False)
    _turns: dict[str, _Turn] = field(default_factory=dict, init=False)
    """By request."""

    # TurnListener

    def asked(self, ticket: Ticket) -> None:
        """A turn begins."""
        name = ticket.call.session
        if name is None:
            return
        now_s, session = self.now_s(), self._session(name)
        self._release(session, last=False)
        if session.unfinished:
            session.context_tokens, session.unfinished = None, False
        turn = _Turn(
            session=session,
            index=session.turns,
            new_prompt_tokens=_new_tokens(session, ticket),
            environment_s=None if session.ended_s is None else max(0.0, now_s - session.ended_s),
            ticket=ticket,
        )
        session.turns, session.ended_s = session.turns + 1, None
        self._turns[ticket.id] = turn
        if turn.new_prompt_tokens is not None:
            record = ArrivalRecord(
                trajectory=name,
                turn=turn.index,
                new_prompt_tokens=turn.new_prompt_tokens,
                at_s=now_s,
                step=session.step,
            )
            self.send(record)

    def resumed(self, ticket: Ticket) -> None:
        """A turn that began before a restart goes on; known where `restore` saw its arrival."""
        session = self._sessions.get(ticket.call.session or "")
        if session is None or not session.unfinished:
            return
        session.unfinished = False
        self._turns[ticket.id] = _Turn(
            session=session,
            index=session.turns - 1,
            new_prompt_tokens=_new_tokens(session, ticket),
            environment_s=None,
            ticket=ticket,
        )

    def done(self, ticket: Ticket, ending: Ending) -> None:
        """A turn ended. One that failed leaves no record, and its index to the next."""
        turn = self._turns.pop(ticket.id, None)
        if turn is None:
            return
        session, now_s = turn.session, self.now_s()
        if ending.finish is None:
            session.turns -= session.turns == turn.index + 1
            return
        session.context_tokens = len(ticket.call.prompt) + len(ticket.generation.token_ids)
        session.ended_s = now_s
        record = _turn_record(turn, at_s=now_s)
        if record is None:
            return
        if session.over is not None:
            self.send(replace(record, last=session.over))
            return
        self._release(session, last=False)
        session.held = record

    # Batches

    def batch_ended(self, step: int) -> None:
        """The trajectories of batch `step` are over: send the last turns held back, and forget them."""
        for session in [session for session in self._sessions.values() if session.step == step and session.batched]:
            self._forget(session, last=True)

    def expire(self) -> None:
        """Take trajectories outside of batches to be over that have been silent for long. Call it now and then."""
        before_s = self.now_s() - IDLE_SESSION_S
        for session in [session for session in self._sessions.values() if not session.batched]:
            if session.ended_s is not None and session.ended_s < before_s:
                self._forget(session, last=True)

    def restore(self, records: Iterable[Telemetry], *, step: int | None) -> None:
        """Take up the trajectories of the batch that was open before a restart, from the records kept of it.

        Call it before the router starts. A turn that proves to be the last is then sent a second time, as such; of two
        records of one turn trackers take the later.
        """
        for record in records:
            if not isinstance(record, (ArrivalRecord, TurnRecord)) or record.step != step:
                continue
            new = _Session(id=record.trajectory, step=record.step, batched=True)
            session = self._sessions.setdefault(record.trajectory, new)
            if record.turn + 1 < session.turns:
                continue
            if isinstance(record, TurnRecord):
                session.turns, session.context_tokens = record.turn + 1, record.context_tokens
                session.held, session.sent, session.unfinished = record, True, False
            elif record.turn + 1 > session.turns:
                if session.unfinished or session.turns < record.turn:
                    session.context_tokens = None
                session.turns, session.held, session.unfinished = record.turn + 1, None, True

    def flush(self) -> None:
        """Send what is held back, as turns that others may follow. Call it when the router has stopped."""
        for session in self._sessions.values():
            self._release(session, last=False)

    def lives(self) -> tuple[Life, ...]:
        """Where every trajectory stands. One whose last turn is over stands in the environment until its batch ends."""
        now_s = self.now_s()
        running = {turn.session.id: _life(turn) for turn in self._turns.values() if turn.session.over is None}
        idle = (s for s in self._sessions.values() if s.id not in running and s.ended_s is not None)
        return (*running.values(), *(_outside(session, now_s) for session in idle))

    def _session(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            step = self.step()
            session = _Session(id=name, step=step or 0, batched=step is not None)
            self._sessions[name] = session
            if len(self._sessions) > MAX_SESSIONS:
                self._forget(next(iter(self._sessions.values())), last=False)
        self._sessions.move_to_end(name)
        return session

    def _forget(self, session: _Session, *, last: bool) -> None:
        self._release(session, last=last)
        session.over = last
        del self._sessions[session.id]

    def _release(self, session: _Session, *, last: bool) -> None:
        if session.held is not None and (last or not session.sent):
            self.send(replace(session.held, last=last))
        session.held, session.sent = None, False


def _new_tokens(session: _Session, ticket: Ticket) -> int | None:
    """What a turn's prompt adds to the context before it; all of it where it is shorter: the client began anew."""
    if session.context_tokens is None:
        return None
    prompt = len(ticket.call.prompt)
    return prompt - session.context_tokens if prompt >= session.context_tokens else prompt


def _turn_record(turn: _Turn, *, at_s: float) -> TurnRecord | None:
    ticket, timer = turn.ticket, turn.ticket.timer
    if turn.new_prompt_tokens is None or not ticket.generation.token_ids:
        return None
    prompt = len(ticket.call.prompt)
    versions = ticket.generation.weight_versions
    return TurnRecord(
        trajectory=turn.session.id,
        turn=turn.index,
        worker=timer.worker,
        role=timer.role,
        new_prompt_tokens=turn.new_prompt_tokens,
        prompt_tokens=prompt,
        cached_tokens=min(timer.cached_tokens or 0, prompt),
        output_tokens=len(ticket.generation.token_ids),
        prefill_s=timer.prefill_s,
        decode_s=timer.decode_s,
        queue_s=timer.queue_s,
        transfer_s=timer.transfer_s,
        at_s=at_s,
        environment_s=turn.environment_s,
        weight_version=versions[-1] if versions else 0,
        step=turn.session.step,
    )


def _life(turn: _Turn) -> Life:
    ticket = turn.ticket
    output = len(ticket.generation.token_ids)
    stage = ticket.timer.stage
    return Life(
        trajectory=turn.session.id,
        turn=turn.index,
        stage=stage,
        context_tokens=len(ticket.call.prompt) + output,
        prompt_left_tokens=0 if stage is Stage.DECODE else turn.new_prompt_tokens or 0,
        output_tokens=output,
    )


def _outside(session: _Session, now_s: float) -> Life:
    assert session.ended_s is not None, "a trajectory outside has ended a turn"
    assert session.context_tokens is not None, "and its context is known then"
    return Life(
        trajectory=session.id,
        turn=session.turns - 1,
        stage=Stage.ENVIRONMENT,
        context_tokens=session.context_tokens,
        stage_s=max(0.0, now_s - session.ended_s),
    )


@runtime_checkable
class Measured(Protocol):
    """A worker whose engine measures itself, as `pearl.live.worker.RayWorker`."""

    async def describe(self) -> EngineRecord:
        """What the engine is."""
        ...

    async def steps(self) -> tuple[StepRecord, ...]:
        """Engine steps since the last call, on the worker's wall clock."""
        ...


async def poll_steps(
    workers: Mapping[str, Measured], *, step: int, offset_s: float, most: int = STEPS_PER_POLL
) -> tuple[StepRecord, ...]:
    """What the engines did since the last poll, as of rollout step `step`; workers that do not answer are left out.

    `offset_s` takes wall-clock seconds to the controller's clock. At most `most` steps of each worker and kind.
    """
    answers = await asyncio.gather(*(_steps_of(worker) for worker in workers.values()))
    return tuple(
        replace(record, at_s=record.at_s + offset_s, step=step)
        for answer in answers
        for kind in StepKind
        for record in evenly([record for record in answer if record.kind is kind], most)
    )


async def _steps_of(worker: Measured) -> tuple[StepRecord, ...]:
    try:
        return await worker.steps()
    except EngineError:
        return ()


def evenly(items: Sequence[_T], most: int) -> Sequence[_T]:
    """At most `most` of the items, in their order and evenly spaced."""
    return items if len(items) <= most else [items[i * len(items) // most] for i in range(most)]
