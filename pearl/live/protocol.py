"""Seams of the router to its engines and to a tokenizer.

EngineError               a leg did not end as it should
├── EngineUnavailableError   nothing began: the engine cannot be reached, or takes no more
├── EngineLostError          the engine went away in the middle of the leg
├── EngineFailedError        the engine answered that this leg failed; it serves others
└── EngineRefusedError       the request itself cannot be served (too long, say): trying again does not help
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from pearl.errors import PearlError


class EngineError(PearlError):
    """A leg did not end as it should."""


class EngineUnavailableError(EngineError):
    """Nothing began: the engine cannot be reached, or takes no more work."""


class EngineLostError(EngineError):
    """The engine went away in the middle of the leg."""


class EngineFailedError(EngineError):
    """The engine answered that this leg failed, and serves others."""


class EngineRefusedError(EngineError):
    """The request itself cannot be served; `status` is the HTTP status for the client."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class FinishReason(StrEnum):
    """Why an engine ended a leg."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """Cut short by the engine: an interruption, never the end of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn, and when to stop. `top_k` 0 means all tokens; budgets count output tokens."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHandle:
    """Names a KV cache that an engine keeps for another to pull; `params` is the engine's own, and plain JSON."""

    params: Mapping[str, Any]
    lease_s: float | None = None
    """How long the engine keeps it from the moment of prefill, in seconds; None: as configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One dispatch of a request to one engine. A request takes one leg, or as many as its interruptions ask for."""

    id: str
    """Unique over all legs of all requests."""
    prompt: Sequence[int]
    sampling: Sampling
    kv: KvHandle | None = None
    """The KV cache of the prompt, to be pulled instead of computed."""
    keep_kv: bool = False
    """Prefill for another engine: one token, and the last chunk carries the handle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReport:
    """What became of a leg's prompt, by the engine's own clock."""

    cached_tokens: int
    """Part of the prompt that was cached. For a prompt that was pulled: here or where it was computed, as engines have
    it."""
    queue_s: float
    """From the leg's arrival to the step that took it up, the pull of its KV cache included."""
    prefill_s: float
    """From there to its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens as they come, each with its log-probability where asked for.

    `weight_version` is that of every token of the chunk; None from engines that do not say. A stream whose end comes
    before a chunk with `finish` was interrupted.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weight_version: int | None = None
    finish: FinishReason | None = None
    kv: KvHandle | None = None
    prompt: PromptReport | None = None
    """With the first tokens of a leg, from engines that say."""


class EngineClient(Protocol):
    """A way to one worker's engine."""

    def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        """Chunks of the leg; closing the generator aborts it. Raises `EngineError`."""
        ...

    async def aclose(self) -> None:
        """Give up connections. The engine itself goes on."""
        ...


class EngineFactory(Protocol):
    """Makes the client of a worker that joined the pool."""

    def __call__(self, *, worker: str, url: str) -> EngineClient:
        """The client for the engine at `url`; raises `InputError` where the address cannot be one."""
        ...


class Tokenizer(Protocol):
    """Between text and token ids, for callers that send or want text."""

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of plain text."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Token ids of a conversation in the model's template, ready for the assistant's turn."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; an incomplete character at the end reads as U+FFFD."""
        ...
