"""One serving engine: continuous batching with chunked prefill, paged KV memory and preemption by recompute.

Every step serves the decoding sequences first (one token each) and gives the rest of its token budget to prefills,
first come first served. While nothing waits, decode steps are taken in one go, up to the first sequence that ends, the
last step that memory allows, or the step during which new work arrives. The rules are those of vLLM's scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from pearl.core.cluster import Role
from pearl.core.engine import EngineProfile
from pearl.sim.decoding import DecodeBatch
from pearl.sim.events import ARRIVAL, STEP_END, WAKE, EventQueue
from pearl.sim.kvcache import KvCache, kv_capacity
from pearl.sim.link import KvLink
from pearl.sim.session import DECODE, OUTSIDE, PREFILL, QUEUE, TRANSFER, Evacuated, Session
from pearl.sim.stretch import Stretch, step_parts_s
from pearl.sim.tally import Tally


class EngineHooks(Protocol):
    """What an engine tells its pool."""

    def prefilled(self, engine: Engine, session: Session) -> None:
        """A prefill engine has the first token; it holds the KV until `Engine.release`."""
        ...

    def turn_done(self, engine: Engine, session: Session) -> None:
        """The turn's last token is out."""
        ...


class Engine:
    """A worker's engine; its role decides its memory, and whether a prefilled sequence stays or is handed over."""

    def __init__(
        self,
        *,
        role: Role,
        profile: EngineProfile,
        name: str = "",
        queue: EventQueue,
        hooks: EngineHooks,
        tally: Tally,
    ) -> None:
        self.name = name
        self.role = role
        self._hands_over = role is Role.PREFILL
        self.profile = profile
        self.tally = tally
        self.cache = KvCache(kv_capacity(profile, role))
        self.accepting = False
        """Whether turns may be sent here; the pool keeps it."""
        self.load = 0
        """Live sessions that call this engine home; the pool keeps it."""
        self.link = KvLink(profile.transfer)
        self._queue = queue
        self._hooks = hooks
        self._waiting: deque[Session] = deque()
        self._prefilling: list[Session] = []
        self._held: dict[Session, None] = {}
        self._pulling: dict[Session, None] = {}
        self._ready: list[Session] = []
        self._decoding = DecodeBatch()
        self._running = self._decoding.ends
        self._chunks: Sequence[tuple[Session, int]] = ()
        self._stretch = Stretch()
        self._planned_steps = 0
        self._planned_at_s = 0.0
        self._parts_s = (0.0, 0.0)
        """Prefill and decode part of a step with prefill chunks."""
        self._paused_until_s = 0.0
        self._plan_id = 0
        self._planning = False
        """Whether a plan is due at this instant anyway."""
        self._cut = False
        """Whether the stretch under way ends at its next step boundary already."""

    def submit(self, session: Session, *, source: Engine | None = None) -> None:
        """Queue a turn: to prefill here, or to pull its KV from `source` and decode here."""
        session.source = source
        session.server = self
        self._waiting.append(session)
        if len(self._waiting) == 1:
            self._poke()

    def release(self, session: Session) -> None:
        """The KV of a handed-over session is no longer needed: its prompt stays as an idle prefix."""
        del self._held[session]
        self.cache.park(session.index, session.context_tokens - 1)
        if self._waiting:
            self._poke()

    def pause(self, until_s: float) -> None:
        """Take no step from the next step boundary until `until_s`, as for a weight update."""
        self._paused_until_s = until_s
        self._poke()

    @property
    def empty(self) -> bool:
        """Whether no session needs this engine."""
        return next(self.sessions(), None) is None

    def sessions(self) -> Iterator[Session]:
        """Every session that this engine serves, queues or holds KV for."""
        yield from (*self._waiting, *self._prefilling, *self._pulling, *self._ready, *self._running, *self._held)

    def tokens_ahead(self, session: Session) -> int:
        """Tokens that a session has put out here since its own counts were last brought up to date."""
        return self._decoding.step + self._steps_over() - session.joined_step if session in self._running else 0

    # -- giving sessions up ----------------------------------------------------------------------------------------

    def withdraw(self, session: Session) -> None:
        """Forget a session that waits here for KV, or pulls it."""
        if session in self._pulling:
            self._call_off_pull(session)
        else:
            self._waiting.remove(session)
        self._poke()

    def evacuate(self) -> Evacuated:
        """Stop at once: whole decode steps count, the step under way is lost. KV stays as idle prefixes."""
        self._abort_step()
        running = list(self._running)
        for session in running:
            self._decoding.leave(session)
        for session in (*running, *self._ready, *self._held):
            self.cache.park(session.index, session.context_tokens - 1)
        for session in self._prefilling:
            self._drop_prefill(session)
        pulling = list(self._pulling)
        for session in pulling:
            self._call_off_pull(session)
        given_up = Evacuated(
            interrupted=[*running, *self._ready, *self._prefilling],
            held=list(self._held),
            queued=[session for session in self._waiting if session.source is None],
            handed=[*pulling, *(session for session in self._waiting if session.source is not None)],
        )
        for group in (self._ready, self._prefilling, self._held, self._waiting):
            group.clear()
        return given_up

    def _steps_over(self) -> int:
        """Decode steps of the stretch under way that are over; its last one is so only once its end is handled."""
        if self._chunks or not self._planned_steps:
            return 0
        elapsed_s = self._queue.now_s - self._planned_at_s
        return min(self._stretch.steps_within(elapsed_s), self._planned_steps - 1)

    def _abort_step(self) -> None:
        if not self._planned_steps:
            return
        elapsed_s = self._queue.now_s - self._planned_at_s
        if self._chunks:
            prefill_s, decode_s = self._parts_s
            share = elapsed_s / (prefill_s + decode_s) if prefill_s + decode_s else 0.0
            self._account(0, elapsed_s, share * prefill_s, share * decode_s)
        else:
            self._account(self._steps_over(), elapsed_s, 0.0, elapsed_s)
        self._planned_steps = 0
        self._plan_id += 1
        self._chunks = ()

    # -- planning: what the next step holds ------------------------------------------------------------------------

    def _poke(self) -> None:
        """Look at the queue at the next step boundary."""
        if self._planning:
            return
        if self._planned_steps == 0:
            self._planning = True
            self._queue.at(self._queue.now_s, WAKE, self._wake)
        elif self._planned_steps > 1 and not self._cut:
            self._cut = True
            steps = self._stretch.steps_until(self._queue.now_s - self._planned_at_s) or 1
            if steps < self._planned_steps:
                self._schedule(steps, self._stretch.seconds(steps))

    def _wake(self, _: None) -> None:
        self._plan()

    def _plan(self) -> None:
        now_s = self._queue.now_s
        if self._paused_until_s > now_s:
            self._planning = True
            self._queue.at(self._paused_until_s, WAKE, self._wake)
            return
        self._planning = self._cut = False
        self._planned_at_s = now_s
        if self._ready:
            self._join_ready()
        running, cache = self._running, self.cache
        while cache.free_tokens < len(running):
            self._preempt()
        if (self._waiting or self._prefilling) and (chunks := self._next_chunks()):
            self._chunks = chunks
            self._schedule(1, self._mixed_step_s())
        elif batch := len(running):
            decoding, stretch = self._decoding, self._stretch
            stretch.restart(self.profile.decode, batch, decoding.kv_tokens + batch)
            steps = min(decoding.steps_left(), cache.free_tokens // batch)
            self._schedule(steps, stretch.seconds(steps))

    def _schedule(self, steps: int, seconds: float) -> None:
        self._planned_steps = steps
        self._plan_id = plan_id = self._plan_id + 1
        self._queue.at(self._planned_at_s + seconds, STEP_END, self._end_step, plan_id)

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
        source, tokens = session.source, session.context_tokens
        sequences = len(self._running) + len(self._prefilling) + len(self._pulling) + len(self._ready)
        if source is not None:
            tokens -= 1
        if sequences >= self.profile.max_sequences or not self.cache.admits(tokens):
            return False
        hit = self.cache.claim(session.index, tokens, most=session.context_tokens - 1)
        if source is not None:
            self._pull(session, source, tokens - hit)
            return True
        session.prefilled_tokens = hit
        session.enter(PREFILL, self._queue.now_s)
        if not session.recomputing:
            session.cached_tokens = hit
            self.tally.prompt_tokens += tokens
            self.tally.hit_tokens += hit
        else:
            self.tally.recomputed_tokens += tokens - hit
        return True

    def _preempt(self) -> None:
        """The sequence admitted last gives its memory back, and will be computed again."""
        if self._prefilling:
            session = self._prefilling.pop()
            self._drop_prefill(session)
        else:
            session = next(reversed(self._running))
            self._decoding.leave(session)
            self.cache.park(session.index, session.context_tokens - 1)
        session.source = None
        session.recomputing = True
        session.enter(QUEUE, self._queue.now_s)
        self._waiting.appendleft(session)
        self.tally.preemptions += 1

    def _drop_prefill(self, session: Session) -> None:
        """Keep what is computed as an idle prefix, and free what was reserved for the rest."""
        self.cache.drop(session.context_tokens - session.prefilled_tokens)
        if session.prefilled_tokens:
            self.cache.park(session.index, session.prefilled_tokens)

    # -- steps: what one did ---------------------------------------------------------------------------------------

    def _mixed_step_s(self) -> float:
        """Time of a step with prefill chunks."""
        batch = len(self._running)
        chunks = [(tokens, session.prefilled_tokens) for session, tokens in self._chunks]
        self._parts_s = prefill_s, decode_s = step_parts_s(
            self.profile, chunks, batch, self._decoding.kv_tokens + batch
        )
        return prefill_s + decode_s

    def _end_step(self, plan_id: int) -> None:
        if plan_id != self._plan_id:
            return
        self._planning = True
        steps, self._planned_steps = self._planned_steps, 0
        elapsed_s = self._queue.now_s - self._planned_at_s
        if chunks := self._chunks:
            self._chunks = ()
            prefill_s, decode_s = self._parts_s
            self._account(steps, elapsed_s, prefill_s, decode_s)
            self._end_chunks(chunks)
        else:
            self._account(steps, elapsed_s, 0.0, elapsed_s)
        self._plan()

    def _account(self, steps: int, busy_s: float, prefill_s: float, decode_s: float) -> None:
        """Count the time, and give every decoding sequence its tokens."""
        tally = self.tally
        tally.busy_s[self.role] += busy_s
        tally.prefill_s += prefill_s
        tally.decode_s += decode_s
        if batch := len(self._running):
            tokens = steps * batch
            tally.decode_steps += steps
            tally.output_tokens += tokens
            finished = self._decoding.advance(steps)
            self.cache.grow(tokens)
            for session in finished:
                self._finish(session)

    def _end_chunks(self, chunks: Sequence[tuple[Session, int]]) -> None:
        tally = self.tally
        tally.prefill_steps += 1
        for session, tokens in chunks:
            tally.prefill_tokens += tokens
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
        elif self._hands_over:
            session.enter(QUEUE, self._queue.now_s)
            self._held[session] = None
            self._hooks.prefilled(self, session)
        else:
            self._join_batch(session)

    def _finish(self, session: Session) -> None:
        self.cache.park(session.index, session.context_tokens - 1)
        session.enter(OUTSIDE, self._queue.now_s)
        session.server = None
        self._hooks.turn_done(self, session)

    def _join_ready(self) -> None:
        for session in self._ready:
            self._join_batch(session)
        self._ready.clear()

    def _join_batch(self, session: Session) -> None:
        session.enter(DECODE, self._queue.now_s)
        self._decoding.join(session)

    # -- KV hand-over ----------------------------------------------------------------------------------------------

    def _pull(self, session: Session, source: Engine, tokens: int) -> None:
        """Pull the missing KV from its source."""
        session.enter(TRANSFER, self._queue.now_s)
        self._pulling[session] = None
        session.pull_id += 1
        self.tally.transfer_s += self.profile.transfer.seconds(tokens)
        self.tally.transferred_tokens += tokens
        arrives_s = source.link.send(tokens, self._queue.now_s)
        self._queue.at(arrives_s, ARRIVAL, self._pulled, (session, session.pull_id))

    def _pulled(self, pull: tuple[Session, int]) -> None:
        session, pull_id = pull
        if session.pull_id != pull_id or session not in self._pulling:
            return
        del self._pulling[session]
        if session.source is not None:
            session.source.release(session)
            session.source = None
        self._ready.append(session)
        self._poke()

    def _call_off_pull(self, session: Session) -> None:
        del self._pulling[session]
        session.pull_id += 1
        self.cache.drop(session.context_tokens - 1)
