"""Makespans of a multi-turn batch on real vLLM workers without GPUs: predicted from telemetry, and measured.

    python benchmarks/predicted_measured.py [--workers 3] [--repeats 4] [--cores-per-worker 0.5] [--format json]

Needs vLLM for CPU, NIXL and Ray. Workers of a tiny random model run on an embedded Ray, the router in this process;
clients are closed loops: prompt, answer, a sleep for the environment, answer and observation appended, and so on.
Two calibration batches (colocated, and with one prefill worker) give the telemetry from which workload and engine
profile are fitted, by the code that fits them in production. Then every mode and ratio of the pool is predicted once,
and measured `--repeats` times in an order that alternates. Fresh random tokens in every batch: no prefix is met again.

Workers that share the cores of the machine slow one another down, which no predictor knows of, and GPUs do not do.
`--cores-per-worker` gives each a fixed share of its own, so that it is as fast whether or not the others are busy; all
shares must be free, and half a core more. Without it, as many free cores as workers are needed, and two more. Exit code
1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cores import NoSharesError, core_shares

from pearl.core.cluster import ClusterState, Counts, Role, Status, Worker, Zone
from pearl.core.engine import EngineProfile
from pearl.core.telemetry import Telemetry
from pearl.core.workload import Workload
from pearl.live.devices import CPU
from pearl.live.embedded import set_ray_environment
from pearl.live.engine.config import EngineConfig
from pearl.live.protocol import Sampling
from pearl.live.router.call import Call, Kind
from pearl.live.router.config import RouterConfig
from pearl.live.router.pool import Endpoint, Pool
from pearl.live.router.service import Router
from pearl.live.telemetry import TurnTelemetry, poll_steps
from pearl.live.tiny_model import TinyModel, write_tiny_model
from pearl.live.worker import URL_SCHEME, RayEngines, RayWorker
from pearl.makespan.registry import get_predictor
from pearl.tracking.tracker import RuntimeTracker
from pearl.tracking.workload import WorkloadSettings, WorkloadTracker

MOST_MEDIAN_ERROR = 0.20
NOISE = 2.0
"""Standard errors by which two means must differ for their order to be judged."""
VOCABULARY = 1024
START_S = 600.0
POLL_S = 1.0
FIRST_KV_PORT = 15710
KV_LEASE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The batch: every trajectory draws its own sizes around these means, the same ones in every batch."""

    trajectories: int
    turns: int
    first_prompt: int
    observation: int
    output: int
    environment_s: float
    seed: int = 7

    def draws(self, trajectory: int) -> Iterator[tuple[int, int, float]]:
        """New prompt tokens, output tokens and the wait before each turn."""
        rng = random.Random(f"{self.seed}/{trajectory}")
        for turn in range(self.turns):
            prompt = self.observation if turn else self.first_prompt
            wait_s = rng.expovariate(1 / self.environment_s) if turn else 0.0
            yield round(prompt * rng.uniform(0.5, 1.5)), round(self.output * rng.uniform(0.5, 1.5)), wait_s


@dataclass(slots=True, kw_only=True)
class Cell:
    """One mode and ratio."""

    counts: Counts
    predicted_s: float
    measured_s: list[float] = field(default_factory=list)

    @property
    def mean_s(self) -> float:
        """Mean of the repeats."""
        return statistics.fmean(self.measured_s)

    @property
    def spread_s(self) -> float:
        """Standard deviation of the repeats; 0 for one."""
        return statistics.stdev(self.measured_s) if len(self.measured_s) > 1 else 0.0

    @property
    def error(self) -> float:
        """Relative error of the prediction, positive where it is too long."""
        return self.predicted_s / self.mean_s - 1


def configurations(workers: int) -> list[Counts]:
    """Colocated, and every ratio."""
    ratios = [Counts(prefill=p, decode=workers - p) for p in range(1, workers)]
    return [Counts(colocated=workers), *ratios]


@dataclass(slots=True, kw_only=True)
class Bench:
    """The running cluster, and the batches on it."""

    workers: list[RayWorker]
    router: Router
    turns: TurnTelemetry
    load: Load
    records: list[Telemetry]
    step: int = 0
    epoch: int = 0

    def take(self, counts: Counts) -> None:
        """Give the workers these roles."""
        roles = [role for role in (Role.COLOCATED, Role.PREFILL, Role.DECODE) for _ in range(counts.of(role))]
        states = tuple(
            Worker(id=worker.name, node="local", zone=Zone.RESERVED, role=role, status=Status.ACTIVE)
            for worker, role in zip(self.workers, roles, strict=True)
        )
        self.epoch += 1
        endpoints = {w.id: Endpoint(url=f"{URL_SCHEME}{w.id}", weight_version=0) for w in states}
        self.router.set_pool(Pool(state=ClusterState(workers=states, epoch=self.epoch), endpoints=endpoints))

    async def batch(self, counts: Counts) -> float:
        """Run one batch; its makespan in seconds."""
        self.take(counts)
        self.step += 1
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for trajectory in range(self.load.trajectories):
                group.create_task(self._trajectory(trajectory))
        makespan_s = time.perf_counter() - began_s
        self.turns.batch_ended(self.step)
        return makespan_s

    async def _trajectory(self, number: int) -> None:
        rng = random.Random(f"tokens/{self.step}/{number}")
        context: list[int] = []
        for new, output, wait_s in self.load.draws(number):
            await asyncio.sleep(wait_s)
            context += [rng.randrange(VOCABULARY) for _ in range(new)]
            sampling = Sampling(max_tokens=output, temperature=0.0, ignore_eos=True)
            session = f"b{self.step}-{number}"
            call = Call(kind=Kind.COMPLETION, prompt=tuple(context), sampling=sampling, session=session)
            ticket = self.router.submit(call, None)
            await ticket.done()
            if ticket.ending is None or ticket.ending.finish is None:
                raise RuntimeError(f"{session}: {ticket.ending}")
            context += ticket.generation.token_ids
            self.router.leave(ticket)

    async def calibrate(self) -> tuple[Workload, EngineProfile]:
        """Two batches, and the profiles that their telemetry gives."""
        self.records += [await worker.describe() for worker in self.workers]
        polling = asyncio.create_task(self._poll())
        try:
            for counts in configurations(len(self.workers))[:2]:
                await self.batch(counts)
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling
        await self._take_steps()
        tracker = RuntimeTracker(
            workload=WorkloadTracker(settings=WorkloadSettings(trajectories=self.load.trajectories))
        ).update(self.records, time.time())
        workload, engine = tracker.workload.profile(), tracker.engine.profile()
        if workload is None or engine is None:
            raise RuntimeError("too little telemetry for a fit: give more --trajectories or --turns")
        return workload, engine

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self._take_steps()

    async def _take_steps(self) -> None:
        workers = {worker.name: worker for worker in self.workers}
        self.records += await poll_steps(workers, step=self.step, offset_s=0.0)


@contextmanager
def embedded_ray() -> Iterator[None]:
    """Ray on loopback for the time of the block."""
    set_ray_environment(loopback=True)
    import ray

    ray.init(
        address="local",
        num_cpus=16,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


@asynccontextmanager
async def running(number: int, load: Load, root: Path, cores: float | None) -> AsyncIterator[Bench]:
    """Workers that serve, each on `cores` cores where that is given, and a router before them."""
    model = write_tiny_model(root / "model", TinyModel())
    workers = [RayWorker.launch(_engine(f"pm-{i}", model, i)) for i in range(number)]
    shared = ExitStack()
    try:
        for worker in workers:  # one after the other: starting engines would time one another out on few cores
            await worker.start(START_S)
            await worker.admit()
        if cores is not None:
            shares = shared.enter_context(core_shares([worker.name for worker in workers], cores))
            for worker in workers:
                shares[worker.name].hold([(await worker.report()).pid])
        records: list[Telemetry] = []
        turns = TurnTelemetry(send=records.append, now_s=time.time, step=lambda: bench.step)
        router = Router(RouterConfig(model="tiny", kv_lease_s=KV_LEASE_S), RayEngines(), turns=turns)
        bench = Bench(workers=workers, router=router, turns=turns, load=load, records=records)
        await router.start()
        try:
            yield bench
        finally:
            await router.stop()
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers), return_exceptions=True)
        shared.close()


def _engine(name: str, model: Path, index: int) -> EngineConfig:
    return EngineConfig(
        worker=name,
        model=model,
        device=CPU,
        kv_port=FIRST_KV_PORT + index,
        kv_cache_bytes=128 << 20,
        max_model_tokens=4096,
        max_sequences=64,
        kv_lease_s=KV_LEASE_S,
    )


async def measure(options: argparse.Namespace) -> tuple[list[Cell], EngineProfile]:
    """Calibrate, predict, and measure."""
    load = Load(
        trajectories=options.trajectories,
        turns=options.turns,
        first_prompt=options.first_prompt,
        observation=options.observation,
        output=options.output,
        environment_s=options.environment_s,
    )
    with tempfile.TemporaryDirectory() as root:
        async with running(options.workers, load, Path(root), options.cores_per_worker) as bench:
            workload, engine = await bench.calibrate()
            predictor = get_predictor(options.predictor)
            cells = [
                Cell(counts=counts, predicted_s=predictor.paths(workload, engine, counts).makespan_s)
                for counts in configurations(options.workers)
            ]
            for repeat in range(options.repeats):
                for cell in cells if repeat % 2 == 0 else reversed(cells):
                    cell.measured_s.append(await bench.batch(cell.counts))
    return cells, engine


def judged_pairs(cells: Sequence[Cell]) -> list[tuple[Cell, Cell, bool]]:
    """Pairs whose measured means differ by more than noise, and whether the prediction has them in that order."""
    found = []
    for a, b in itertools.combinations(cells, 2):
        noise_s = math.hypot(a.spread_s, b.spread_s) / math.sqrt(len(a.measured_s))
        gap_s = a.mean_s - b.mean_s
        if abs(gap_s) > NOISE * noise_s and len(a.measured_s) > 1:
            found.append((a, b, (a.predicted_s - b.predicted_s) * gap_s > 0))
    return found


def report(cells: Sequence[Cell], engine: EngineProfile, *, as_json: bool) -> bool:
    """Print the table; whether the goals are met."""
    median_error = statistics.median(abs(cell.error) for cell in cells)
    pairs = judged_pairs(cells)
    right = sum(agrees for *_, agrees in pairs)
    met = median_error <= MOST_MEDIAN_ERROR and right == len(pairs)
    if as_json:
        rows = [
            {
                "configuration": cell.counts.label(),
                "predicted_s": round(cell.predicted_s, 3),
                "measured_s": [round(value, 3) for value in cell.measured_s],
                "mean_s": round(cell.mean_s, 3),
                "spread_s": round(cell.spread_s, 3),
                "error": round(cell.error, 4),
            }
            for cell in cells
        ]
        summary: dict[str, Any] = {
            "rows": rows,
            "median_error": round(median_error, 4),
            "pairs_beyond_noise": len(pairs),
            "pairs_in_order": right,
            "fit": asdict(engine.fit) if engine.fit else None,
            "met": met,
        }
        print(json.dumps(summary, indent=2))
        return met
    print(f"{'':8}  predicted    measured ± spread    error")
    for cell in cells:
        spread = f"{cell.mean_s:8.2f} s ± {cell.spread_s:.2f} s"
        print(f"{cell.counts.label():8}  {cell.predicted_s:7.2f} s  {spread:>19}  {cell.error:+7.1%}")
    print(f"median error {median_error:.1%} (goal: at most {MOST_MEDIAN_ERROR:.0%})")
    print(f"pairs that differ by more than {NOISE:g} standard errors: {len(pairs)}, predicted in order: {right}")
    if engine.fit:
        print(
            f"step times fitted to {engine.fit.points} steps, mean error: "
            f"prefill {engine.fit.prefill_mean:.1%}, decode {engine.fit.decode_mean:.1%}"
        )
    return met


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3, choices=range(2, 9), metavar="N")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--trajectories", type=int, default=24)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--first-prompt", type=int, default=400, help="mean tokens")
    parser.add_argument("--observation", type=int, default=120, help="mean tokens")
    parser.add_argument("--output", type=int, default=48, help="mean tokens")
    parser.add_argument("--environment-s", type=float, default=0.5, help="mean seconds")
    parser.add_argument("--cores-per-worker", type=float, help="fixed share of each worker, in cores: 0.5")
    parser.add_argument("--predictor", default="network")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    with embedded_ray():
        try:
            cells, engine = asyncio.run(measure(options))
        except NoSharesError as e:
            parser.error(f"--cores-per-worker: {e}")
    return 0 if report(cells, engine, as_json=options.format == "json") else 1


if __name__ == "__main__":
    sys.exit(main())
