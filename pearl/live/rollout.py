"""A rollout client: multi-turn sessions with an environment whose every observation follows from the tokens so far.

Neither text nor tokenizer: prompts, answers and observations are token ids, drawn from a seed and from all that came
before. So greedy sessions have one right transcript, whatever happens to the pool that serves them, and a token that is
lost, repeated or foreign changes all that follow. `EngineAnswerer` asks one engine directly, for the transcript to
compare with; `pearl.live.rollout_http` asks a router.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from pearl.errors import Fault, PearlError, UsageError
from pearl.live.protocol import EngineClient, EngineError, EngineLostError, FinishReason, Leg, Sampling

Range = tuple[int, int]
"""Least and most, both included."""


class LostError(PearlError):
    """A request was not answered as it should be within its deadline. `accepted`: the router had taken it."""

    def __init__(self, message: str, *, accepted: bool) -> None:
        super().__init__(message)
        self.accepted = accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the sessions are made of. Two environments that are equal, names apart, ask the same."""

    seed: int = 0
    turns: Range = (2, 4)
    first_tokens: Range = (48, 96)
    """Tokens of the first prompt."""
    new_tokens: Range = (12, 32)
    """Tokens that each later prompt adds to the answer before it."""
    output_tokens: Range = (12, 24)
    """Tokens of an answer; end tokens do not cut it short."""
    think_s: float = 0.05
    """Mean time of an environment step; up to twice as long."""
    vocabulary: int = 1024
    name: str = "rollout"
    """Part of the ids of requests and sessions, and of nothing else: two runs of the same sessions need two names."""

    def __post_init__(self) -> None:
        ranges = ("turns", "first_tokens", "new_tokens", "output_tokens")
        faults = [
            Fault(message=f"environment: {name} is {getattr(self, name)}", expected="1 ≤ least ≤ most")
            for name in ranges
            if not 1 <= getattr(self, name)[0] <= getattr(self, name)[1]
        ]
        if self.vocabulary < 2 or not 0 <= self.think_s < float("inf"):
            faults.append(Fault(message=f"environment: {self}", expected="vocabulary ≥ 2, think_s ≥ 0"))
        if faults:
            raise UsageError(faults)

    def session(self, index: int) -> Session:
        """The session of that index, before its first turn."""
        rng = self._rng(index, "session")
        return Session(environment=self, index=index, turns=rng.randint(*self.turns))

    def ask(self, index: int, turn: int, before: Sequence[int]) -> Ask:
        """The request of a turn, where `before` are all tokens of the session so far."""
        rng = self._rng(index, turn, *before)
        new = rng.randint(*(self.new_tokens if turn else self.first_tokens))
        added = tuple(rng.randrange(self.vocabulary) for _ in range(new))
        return Ask(
            id=f"{self.name}.{self.seed}.{index}.{turn}",
            session=f"{self.name}.{self.seed}.{index}",
            prompt=(*before, *added),
            max_tokens=rng.randint(*self.output_tokens),
            think_s=rng.uniform(0.0, 2 * self.think_s),
        )

    def _rng(self, *key: object) -> random.Random:
        return random.Random(f"{self.seed}|{key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, greedy."""

    id: str
    session: str
    prompt: tuple[int, ...]
    max_tokens: int
    think_s: float = 0.0
    """The environment takes this long before it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for one request."""

    token_ids: tuple[int, ...]
    weight_versions: tuple[int | None, ...]
    """Of each token."""
    seconds: float = 0.0
    """From the first try to the last token."""
    tries: int = 1
    refused: int = 0
    """Tries that were answered with 429."""
    contradicted: bool = False
    """Two tries of the request gave different tokens: it was not answered once."""


class Answerer(Protocol):
    """Whoever answers requests."""

    async def answer(self, ask: Ask) -> Answer:
        """The whole answer; raises `LostError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request with its answer."""

    ask: Ask
    answer: Answer


@dataclass(slots=True, kw_only=True)
class Session:
    """One session under way, or over."""

    environment: Environment
    index: int
    turns: int
    done: list[Turn] = field(default_factory=list)
    lost: LostError | None = None

    def next_ask(self) -> Ask | None:
        """The next request; None where the session is over."""
        if self.lost is not None or len(self.done) >= self.turns:
            return None
        before = (*self.done[-1].ask.prompt, *self.done[-1].answer.token_ids) if self.done else ()
        return self.environment.ask(self.index, len(self.done), before)

    @property
    def answers(self) -> tuple[tuple[int, ...], ...]:
        """Tokens of each turn."""
        return tuple(turn.answer.token_ids for turn in self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a rollout."""

    sessions: tuple[Session, ...]
    """In order of their index."""
    seconds: float

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns that were answered."""
        return tuple(turn for session in self.sessions for turn in session.done)

    @property
    def completed(self) -> int:
        """Requests that were answered."""
        return len(self.turns)

    @property
    def losses(self) -> tuple[LostError, ...]:
        """Requests that came to nothing."""
        return tuple(session.lost for session in self.sessions if session.lost is not None)

    @property
    def accepted(self) -> int:
        """Requests that the router took, as far as the client knows."""
        return self.completed + sum(lost.accepted for lost in self.losses)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Ids of requests whose answer is not one answer: contradicted, or of another length than was asked for."""
        return tuple(
            turn.ask.id
            for turn in self.turns
            if turn.answer.contradicted or len(turn.answer.token_ids) != turn.ask.max_tokens
        )

    @property
    def refused(self) -> int:
        """Tries that were answered with 429, and repeated."""
        return sum(turn.answer.refused for turn in self.turns)

    def transcripts(self) -> Mapping[int, tuple[tuple[int, ...], ...]]:
        """Answers of each session, by its index."""
        return {session.index: session.answers for session in self.sessions}

    def differing(self, reference: Outcome) -> tuple[int, ...]:
        """Sessions whose transcripts are not those of the reference, those that it lacks included."""
        right = reference.transcripts()
        return tuple(index for index, answers in self.transcripts().items() if right.get(index) != answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Sessions in a closed loop: each asks, waits for its answer, thinks, and asks again."""

    answerer: Answerer
    environment: Environment
    at_once: int
    """Sessions that run at the same time."""
    on_turn: Callable[[Turn], None] = field(default=lambda _: None)

    async def run(self, indices: Iterable[int]) -> Outcome:
        """Run these sessions; the next index is taken when a session may begin, so that an iterator may end it all.

        A request that is lost ends its session, and no other.
        """
        began_s = time.monotonic()
        sessions: list[Session] = []
        shared = iter(indices)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.at_once):
                group.create_task(self._play(shared, sessions))
        ordered = sorted(sessions, key=lambda session: session.index)
        return Outcome(sessions=tuple(ordered), seconds=time.monotonic() - began_s)

    async def _play(self, indices: Iterator[int], sessions: list[Session]) -> None:
        for index in indices:
            session = self.environment.session(index)
            sessions.append(session)
            await self._finish(session)

    async def _finish(self, session: Session) -> None:
        while ask := session.next_ask():
            await asyncio.sleep(ask.think_s)
            try:
                turn = Turn(ask=ask, answer=await self.answerer.answer(ask))
            except LostError as e:
                session.lost = e
                return
            session.done.append(turn)
            self.on_turn(turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswerer:
    """Asks one engine, past router and pool: the undisturbed run to compare with."""

    engine: EngineClient
    run: str = "reference"
    """Part of the legs' ids, which must be new."""

    async def answer(self, ask: Ask) -> Answer:
        """The whole answer; raises `LostError` where the engine does not give it in one leg."""
        began_s = time.monotonic()
        sampling = Sampling(max_tokens=ask.max_tokens, temperature=0.0, ignore_eos=True)
        leg = Leg(id=f"{self.run}-{ask.id}", prompt=ask.prompt, sampling=sampling)
        tokens: list[int] = []
        versions: list[int | None] = []
        finish: FinishReason | None = None
        try:
            async with aclosing(self.engine.generate(leg)) as chunks:
                async for chunk in chunks:
                    tokens += chunk.token_ids
                    versions += [chunk.weight_version] * len(chunk.token_ids)
                    finish = chunk.finish
            if finish is not FinishReason.LENGTH:
                raise EngineLostError(f"the leg ended with {finish}")
        except EngineError as e:
            raise LostError(f"{ask.id}: {e}", accepted=True) from None
        return Answer(token_ids=tuple(tokens), weight_versions=tuple(versions), seconds=time.monotonic() - began_s)
