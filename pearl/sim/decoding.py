"""The sequences that an engine decodes together, and when each of them ends."""

from __future__ import annotations

from heapq import heappop, heappush

from pearl.sim.session import Session


class DecodeBatch:
    """Each step gives every sequence one token, so that the step at which one ends is known as it joins."""

    __slots__ = ("_by_end", "ends", "kv_tokens", "step")

    def __init__(self) -> None:
        self.step = 0
        """Steps taken so far."""
        self.ends: dict[Session, int] = {}
        """The step at which each sequence has its last token, in the order in which they joined."""
        self.kv_tokens = 0
        """KV of all sequences, their newest tokens left out."""
        self._by_end: list[tuple[int, int, Session]] = []

    def join(self, session: Session) -> None:
        """A prefilled sequence decodes from the next step on."""
        session.joined_step = step = self.step
        self.ends[session] = end = step + session.remaining_tokens
        self.kv_tokens += session.context_tokens - 1
        heappush(self._by_end, (end, session.index, session))

    def leave(self, session: Session) -> None:
        """A sequence leaves; its own counts are brought up to date."""
        done = self.step - session.joined_step
        session.context_tokens += done
        session.remaining_tokens -= done
        del self.ends[session]
        self.kv_tokens -= session.context_tokens - 1

    def advance(self, steps: int) -> list[Session]:
        """Take `steps`; those whose last token is out then leave, and are returned, the first to end first."""
        ends, by_end = self.ends, self._by_end
        self.step = step = self.step + steps
        self.kv_tokens += steps * len(ends)
        finished: list[Session] = []
        while by_end and by_end[0][0] <= step:
            end, _, session = heappop(by_end)
            if ends.get(session) == end:
                self.leave(session)
                finished.append(session)
        return finished

    def steps_left(self) -> int:
        """Steps until the first of them ends; there must be one."""
        by_end, ends = self._by_end, self.ends
        while True:
            end, _, session = by_end[0]
            if ends.get(session) == end:
                return end - self.step
            heappop(by_end)  # It left before its end.
