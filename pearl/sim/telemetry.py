"""What a simulated rollout reports: the telemetry that a live one would send."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from pearl.core.telemetry import ArrivalRecord, Life, Stage, Telemetry, TurnRecord
from pearl.sim.events import EventQueue
from pearl.sim.session import Phase, Session

if TYPE_CHECKING:
    from pearl.sim.engine import Engine


class TurnReporter:
    """Sends a record when a turn is asked for, and one when it is done."""

    def __init__(self, *, send: Callable[[Telemetry], None], queue: EventQueue, version: Callable[[], int]) -> None:
        self._send = send
        self._queue = queue
        self._version = version

    def turn_asked(self, session: Session) -> None:
        """Offered load."""
        self._send(
            ArrivalRecord(
                trajectory=str(session.index),
                turn=session.turn,
                new_prompt_tokens=session.current_turn.new_prompt_tokens,
                at_s=self._queue.now_s,
                step=session.batch,
            )
        )

    def turn_done(self, engine: Engine, session: Session) -> None:
        """Work done; times of an interrupted turn are summed over its attempts."""
        turn, before = session.current_turn, session.trajectory[session.turn - 1]
        self._send(
            TurnRecord(
                trajectory=str(session.index),
                turn=session.turn,
                worker=engine.name,
                role=engine.role,
                new_prompt_tokens=turn.new_prompt_tokens,
                prompt_tokens=session.context_tokens - turn.output_tokens,
                cached_tokens=session.cached_tokens,
                output_tokens=turn.output_tokens,
                prefill_s=session.spent_s[Phase.PREFILL],
                decode_s=session.spent_s[Phase.DECODE],
                queue_s=session.spent_s[Phase.QUEUE],
                transfer_s=session.spent_s[Phase.TRANSFER],
                at_s=self._queue.now_s,
                environment_s=before.environment_s if session.turn else None,
                last=session.last_turn,
                weight_version=self._version(),
                step=session.batch,
            )
        )


def life_of(session: Session, *, now_s: float, tokens_ahead: int) -> Life:
    """Where a session stands; `tokens_ahead` are out and not in its own counts yet."""
    stage = _stage(session.phase)
    turn = session.current_turn
    queued_for_prefill = stage is Stage.QUEUED and session.source is None
    left = session.context_tokens - session.prefilled_tokens if stage is Stage.PREFILL else 0
    return Life(
        trajectory=str(session.index),
        turn=session.turn,
        stage=stage,
        context_tokens=session.context_tokens + tokens_ahead,
        prompt_left_tokens=turn.new_prompt_tokens if queued_for_prefill else left,
        output_tokens=turn.output_tokens - session.remaining_tokens + tokens_ahead,
        stage_s=now_s - session.phase_since_s,
    )


def _stage(phase: Phase) -> Stage:
    match phase:
        case Phase.QUEUE | Phase.TRANSFER:
            return Stage.QUEUED
        case Phase.PREFILL:
            return Stage.PREFILL
        case Phase.DECODE:
            return Stage.DECODE
        case Phase.OUTSIDE:
            return Stage.ENVIRONMENT
    assert_never(phase)
