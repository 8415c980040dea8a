"""An accepted request while it lives: what it has, what may be shown, and who waits for more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from pearl.live.protocol import FinishReason
from pearl.live.router.call import Call
from pearl.live.router.choose import Stage
from pearl.live.router.generation import Generation
from pearl.live.router.turns import TurnTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a request ended: with a finish reason, or with an HTTP status, a code and a sentence."""

    finish: FinishReason | None = None
    status: int = 200
    code: str = ""
    message: str = ""

    def to_json(self) -> str:
        """JSON, as journaled."""
        return _ENDING.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Ending:
        """The ending that `to_json` wrote."""
        return _ENDING.validate_json(text)


_ENDING = TypeAdapter(Ending)


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """Shared by the request's runner and every client that waits for it.

    Tokens up to `published` are in the journal and may be shown; `ending` likewise.
    """

    id: str
    call: Call
    generation: Generation
    accepted_unix_s: float
    timer: TurnTimer
    keep: bool
    """Whether it goes on when nobody waits: its client chose the id, and can come back with it."""
    stage: Stage = Stage.PROMPT
    fruitless: int = 0
    """Legs in a row that failed without a token."""
    interruptions: int = 0
    published: int = 0
    concluded: bool = False
    """How it ends is on its way to the journal; nothing that comes later changes it."""
    ending: Ending | None = None
    suspended: bool = False
    """The router stops; the request goes on after its restart."""
    clients: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, tokens: int) -> None:
        """Show the first `tokens` tokens."""
        self.published = max(self.published, tokens)
        self._wake()

    def end(self, ending: Ending) -> None:
        """Show all tokens, and the end."""
        self.published = len(self.generation.token_ids)
        self.ending = ending
        self._wake()

    def suspend(self) -> None:
        """Send the waiting clients away."""
        self.suspended = True
        self._wake()

    async def more(self, seen: int) -> None:
        """Wait until more than `seen` tokens are shown, or the request ended."""
        while self.published <= seen and not self.over:
            await self._changed.wait()

    async def done(self) -> None:
        """Wait until the request ended."""
        while not self.over:
            await self._changed.wait()

    @property
    def over(self) -> bool:
        """Whether nothing more will be shown."""
        return self.ending is not None or self.suspended

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
