"""The seam between an engine and the serving library under it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pearl.live.engine.steps import EngineStep
from pearl.live.protocol import FinishReason, PromptReport, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """New tokens of one leg."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    finish: FinishReason | None = None
    kv_params: Mapping[str, Any] | None = None
    prompt: PromptReport | None = None
    """With the leg's first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine knows of its memory once it has started."""

    gpu: str
    """Name of the device."""
    kv_tokens: int
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Prompt tokens since the start by where their KV came from, and the share of KV blocks in use (0 to 1)."""

    computed: int
    cached: int
    transferred: int
    kv_usage: float


class Backend(Protocol):
    """A serving library in this process. All methods raise `EngineError` where the library fails."""

    def generate(
        self, leg: str, prompt: Sequence[int], sampling: Sampling, kv_params: Mapping[str, Any] | None
    ) -> AsyncGenerator[Output, None]:
        """Outputs of a leg as they come; closing the generator aborts it."""
        ...

    async def abort(self, legs: Collection[str]) -> None:
        """End these legs with what they have."""
        ...

    async def pause(self) -> None:
        """Abort all legs, schedule no more, and return once no KV block is in use, kept ones included."""
        ...

    async def resume(self) -> None:
        """Schedule again."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False where blocks are still in use, and then nothing was forgotten."""
        ...

    async def release_kept(self) -> int:
        """Give up every KV cache kept for others; returns how many."""
        ...

    async def reload_weights(self, directory: Path, version: int) -> None:
        """Replace the weights by those in `directory`."""
        ...

    async def sleep(self) -> int:
        """Give memory back; returns the bytes freed. The engine is paused."""
        ...

    async def wake(self, weights: Path) -> None:
        """Take the memory again, with the weights in `weights`. The engine stays paused."""
        ...

    async def register_anew(self) -> None:
        """Register the memory of the KV cache for transfers again, so that peers reach it anew. No leg is open."""
        ...

    async def check(self) -> None:
        """Raise `EngineLostError` where the engine is dead."""
        ...

    def counters(self) -> Counters:
        """Figures of the library itself."""
        ...

    def facts(self) -> EngineFacts:
        """Capacity and device."""
        ...

    def take_steps(self) -> tuple[EngineStep, ...]:
        """The newest steps since the last call, oldest first; a bounded number of them."""
        ...

    def shutdown(self) -> None:
        """End all processes of the engine."""
        ...
