"""A worker: one Ray actor around one engine. The actor is named and detached, so that a controller can find it again.

RayWorker      a handle: lifecycle, statuses, weights, sleep, canaries
RayEngine      the way of a router to it: an `EngineClient`
WorkerActor    what runs inside the actor
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pearl.core.telemetry import EngineRecord, StepRecord
from pearl.errors import Fault, UsageError
from pearl.live.engine.coalesce import coalesced
from pearl.live.engine.config import EngineConfig
from pearl.live.engine.engine import Engine, EngineReport, TransitionLimits
from pearl.live.engine.handover import NixlRoles
from pearl.live.engine.health import canary, canary_transfer
from pearl.live.engine.ports import PortClaim, claim_ports
from pearl.live.protocol import (
    Chunk,
    EngineError,
    EngineFailedError,
    EngineLostError,
    EngineUnavailableError,
    Leg,
)

NAMESPACE = "pearl"
URL_SCHEME = "ray:"
MAX_CONCURRENT_CALLS = 4096
"""Legs and control calls that an actor runs at once; the router sends far fewer legs."""
CHUNK_COST_S = 0.002
"""What Ray takes to send a chunk, on one core. The chunks of a leg are this far apart for every leg that is open, so
that sending keeps up with any number of them."""
CONTROL_TIMEOUT_S = 30.0
"""For calls that only look, or set a field."""
STOP_TIMEOUT_S = 10.0
"""An engine that has not ended by then is killed with its actor."""
STOP_POLL_S = 0.1


class WorkerActor:
    """Runs inside the Ray actor: the engine, and the legs streamed out of it."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._starting: asyncio.Task[Engine] | None = None
        self._engine: Engine | None = None
        self._ports: PortClaim | None = None

    async def start(self) -> EngineReport:
        """Start the engine. It is inactive until admitted.

        Idempotent: all callers wait for one start, and share its failure. An actor whose engine failed is replaced.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return (await asyncio.shield(self._starting)).report()

    async def _start(self) -> Engine:
        from pearl.live.engine.vllm_backend import start_vllm

        size = self._config.tensor_parallel
        choices = range(self._config.kv_port, self._config.kv_port + max(size, self._config.kv_port_count))
        self._ports = claim_ports(self._config.kv_host, choices, size)
        config = replace(self._config, kv_port=self._ports.ports[0])
        roles = NixlRoles(lease_s=config.kv_lease_s)
        backend = await start_vllm(config, roles)
        self._engine = Engine(config=config, backend=backend, roles=roles)
        return self._engine

    async def generate(self, leg: Leg, probe: bool) -> AsyncGenerator[Chunk, None]:
        """Chunks of a leg; a probe is a canary, and served before the worker is active."""
        engine = self._started()
        chunks = engine.probe(leg) if probe else engine.generate(leg)
        async with aclosing(coalesced(chunks, lambda: CHUNK_COST_S * engine.report().open_legs)) as sent:
            async for chunk in sent:
                yield chunk

    async def abort(self, legs: Collection[str]) -> None:
        """End these legs."""
        await self._started().abort(legs)

    async def admit(self) -> None:
        """Serve."""
        await self._started().admit()

    async def drain(self, grace_s: float) -> int:
        """Serve no more; returns the number of legs cut short."""
        return await self._started().drain(grace_s)

    async def update_weights(self, version: int, directory: Path, limits: TransitionLimits) -> None:
        """Serve other weights."""
        await self._started().update_weights(version=version, directory=directory, limits=limits)

    async def sleep(self, limits: TransitionLimits) -> int:
        """Give memory back; returns the bytes."""
        return await self._started().sleep(limits)

    async def wake(self, limits: TransitionLimits) -> None:
        """Take the memory again."""
        await self._started().wake(limits)

    async def report(self) -> EngineReport:
        """What the engine says of itself; raises `EngineLostError` where it died."""
        engine = self._started()
        await engine.backend.check()
        return engine.report()

    async def describe(self) -> EngineRecord:
        """What the engine is."""
        return self._started().describe()

    async def steps(self) -> tuple[StepRecord, ...]:
        """Engine steps since the last call."""
        return self._started().take_steps()

    async def close(self) -> None:
        """End the engine and its processes; one that is starting ends once it is up."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._engine is not None:
            await self._engine.aclose()
        if self._ports is not None:
            self._ports.close()

    def _started(self) -> Engine:
        if self._engine is None:
            raise EngineUnavailableError(f"{self._config.worker} has not started")
        return self._engine


@dataclass(frozen=True, slots=True, kw_only=True)
class RayWorker:
    """A handle to a worker, in any process of the Ray cluster. Its calls raise `EngineLostError` once it is dead."""

    name: str
    actor: Any

    @classmethod
    def launch(
        cls,
        config: EngineConfig,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        namespace: str = NAMESPACE,
        node_id: str | None = None,
    ) -> RayWorker:
        """Create the actor, named after the worker; `start` then starts its engine.

        An actor of that name that lives is taken as it is. With `node_id` it lives on that node, or not at all.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "name": config.worker,
            "namespace": namespace,
            "get_if_exists": True,
            "lifetime": "detached",
            "num_cpus": cpus,
            "num_gpus": gpus,
            "resources": dict(resources or {}),
            "max_concurrency": MAX_CONCURRENT_CALLS,
            "max_restarts": 0,
        }
        if node_id is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        return cls(name=config.worker, actor=ray.remote(WorkerActor).options(**options).remote(config))

    @classmethod
    def find(cls, name: str, *, namespace: str = NAMESPACE) -> RayWorker:
        """The worker of that name; raises `EngineUnavailableError` where none lives."""
        import ray

        try:
            return cls(name=name, actor=ray.get_actor(name, namespace=namespace))
        except ValueError:
            raise EngineUnavailableError(f"no worker {name!r} in this Ray cluster") from None

    def engine(self, *, probe: bool = False) -> RayEngine:
        """A client of its engine."""
        return RayEngine(worker=self, probe=probe)

    async def start(self, timeout_s: float) -> EngineReport:
        """Start the engine and try it with a canary; the worker is inactive until admitted."""
        report: EngineReport = await self._call("start", timeout_s=timeout_s)
        await self.canary(id="start", timeout_s=timeout_s)
        return report

    async def admit(self) -> None:
        """Let it serve."""
        await self._call("admit", timeout_s=CONTROL_TIMEOUT_S)

    async def drain(self, grace_s: float) -> int:
        """Let it serve no more; open legs may end within `grace_s`. Returns how many were cut short."""
        return int(await self._call("drain", grace_s, timeout_s=grace_s + CONTROL_TIMEOUT_S))

    async def abort(self, legs: Collection[str]) -> None:
        """End these legs with the tokens they have."""
        await self._call("abort", tuple(legs), timeout_s=CONTROL_TIMEOUT_S)

    async def update_weights(self, *, version: int, directory: Path, limits: TransitionLimits) -> None:
        """Serve the weights in `directory`; raises `UnfitError` where that fails."""
        await self._call("update_weights", version, directory, limits, timeout_s=limits.total_s + CONTROL_TIMEOUT_S)

    async def sleep(self, limits: TransitionLimits) -> int:
        """Give memory back; returns the bytes freed."""
        return int(await self._call("sleep", limits, timeout_s=limits.total_s + CONTROL_TIMEOUT_S))

    async def wake(self, limits: TransitionLimits) -> None:
        """Take the memory again; inactive until admitted."""
        await self._call("wake", limits, timeout_s=limits.total_s + CONTROL_TIMEOUT_S)

    async def report(self) -> EngineReport:
        """What it says of itself."""
        report: EngineReport = await self._call("report", timeout_s=CONTROL_TIMEOUT_S)
        return report

    async def describe(self) -> EngineRecord:
        """What its engine is, for the Runtime Tracker; `at_s` on the wall clock."""
        record: EngineRecord = await self._call("describe", timeout_s=CONTROL_TIMEOUT_S)
        return record

    async def steps(self) -> tuple[StepRecord, ...]:
        """Engine steps since the last call, oldest first; `at_s` on the wall clock. Each is given out once."""
        records: tuple[StepRecord, ...] = await self._call("steps", timeout_s=CONTROL_TIMEOUT_S)
        return records

    async def canary(self, *, id: str, timeout_s: float) -> None:
        """A tiny generation; raises `CanaryError` where it fails. `id` must be new."""
        await canary(self.engine(probe=True), id=f"canary-{self.name}-{id}", timeout_s=timeout_s)

    async def canary_from(self, prefill: RayWorker, *, id: str, timeout_s: float) -> None:
        """A tiny transfer from `prefill` to this worker; raises `CanaryError` unless KV moved and tokens are right.

        `id` must be new.
        """

        async def pulled() -> int:
            return (await self.report()).counters.transferred

        await canary_transfer(
            prefill.engine(probe=True),
            self.engine(probe=True),
            id=f"canary-{prefill.name}-{self.name}-{id}",
            pulled=pulled,
            timeout_s=timeout_s,
        )

    async def stop(self) -> None:
        """End the engine, then the actor, whatever state they are in. Idempotent."""
        import ray

        with contextlib.suppress(EngineError):
            await self._call("close", timeout_s=STOP_TIMEOUT_S)
        # Its exit handlers remove vLLM's semaphores from /dev/shm; a kill leaves them.
        self.actor.__ray_terminate__.remote()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._wait_dead()
        ray.kill(self.actor)

    async def _wait_dead(self) -> None:
        while True:
            try:
                await self._call("abort", (), timeout_s=STOP_TIMEOUT_S)
            except EngineLostError:
                return
            except EngineError:
                pass
            await asyncio.sleep(STOP_POLL_S)

    async def _call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await getattr(self.actor, method).remote(*arguments)
        except TimeoutError:
            raise EngineFailedError(f"{self.name}: no answer to {method} in {timeout_s:g} s") from None
        except Exception as e:
            raise _unwrap_control(e, self.name) from None


@dataclass(slots=True, kw_only=True)
class RayEngine:
    """An `EngineClient` through Ray."""

    worker: RayWorker
    probe: bool = False
    _aborts: set[asyncio.Future[Any]] = field(default_factory=set, init=False)

    async def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        """Chunks of the leg; see `EngineClient`."""
        name = self.worker.name
        ended = False
        try:
            async for item in self.worker.actor.generate.remote(leg, self.probe):
                chunk: Chunk = await item
                ended = chunk.finish is not None
                yield chunk
        except Exception as e:
            ended = True
            raise _unwrap(e, name) from None
        finally:
            if not ended:
                self._abort(leg.id)

    def _abort(self, leg: str) -> None:
        """Tell the worker without waiting: this runs while a generator is being closed."""
        call = asyncio.ensure_future(self.worker.abort((leg,)))
        self._aborts.add(call)
        call.add_done_callback(self._aborted)

    def _aborted(self, call: asyncio.Future[Any]) -> None:
        self._aborts.discard(call)
        if not call.cancelled():
            call.exception()

    async def aclose(self) -> None:
        """Wait until aborts under way have reached the worker."""
        await asyncio.gather(*self._aborts, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentEngine:
    """The client of a worker that is not there (any more): a router that restarts may still have it in its pool."""

    because: str

    async def generate(self, leg: Leg) -> AsyncGenerator[Chunk, None]:
        """Raises `EngineUnavailableError`."""
        raise EngineUnavailableError(f"leg {leg.id} did not begin: {self.because}")
        yield  # what makes this a generator, as `EngineClient` wants it

    async def aclose(self) -> None:
        """There is nothing to give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngines:
    """Makes clients of workers in the Ray cluster, at the URL `ray:NAME`."""

    namespace: str = NAMESPACE

    def __call__(self, *, worker: str, url: str) -> RayEngine | AbsentEngine:
        """The client; raises `UsageError` where `url` is not of a Ray worker."""
        name = url.removeprefix(URL_SCHEME)
        if name == url or not name:
            raise UsageError(Fault(message=f"worker {worker}: url is {url!r}", expected=f"{URL_SCHEME}NAME"))
        try:
            return RayWorker.find(name, namespace=self.namespace).engine()
        except EngineUnavailableError as e:
            return AbsentEngine(because=str(e))


def _unwrap_control(error: Exception, worker: str) -> Exception:
    """As `_unwrap`, but an actor out of Ray's reach is not lost: a control call can be repeated, unlike a leg."""
    from ray.exceptions import ActorUnavailableError

    if isinstance(error, ActorUnavailableError):
        return EngineFailedError(f"{worker}: {_first_line(error)}")
    return _unwrap(error, worker)


def _unwrap(error: Exception, worker: str) -> Exception:
    """The error of a worker as it was raised there; that of Ray itself as one of the engine seam."""
    from ray.exceptions import RayActorError, RayError, RayTaskError

    match error:
        case RayTaskError(cause=Exception() as cause):
            return cause
        case RayActorError():
            return EngineLostError(f"{worker}: {_first_line(error)}")
        case RayError():
            return EngineFailedError(f"{worker}: {type(error).__name__}: {_first_line(error)}")
        case _:
            return error


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
