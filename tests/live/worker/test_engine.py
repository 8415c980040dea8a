"""The engine over a backend whose misbehaviour is scripted: statuses, versions, transitions and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pearl.core.cluster import Status
from pearl.errors import UsageError
from pearl.live.devices import CPU, CUDA, device_profile
from pearl.live.engine.backend import Output
from pearl.live.engine.config import EngineConfig
from pearl.live.engine.engine import Engine, TransitionLimits, UnfitError
from pearl.live.engine.handover import NixlRoles, make_handle, open_handle
from pearl.live.protocol import Chunk, EngineFailedError, EngineUnavailableError, FinishReason, KvHandle, Leg, Sampling
from tests.live.worker.fake_backend import FakeBackend

CONFIG = EngineConfig(worker="w", model=Path("m0"), device=CPU, kv_port=5000, kv_lease_s=10, kv_margin_s=2.0)
LIMITS = TransitionLimits(kept_s=0.05, total_s=1.0)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 5))


async def engine(backend: FakeBackend | None = None, *, admitted: bool = True, **fields: Any) -> Engine:
    made = Engine(config=CONFIG, backend=backend or FakeBackend(), roles=NixlRoles(lease_s=10), **fields)
    if admitted:
        await made.admit()
    return made


def leg(id: str = "a", tokens: int = 3, **fields: Any) -> Leg:
    return Leg(id=id, prompt=(1, 2), sampling=Sampling(max_tokens=tokens), **fields)


async def ask(e: Engine, wanted: Leg) -> list[Chunk]:
    async with aclosing(e.generate(wanted)) as chunks:
        return [chunk async for chunk in chunks]


def tokens(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def open_leg(e: Engine, wanted: Leg) -> asyncio.Task[list[Chunk]]:
    before = e.report().open_legs
    task = asyncio.create_task(ask(e, wanted))
    while e.report().open_legs == before:
        await asyncio.sleep(0)
    return task


# Legs and statuses


def test_only_an_active_engine_serves_and_a_probe_comes_before() -> None:
    async def main() -> None:
        e = await engine(admitted=False)
        with pytest.raises(EngineUnavailableError, match="w is inactive"):
            await ask(e, leg())
        assert [chunk async for chunk in e.probe(leg())][-1].finish is FinishReason.LENGTH
        await e.admit()
        chunks = await ask(e, leg())
        assert tokens(chunks) == [3, 4, 5]
        assert {chunk.weight_version for chunk in chunks} == {0}
        assert e.report().open_legs == 0

    run(main())


def test_an_abort_keeps_the_tokens_so_far_and_skips_legs_that_are_not_open() -> None:
    async def main() -> None:
        e = await engine(FakeBackend(pace_s=0.005))
        task = await open_leg(e, leg(tokens=1000))
        await asyncio.sleep(0.03)
        await e.abort(["a", "unknown"])
        chunks = await task
        assert chunks[-1].finish is FinishReason.ABORT
        assert tokens(chunks) == list(range(3, 3 + len(tokens(chunks))))
        assert 0 < len(tokens(chunks)) < 1000
        assert tokens(await ask(e, leg())) == [3, 4, 5], "an abort is of one leg, not of its id for ever"

    run(main())


def test_draining_waits_for_its_grace_then_cuts() -> None:
    async def main() -> None:
        e = await engine(FakeBackend(pace_s=0.01))
        short, long = await open_leg(e, leg("s", 3)), await open_leg(e, leg("l", 1000))
        assert await e.drain(1.5) == 1
        assert e.status is Status.INACTIVE
        assert (await short)[-1].finish is FinishReason.LENGTH
        assert (await long)[-1].finish is FinishReason.ABORT
        assert await e.drain(0.2) == 0

    run(main())


# Hand-over


def test_a_prefill_for_another_engine_is_one_token_with_a_handle_that_ends_before_the_lease() -> None:
    async def main() -> None:
        backend, now = FakeBackend(), [100.0]
        e = await engine(backend, wall_s=lambda: now[0])
        kept = (await ask(e, leg(tokens=50, keep_kv=True)))[-1].kv
        assert backend.budgets == [1]
        assert kept is not None
        assert kept.lease_s == CONFIG.kv_lease_s - CONFIG.kv_margin_s
        now[0] = 107.9
        await ask(e, leg("b", kv=kept))
        assert backend.kv_params[-1] == {"do_remote_prefill": True, "remote_request_id": "a"}
        now[0] = 108.0
        with pytest.raises(EngineFailedError, match="expired"):
            await ask(e, leg("c", kv=kept))
        assert len(backend.kv_params) == 2, "the expired handle reached the engine"

    run(main())


def test_handles_of_other_weights_or_makers_are_refused() -> None:
    handle = make_handle({"x": 1}, worker="p", weight_version=3, now_s=0.0, keep_s=5.0)
    assert open_handle(handle, weight_version=3, now_s=4.9) == {"x": 1}
    with pytest.raises(EngineFailedError, match="of weights 3, not 4"):
        open_handle(handle, weight_version=4, now_s=4.9)
    with pytest.raises(EngineFailedError, match="without limits"):
        open_handle(KvHandle(params={"x": 1}), weight_version=3, now_s=0.0)


# Weights


def test_an_update_goes_in_order_and_legs_end_under_the_version_they_began_with() -> None:
    async def main() -> None:
        backend = FakeBackend(pace_s=0.002, kept=2)
        e = await engine(backend)
        task = await open_leg(e, leg(tokens=1000))
        await e.update_weights(version=4, directory=Path("m4"), limits=LIMITS)
        assert backend.log == ["pause", "release", "reload m4 as 4", "reset", "resume"]
        chunks = await task
        assert chunks[-1].finish is FinishReason.ABORT
        assert {chunk.weight_version for chunk in chunks} == {0}
        assert e.status is Status.ACTIVE
        assert (await ask(e, leg()))[0].weight_version == 4
        await e.update_weights(version=4, directory=Path("m4"), limits=LIMITS)
        assert len(backend.log) == 5, "the same version again changes nothing"
        with pytest.raises(EngineUnavailableError, match="newer than 3"):
            await e.update_weights(version=3, directory=Path("m3"), limits=LIMITS)
        assert e.unfit is None

    run(main())


def test_tokens_that_a_slow_reader_left_over_an_update_are_dropped_not_mislabelled() -> None:
    async def main() -> None:
        e = await engine()
        stream = e.generate(leg(tokens=10))
        first = await anext(stream)
        await e.update_weights(version=1, directory=Path("m1"), limits=LIMITS)
        rest = [chunk async for chunk in stream]
        assert first.weight_version == 0
        assert [(chunk.token_ids, chunk.finish) for chunk in rest] == [((), FinishReason.ABORT)]

    run(main())


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (FakeBackend(reload_fails=True), "no such weights"),
        (FakeBackend(reset_works=False), "prefix cache could not be reset"),
        (FakeBackend(reload_s=10), "TimeoutError"),
    ],
)
def test_an_update_that_fails_leaves_the_worker_unfit_for_good(backend: FakeBackend, reason: str) -> None:
    async def main() -> None:
        e = await engine(backend)
        with pytest.raises(UnfitError, match=reason):
            await e.update_weights(version=1, directory=Path("m1"), limits=replace(LIMITS, total_s=0.2))
        assert (e.status, e.weight_version) == (Status.INACTIVE, 0)
        assert "resume" not in backend.log
        for refused in (e.admit(), ask(e, leg()), anext(e.probe(leg()))):
            with pytest.raises(EngineUnavailableError, match="update to weights 1 failed"):
                await refused
        with pytest.raises(UnfitError):
            await e.sleep(LIMITS)

    run(main())


def test_a_cancelled_update_leaves_the_worker_unfit() -> None:
    async def main() -> None:
        e = await engine(FakeBackend(reload_s=10))
        update = asyncio.create_task(e.update_weights(version=1, directory=Path("m1"), limits=LIMITS))
        await asyncio.sleep(0.02)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        assert e.unfit is not None
        assert e.status is Status.INACTIVE

    run(main())


# Sleep


def test_sleep_and_wake_are_idempotent_and_leave_it_inactive() -> None:
    async def main() -> None:
        backend = FakeBackend()
        e = await engine(backend)
        assert await e.sleep(LIMITS) == 4096
        assert await e.sleep(LIMITS) == 0
        for refused in (e.admit(), anext(e.probe(leg()))):
            with pytest.raises(EngineUnavailableError, match="asleep"):
                await refused
        with pytest.raises(EngineUnavailableError, match="asleep"):
            await e.update_weights(version=1, directory=Path("m1"), limits=LIMITS)
        await e.wake(LIMITS)
        await e.wake(LIMITS)
        assert backend.log == ["pause", "sleep", "wake m0", "reset", "resume", "register"]
        assert e.status is Status.INACTIVE
        await e.admit()
        assert tokens(await ask(e, leg())) == [3, 4, 5]

    run(main())


def test_transitions_asked_for_at_once_follow_one_another() -> None:
    async def main() -> None:
        backend = FakeBackend(reload_s=0.02)
        e = await engine(backend)
        updates = (e.update_weights(version=n, directory=Path(f"m{n}"), limits=LIMITS) for n in (1, 2))
        await asyncio.gather(*updates, e.sleep(LIMITS))
        assert backend.log == [
            *("pause", "reload m1 as 1", "reset", "resume"),
            *("pause", "reload m2 as 2", "reset", "resume"),
            *("pause", "sleep"),
        ]

    run(main())


def test_asleep_twice_at_once_is_asleep_once() -> None:
    async def main() -> None:
        backend = FakeBackend()
        e = await engine(backend)
        assert sorted(await asyncio.gather(e.sleep(LIMITS), e.sleep(LIMITS))) == [0, 4096]
        assert backend.log == ["pause", "sleep"]

    run(main())


def test_a_leg_that_reaches_the_backend_after_the_abort_does_not_hold_a_pause() -> None:
    async def main() -> None:
        backend = Sluggish(aborts_missed=1)
        e = await engine(backend)
        task = await open_leg(e, leg(tokens=1000))
        await e.update_weights(version=1, directory=Path("m1"), limits=replace(LIMITS, kept_s=10))
        assert (await task)[-1].finish is FinishReason.ABORT
        assert e.unfit is None

    run(main())


@dataclass(slots=True, kw_only=True)
class Sluggish(FakeBackend):
    """Its first aborts come before their legs, and its pause waits for all legs."""

    aborts_missed: int
    open: int = 0

    async def generate(
        self, leg: str, prompt: Sequence[int], sampling: Sampling, kv_params: Mapping[str, Any] | None
    ) -> AsyncGenerator[Output, None]:
        self.open += 1
        try:
            async for output in FakeBackend.generate(self, leg, prompt, sampling, kv_params):
                yield output
        finally:
            self.open -= 1

    async def abort(self, legs: Collection[str]) -> None:
        if self.aborts_missed:
            self.aborts_missed -= 1
        else:
            await FakeBackend.abort(self, legs)

    async def pause(self) -> None:
        await FakeBackend.pause(self)
        while self.open:
            await asyncio.sleep(0.001)


def test_closing_ends_the_engine() -> None:
    async def main() -> None:
        backend = FakeBackend()
        e = await engine(backend)
        await e.aclose()
        assert backend.log == ["shutdown"]
        with pytest.raises(EngineUnavailableError, match="stopped"):
            await ask(e, leg())

    run(main())


# Configuration


def test_every_fault_of_a_configuration_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        replace(CONFIG, kv_port=0, kv_lease_s=1, max_sequences=0)
    assert [fault.message for fault in caught.value.faults] == [
        "engine w: kv_port is 0",
        "engine w: max_sequences is 0",
        "engine w: kv_lease_s is 1",
        "engine w: kv_margin_s is 2.0",
    ]


def test_profiles_go_by_name() -> None:
    assert device_profile("cpu") is CPU
    assert device_profile("cuda") is CUDA
    with pytest.raises(UsageError, match="expected cpu or cuda"):
        device_profile("tpu")
