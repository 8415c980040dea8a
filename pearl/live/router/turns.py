"""Where the time of a request goes, and who wants to know of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pearl.core.cluster import Role
from pearl.core.telemetry import Stage
from pearl.live.protocol import PromptReport

if TYPE_CHECKING:
    from pearl.live.router.ticket import Ending, Ticket


class TurnListener(Protocol):
    """Told of every request on the router's loop; it must not block, and not raise."""

    def asked(self, ticket: Ticket) -> None:
        """A request was accepted."""
        ...

    def resumed(self, ticket: Ticket) -> None:
        """A request of an earlier run of the router goes on."""
        ...

    def done(self, ticket: Ticket, ending: Ending) -> None:
        """A request ended, well or not; a request that is put off to the router's next start has not."""
        ...


class IgnoreTurns:
    """Nobody wants to know."""

    def asked(self, ticket: Ticket) -> None:
        """Nothing."""

    def resumed(self, ticket: Ticket) -> None:
        """Nothing."""

    def done(self, ticket: Ticket, ending: Ending) -> None:
        """Nothing."""


@dataclass(slots=True, kw_only=True)
class TurnTimer:
    """Divides a request's time, from `since_s` on, over its stages: at any end of a leg they add up to what passed.

    Seconds of the router's monotonic clock. Where engines tell how long a prompt waited in them, that is queueing (or
    transfer, for a prompt whose KV is pulled); where they do not, it counts as prefill (or transfer).
    """

    since_s: float
    """Up to when the time is divided."""
    stage: Stage = Stage.QUEUED
    queue_s: float = 0.0
    """Waiting for a worker, or within it; legs that were lost before their first token, and pauses after them."""
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    decode_s: float = 0.0
    worker: str = ""
    """The worker of the current leg, or of the last."""
    role: Role = Role.COLOCATED
    """That worker's role."""
    cached_tokens: int | None = None
    """Of the request's own prompt, as the first engine told that computed it; None: none told."""
    _keeps: bool = field(default=False, init=False)
    _pulls: bool = field(default=False, init=False)
    _waits: bool = field(default=True, init=False)
    """For the first token of the current leg."""

    def dispatched(self, now_s: float, *, worker: str, role: Role, keeps: bool = False, pulls: bool = False) -> None:
        """A leg goes to `worker`, which `keeps` its KV for another, or `pulls` it from one."""
        self.queue_s += self._passed(now_s)
        self.worker, self.role, self._keeps, self._pulls = worker, role, keeps, pulls
        self._waits = True
        self.stage = Stage.QUEUED if pulls else Stage.PREFILL

    def answered(self, now_s: float, report: PromptReport | None) -> None:
        """The leg has its first token; later calls change nothing."""
        if not self._waits:
            return
        self._waits = False
        passed_s = self._passed(now_s)
        if self._pulls:
            pulled_s = passed_s if report is None else min(report.queue_s, passed_s)
            self.transfer_s += pulled_s
            self.decode_s += passed_s - pulled_s
        else:
            queued_s = 0.0 if report is None else min(report.queue_s, passed_s)
            self.queue_s += queued_s
            self.prefill_s += passed_s - queued_s
            if report is not None and self.cached_tokens is None:
                self.cached_tokens = report.cached_tokens
        self.stage = Stage.QUEUED if self._keeps else Stage.DECODE

    def ended(self, now_s: float) -> None:
        """The leg is over."""
        if self._waits:
            self.queue_s += self._passed(now_s)
        elif self._keeps:
            self.prefill_s += self._passed(now_s)
        else:
            self.decode_s += self._passed(now_s)
        self.stage = Stage.QUEUED

    def _passed(self, now_s: float) -> float:
        passed_s, self.since_s = max(0.0, now_s - self.since_s), max(now_s, self.since_s)
        return passed_s
