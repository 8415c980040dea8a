"""One serving engine: continuous batching with chunked prefill, paged KV memory and preemption by recompute.

Every step serves the decoding sequences first (one token each) and gives the rest of its token budget to prefills,
first come first served. While nothing waits, decode steps are taken in one go, up to the first sequence that ends, the
last step that memory allows, or the step during which new work arrives. The rules are those of vLLM's scheduler.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pearl.core.cluster import Role
from pearl.core.engine import EngineProfile
from pearl.sim.events import ARRIVAL, STEP_END, WAKE, EventQueue
from pearl.sim.kvcache import KvCache
from pearl.sim.session import Session
from pearl.sim.stretch import Stretch
from pearl.sim.tally import Tally


class EngineHooks(Protocol):
    """What an engine tells its pool."""

    def prefilled(self, engine: Engine, session: Session) -> None:
        """A prefill engine has the first token; it holds the KV until `Engine.release`."""
        ...

    def turn_done(self, session: Session) -> None:
        """The turn's last token is out."""
        ...


class Engine:
    """A worker's engine; its role decides its memory, and whether a prefilled sequence stays or is handed over."""

    def __init__(
        self, *, index: int, role: Role, profile: EngineProfile, queue: EventQueue, hooks: EngineHooks, tally: Tally
    ) -> None:
        self.index = index
        self.role = role
        self.profile = profile
        self.tally = tally
        self.cache = KvCache(kv_capacity(profile, role))
        self.load = 0
        """Live sessions that call this engine home; the router keeps it."""
        self.link_free_s = 0.0
        """When the outgoing KV link has sent what it was asked to."""
        self._queue = queue
        self._hooks = hooks
        self._waiting: deque[Session] = deque()
        self._prefilling: list[Session] = []
        self._pulling = 0
        self._ready: list[Session] = []
        self._running: dict[Session, int] = {}
        self._finishes: list[tuple[int, int, Session]] = []
        self._step = 0
        self._running_kv_tokens = 0
        self._chunks: Sequence[tuple[Session, int]] = ()
        self._stretch = Stretch(first_s=1.0, slope_s=0.0)
        self._planned_steps = 0
        self._planned_at_s = 0.0
        self._plan_id = 0
        self._planning = False
        """Whether a plan is due at this instant anyway."""

    def submit(self, session: Session, *, source: Engine | None = None) -> None:
        """Queue a turn: to prefill here, or to pull its KV from `source` and decode here."""
        session.source = source
        self._waiting.append(session)
        if len(self._waiting) == 1:
            self._poke()

    def release(self, session: Session) -> None:
        """The KV of a handed-over session is no longer needed: its prompt stays as an idle prefix."""
        self.cache.park(session.index, session.context_tokens - 1)
        self._poke()

    # -- planning: what the next step holds ------------------------------------------------------------------------

    def _poke(self) -> None:
        """Look at the queue at the next step boundary."""
        if self._planning:
            return
        if self._planned_steps == 0:
            self._planning = True
            self._queue.at(self._queue.now_s, WAKE, self._wake)
        elif self._planned_steps > 1:
            elapsed_s = self._queue.now_s - self._planned_at_s
            steps = max(1, self._stretch.steps_until(elapsed_s))
            if steps < self._planned_steps:
                self._schedule(steps, self._stretch.seconds(steps))

    def _wake(self, _: None) -> None:
        self._plan()

    def _plan(self) -> None:
        self._planning = False
        self._join_ready()
        while self._running and self.cache.free_tokens < len(self._running):
            self._preempt()
        self._chunks = self._next_chunks()
        batch = len(self._running)
        if self._chunks:
            self._planned_at_s = self._queue.now_s
            self._schedule(1, self._mixed_step_s())
        elif batch:
            self._stretch = Stretch.of(self.profile.decode, batch, self._running_kv_tokens + batch)
            steps = min(self._next_finish() - self._step, self.cache.free_tokens // batch)
            self._planned_at_s = self._queue.now_s
            self._schedule(steps, self._stretch.seconds(steps))

    def _schedule(self, steps: int, seconds: float) -> None:
        self._planned_steps = steps
        self._plan_id += 1
        self._queue.at(self._planned_at_s + seconds, STEP_END, self._end_step, self._plan_id)

    def _next_chunks(self) -> list[tuple[Session, int]]:
        """Prefill chunks of the next step; admits waiting sessions while tokens, sequences and memory last."""
        budget = self.profile.chunk_tokens - len(self._running)
        chunks: list[tuple[Session, int]] = []
        for session in self._prefilling:
            if budget <= 0:
                return chunks
            tokens = min(budget, session.context_tokens - session.prefilled_tokens)
            chunks.append((session, tokens))
            budget -= tokens
        while budget > 0 and self._waiting and self._admit(self._waiting[0]):
            session = self._waiting.popleft()
            if session.source is not None:
                continue
            self._prefilling.append(session)
            tokens = min(budget, session.context_tokens - session.prefilled_tokens)
            chunks.append((session, tokens))
            budget -= tokens
        return chunks

    def _admit(self, session: Session) -> bool:
        """Reserve memory for the whole known context; a pull starts at once."""
        sequences = len(self._running) + len(self._prefilling) + self._pulling + len(self._ready)
        tokens = session.context_tokens - (session.source is not None)
        if sequences >= self.profile.max_sequences or not self.cache.admits(tokens):
            return False
        hit = self.cache.claim(session.index, tokens, most=session.context_tokens - 1)
        if session.source is not None:
            self._pull(session, session.source, tokens - hit)
            return True
        session.prefilled_tokens = hit
        if not session.recomputing:
            self.tally.prompt_tokens += tokens
            self.tally.hit_tokens += hit
        return True

    def _preempt(self) -> None:
        """The sequence admitted last gives its memory back, and will be computed again."""
        if self._prefilling:
            session = self._prefilling.pop()
            self.cache.drop(session.context_tokens - session.prefilled_tokens)
            kv_tokens = session.prefilled_tokens
        else:
            session = next(reversed(self._running))
            self._leave_batch(session)
            kv_tokens = session.context_tokens - 1
        self.cache.park(session.index, kv_tokens)
        session.source = None
        session.recomputing = True
        self._waiting.appendleft(session)
        self.tally.preemptions += 1

    # -- steps: what one did ---------------------------------------------------------------------------------------

    def _mixed_step_s(self) -> float:
        """Time of a step with prefill chunks, by the profile: p0 once, and the surcharge if it decodes too."""
        cost = self.profile.prefill
        prefill_s = cost.p0_s
        for session, n in self._chunks:
            prefill_s += cost.p1_s * n + cost.p2_s * (n * n + 2 * n * session.prefilled_tokens)
        batch = len(self._running)
        if not batch:
            self.tally.prefill_s += prefill_s
            return prefill_s
        factor = self.profile.mixed_step_factor
        decode_s = self.profile.decode.seconds(batch, self._running_kv_tokens + batch)
        self.tally.prefill_s += factor * prefill_s
        self.tally.decode_s += factor * decode_s
        return factor * (prefill_s + decode_s)

    def _end_step(self, plan_id: int) -> None:
        if plan_id != self._plan_id:
            return
        tally = self.tally
        tally.busy_s[self.role] += self._queue.now_s - self._planned_at_s
        self._planning = True
        steps, self._planned_steps = self._planned_steps, 0
        chunks, self._chunks = self._chunks, ()
        if not chunks:
            tally.decode_s += self._stretch.seconds(steps)
        batch = len(self._running)
        if batch:
            self._step += steps
            self._running_kv_tokens += steps * batch
            self.cache.grow(steps * batch)
            tally.decode_steps += steps
            tally.output_tokens += steps * batch
            self._finish_turns()
        if chunks:
            self._end_chunks(chunks)
        self._plan()

    def _finish_turns(self) -> None:
        finishes = self._finishes
        while finishes and finishes[0][0] <= self._step:
            finish, _, session = heapq.heappop(finishes)
            if self._running.get(session) == finish:
                self._leave_batch(session)
                self._finish(session)

    def _end_chunks(self, chunks: Sequence[tuple[Session, int]]) -> None:
        self.tally.prefill_steps += 1
        for session, tokens in chunks:
            self.tally.prefill_tokens += tokens
            session.prefilled_tokens += tokens
            if session.prefilled_tokens == session.context_tokens:
                self._prefilling.remove(session)
                self._first_token(session)

    def _first_token(self, session: Session) -> None:
        session.context_tokens += 1
        session.remaining_tokens -= 1
        self.tally.output_tokens += 1
        if session.remaining_tokens == 0:
            self._finish(session)
        elif self.role is Role.PREFILL:
            self._hooks.prefilled(self, session)
        else:
            self._join_batch(session)

    def _finish(self, session: Session) -> None:
        self.cache.park(session.index, session.context_tokens - 1)
        self._hooks.turn_done(session)

    # -- the decode batch ------------------------------------------------------------------------------------------

    def _join_ready(self) -> None:
        for session in self._ready:
            self._join_batch(session)
        self._ready.clear()

    def _join_batch(self, session: Session) -> None:
        finish = self._step + session.remaining_tokens
        session.joined_step = self._step
        self._running[session] = finish
        self._running_kv_tokens += session.context_tokens - 1
        heapq.heappush(self._finishes, (finish, session.index, session))

    def _leave_batch(self, session: Session) -> None:
        done = self._step - session.joined_step
        session.context_tokens += done
        session.remaining_tokens -= done
        del self._running[session]
        self._running_kv_tokens -= session.context_tokens - 1

    def _next_finish(self) -> int:
        finishes = self._finishes
        while self._running.get(finishes[0][2]) != finishes[0][0]:
            heapq.heappop(finishes)
        return finishes[0][0]

    # -- KV hand-over ----------------------------------------------------------------------------------------------

    def _pull(self, session: Session, source: Engine, tokens: int) -> None:
        """Pull the missing KV; the source's link sends one cache at a time, latencies overlap."""
        transfer = self.profile.transfer
        sending_s = transfer.seconds(tokens) - transfer.latency_s
        start_s = max(self._queue.now_s, source.link_free_s)
        source.link_free_s = start_s + sending_s
        self._pulling += 1
        self.tally.transfer_s += transfer.latency_s + sending_s
        self.tally.transferred_tokens += tokens
        self._queue.at(source.link_free_s + transfer.latency_s, ARRIVAL, self._pulled, session)

    def _pulled(self, session: Session) -> None:
        self._pulling -= 1
        if session.source is not None:
            session.source.release(session)
            session.source = None
        self._ready.append(session)
        self._poke()


def kv_capacity(profile: EngineProfile, role: Role) -> int:
    """KV tokens of an engine in `role`: prefill needs activations, so only a decode engine has the larger memory."""
    return profile.kv_decode_tokens if role is Role.DECODE else profile.kv_colocated_tokens
