"""The state machine of one request: tokens are kept once, in order, within the budget, over any number of legs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pearl.live.protocol import Chunk, FinishReason, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens that were kept of one chunk; `start` is the index of the first. `logprobs` is empty where none came."""

    start: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int


@dataclass(slots=True, kw_only=True)
class Generation:
    """What a request has so far.

    Legs are numbered; chunks of any leg but the current one are ignored, so a leg that was given up cannot add to
    what its successor produces.
    """

    prompt: Sequence[int]
    sampling: Sampling
    eos_token_ids: frozenset[int] = frozenset()
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    leg: int = 0
    """Number of the leg whose chunks count."""

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.sampling.max_tokens - len(self.token_ids)

    def restore(self, segments: Iterable[Segment]) -> None:
        """Take up what an earlier run kept; `settle` then tells whether anything is left to do."""
        for segment in segments:
            self._keep(segment)

    def begin_leg(self) -> int:
        """Start a leg, which ends any other; returns its number."""
        self.leg += 1
        return self.leg

    def leg_prompt(self) -> list[int]:
        """The prompt of the next leg: the request's own, and the tokens so far."""
        return [*self.prompt, *self.token_ids]

    def leg_sampling(self) -> Sampling:
        """The sampling of the next leg: budgets less what is there.

        A seed moves along with the tokens, since an engine that starts again from the same seed would draw the same
        numbers for other positions.
        """
        done = len(self.token_ids)
        if done == 0:
            return self.sampling
        seed = self.sampling.seed
        return replace(
            self.sampling,
            max_tokens=self.remaining,
            min_tokens=max(self.sampling.min_tokens - done, 0),
            seed=None if seed is None else seed + done,
        )

    def accept(self, leg: int, chunk: Chunk, *, weight_version: int) -> Segment | None:
        """Keep a chunk's tokens up to the budget; None where nothing is kept.

        `weight_version` counts where the chunk does not tell its own.
        """
        if leg != self.leg or self.finish is not None:
            return None
        kept = min(len(chunk.token_ids), self.remaining)
        segment = Segment(
            start=len(self.token_ids),
            token_ids=chunk.token_ids[:kept],
            logprobs=chunk.logprobs[:kept],
            weight_version=weight_version if chunk.weight_version is None else chunk.weight_version,
        )
        self._keep(segment)
        if kept < len(chunk.token_ids):
            self.finish = FinishReason.LENGTH
        elif chunk.finish in (FinishReason.STOP, FinishReason.LENGTH):
            self.finish = chunk.finish
        return segment if kept else None

    def settle(self) -> bool:
        """End the current leg; whether the request is complete.

        An end without a final marker is complete only where the tokens themselves say so: the budget is used up, or
        the last token is one that ends the text.
        """
        self.leg += 1
        if self.finish is None:
            if self._stopped():
                self.finish = FinishReason.STOP
            elif self.remaining == 0:
                self.finish = FinishReason.LENGTH
        return self.finish is not None

    def _stopped(self) -> bool:
        if not self.token_ids or len(self.token_ids) < self.sampling.min_tokens:
            return False
        ends = self.token_ids[-1] in self.eos_token_ids and not self.sampling.ignore_eos
        return ends or self.token_ids[-1] in self.sampling.stop_token_ids

    def _keep(self, segment: Segment) -> None:
        if segment.start != len(self.token_ids):
            raise ValueError(f"segment starts at token {segment.start}, and {len(self.token_ids)} are there")
        self.token_ids += segment.token_ids
        self.logprobs += segment.logprobs
        self.weight_versions += [segment.weight_version] * len(segment.token_ids)
