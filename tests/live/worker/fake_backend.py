"""A backend without a model, whose misbehaviour is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pearl.live.engine.backend import Counters, EngineFacts, Output
from pearl.live.engine.steps import EngineStep
from pearl.live.protocol import EngineFailedError, FinishReason, Sampling


@dataclass(slots=True, kw_only=True)
class FakeBackend:
    """Counts up from the sum of the prompt. `log` holds what was asked of it, in order."""

    pace_s: float = 0.0
    kept: int = 0
    reset_works: bool = True
    reload_fails: bool = False
    reload_s: float = 0.0
    dead: bool = False
    paused: bool = False
    log: list[str] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    kv_params: list[Mapping[str, Any] | None] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    steps: list[EngineStep] = field(default_factory=list)

    async def generate(
        self, leg: str, prompt: Sequence[int], sampling: Sampling, kv_params: Mapping[str, Any] | None
    ) -> AsyncGenerator[Output, None]:
        self.kv_params.append(kv_params)
        self.budgets.append(sampling.max_tokens)
        keeps = bool(kv_params and kv_params.get("do_remote_decode"))
        for number in range(sampling.max_tokens):
            await asyncio.sleep(self.pace_s)
            while self.paused and leg not in self.aborted:
                await asyncio.sleep(0.001)
            if leg in self.aborted:
                self.aborted.discard(leg)
                yield Output(token_ids=(), finish=FinishReason.ABORT)
                return
            last = number + 1 == sampling.max_tokens
            self.kept += last and keeps
            yield Output(
                token_ids=(sum(prompt) + number,),
                finish=FinishReason.LENGTH if last else None,
                kv_params={"do_remote_prefill": True, "remote_request_id": leg} if last and keeps else None,
            )

    async def abort(self, legs: Collection[str]) -> None:
        self.aborted |= set(legs)

    async def pause(self) -> None:
        self.log.append("pause")
        self.paused = True
        while self.kept:
            await asyncio.sleep(0.001)

    async def resume(self) -> None:
        self.log.append("resume")
        self.paused = False

    async def reset_prefix_cache(self) -> bool:
        self.log.append("reset")
        return self.reset_works and not self.kept

    async def release_kept(self) -> int:
        self.log.append("release")
        released, self.kept = self.kept, 0
        return released

    async def reload_weights(self, directory: Path, version: int) -> None:
        self.log.append(f"reload {directory.name} as {version}")
        await asyncio.sleep(self.reload_s)
        if self.reload_fails:
            raise EngineFailedError("no such weights")

    async def sleep(self) -> int:
        self.log.append("sleep")
        return 4096

    async def wake(self, weights: Path) -> None:
        self.log.append(f"wake {weights.name}")

    async def register_anew(self) -> None:
        self.log.append("register")

    async def check(self) -> None:
        return None

    def counters(self) -> Counters:
        return Counters(computed=0, cached=0, transferred=0, kv_usage=0.0)

    def facts(self) -> EngineFacts:
        return EngineFacts(gpu="none", kv_tokens=4096, kv_bytes_per_token=64.0)

    def take_steps(self) -> tuple[EngineStep, ...]:
        steps, self.steps = tuple(self.steps), []
        return steps

    def shutdown(self) -> None:
        self.log.append("shutdown")
