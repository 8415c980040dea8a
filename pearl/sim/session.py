"""A trajectory under way: where it stands, and what the engine that serves it still has to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from pearl.sim.trajectories import Trajectory, Turn

if TYPE_CHECKING:
    from pearl.sim.engine import Engine


class Phase(IntEnum):
    """What a session's turn is going through; indexes `Session.spent_s`."""

    QUEUE = 0
    """Waiting for an engine or for memory."""
    PREFILL = 1
    TRANSFER = 2
    DECODE = 3
    OUTSIDE = 4


QUEUE, PREFILL, TRANSFER, DECODE, OUTSIDE = Phase
"""The phases by themselves: to look a member up on its class takes as long as twenty global names."""

_NOTHING_SPENT_S = (0.0,) * len(Phase)


class Session:
    """Mutable state of one trajectory.

    `context_tokens` are known: prompts, observations and output so far. While the session decodes, its last token has
    no KV yet, so its KV holds one less; while an engine decodes it, both counts are those at `joined_step`.
    """

    __slots__ = (
        "batch",
        "cached_tokens",
        "context_tokens",
        "decode_home",
        "home",
        "index",
        "joined_step",
        "phase",
        "phase_since_s",
        "prefilled_tokens",
        "pull_id",
        "recomputing",
        "remaining_tokens",
        "server",
        "source",
        "spent_s",
        "trajectory",
        "turn",
    )

    def __init__(self, index: int, trajectory: Trajectory, *, batch: int = 0) -> None:
        self.index = index
        self.batch = batch
        """Index of the batch that the trajectory belongs to."""
        self.trajectory = trajectory
        self.turn = -1
        """Index of the current turn; -1 before the first."""
        self.context_tokens = 0
        self.remaining_tokens = 0
        """Output tokens left in this turn."""
        self.prefilled_tokens = 0
        """Of the context, those whose KV is there: hit or computed."""
        self.cached_tokens = 0
        """Of this turn's prompt, those that the prefix cache held when it was first prefilled."""
        self.recomputing = False
        """Whether this prefill repeats work that was lost."""
        self.joined_step = 0
        self.home: Engine | None = None
        """Engine that prefills this session's turns (colocated: serves them), under session affinity."""
        self.decode_home: Engine | None = None
        self.server: Engine | None = None
        """Engine that has the current turn; None in the environment."""
        self.source: Engine | None = None
        """Prefill engine that holds the KV which `server` is to pull."""
        self.pull_id = 0
        """Tells the pull under way from one that was called off."""
        self.phase = OUTSIDE
        self.phase_since_s = 0.0
        self.spent_s = list(_NOTHING_SPENT_S)
        """Seconds of this turn in each phase that is over."""

    def begin_turn(self, now_s: float) -> None:
        """Append the next turn's prompt."""
        self.phase = QUEUE
        self.phase_since_s = now_s
        self.spent_s = list(_NOTHING_SPENT_S)
        self.turn += 1
        turn = self.trajectory[self.turn]
        self.context_tokens += turn.new_prompt_tokens
        self.remaining_tokens = turn.output_tokens
        self.recomputing = False

    def enter(self, phase: Phase, now_s: float) -> None:
        """The turn goes on to another phase."""
        self.spent_s[self.phase] += now_s - self.phase_since_s
        self.phase = phase
        self.phase_since_s = now_s

    @property
    def current_turn(self) -> Turn:
        """The turn under way, or the last one while outside."""
        return self.trajectory[self.turn]

    @property
    def last_turn(self) -> bool:
        """Whether no turn follows."""
        return self.turn == len(self.trajectory) - 1


@dataclass(slots=True, kw_only=True)
class Evacuated:
    """The sessions that an engine gave up, oldest first, by what they need next."""

    interrupted: list[Session]
    """Their KV here is lost to them: to prefill again, from the tokens that are out."""
    held: list[Session]
    """Likewise, and their decode engine is still waiting for it."""
    queued: list[Session]
    """Nothing was done for them yet."""
    handed: list[Session]
    """Their KV is with `session.source`: any decode engine may pull it."""
