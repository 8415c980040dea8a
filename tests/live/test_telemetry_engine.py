"""What a worker's engine says of itself and of its steps, over a backend without a model."""

from __future__ import annotations

from pathlib import Path

from pearl.core.telemetry import StepKind
from pearl.live.devices import CPU
from pearl.live.engine.coalesce import merge
from pearl.live.engine.config import EngineConfig
from pearl.live.engine.engine import Engine
from pearl.live.engine.handover import NixlRoles
from pearl.live.engine.steps import EngineStep
from pearl.live.protocol import Chunk, PromptReport
from tests.live.worker.fake_backend import FakeBackend


def engine(backend: FakeBackend) -> Engine:
    config = EngineConfig(worker="w", model=Path("models/tiny"), device=CPU, kv_port=1, max_sequences=7)
    return Engine(config=config, backend=backend, roles=NixlRoles(lease_s=10), wall_s=lambda: 5.0)


def test_an_engine_describes_itself() -> None:
    record = engine(FakeBackend()).describe()
    assert (record.worker, record.model, record.gpu, record.at_s) == ("w", "tiny", "none", 5.0)
    assert (record.kv_tokens, record.kv_bytes_per_token, record.max_sequences) == (4096, 64.0, 7)


def test_steps_are_given_out_once() -> None:
    step = EngineStep(
        ended_unix_s=9.0, seconds=0.5, batch=2, context_tokens=20, prompts=1, new_tokens=8, cached_tokens=4
    )
    made = engine(FakeBackend(steps=[step]))
    (record,) = made.take_steps()
    assert (record.worker, record.seconds, record.at_s, record.kind) == ("w", 0.5, 9.0, StepKind.MIXED)
    assert (record.batch, record.context_tokens) == (2, 20)
    assert (record.prompts, record.new_tokens, record.cached_tokens) == (1, 8, 4)
    assert made.take_steps() == ()


def test_chunks_put_together_keep_what_the_first_says_of_the_prompt() -> None:
    report = PromptReport(cached_tokens=3, queue_s=0.1, prefill_s=0.2)
    merged = merge([Chunk(token_ids=(1,), prompt=report), Chunk(token_ids=(2,))])
    assert (merged.token_ids, merged.prompt) == ((1, 2), report)
