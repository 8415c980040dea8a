"""One batch on a fixed pool: the makespan that the predictors are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pearl.core.cluster import SERVING_ROLES, Counts, Role
from pearl.core.engine import EngineProfile
from pearl.core.workload import Workload
from pearl.errors import UsageError
from pearl.sim.engine import Engine
from pearl.sim.events import EventQueue
from pearl.sim.kvcache import kv_capacity
from pearl.sim.pool import Pool
from pearl.sim.session import Session
from pearl.sim.tally import Tally
from pearl.sim.trajectories import Trajectory, context_tokens, sample


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What became of a batch; times in seconds from its start."""

    makespan_s: float
    """Completion of the last trajectory."""
    finish_s: tuple[float, ...]
    """Completion of each trajectory, in the order given."""
    tally: Tally

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the turns' prompt tokens (whole contexts) whose KV was there."""
        return self.tally.hit_tokens / self.tally.prompt_tokens if self.tally.prompt_tokens else 0.0


def simulate_batch(
    workload: Workload,
    engine: EngineProfile,
    *,
    counts: Counts,
    seed: int,
    trajectories: Sequence[Trajectory] | None = None,
) -> BatchResult:
    """Run one batch on `counts` workers, every trajectory submitted at time 0.

    The trajectories are drawn from the workload by `seed` alone, unless given: every configuration meets the same.
    Raises UsageError where no worker serves, modes are mixed, or a context outgrows a worker's KV memory.
    """
    batch = tuple(trajectories) if trajectories is not None else sample(workload, Random(seed))
    _check(batch, engine, counts)
    queue = EventQueue()
    tally = Tally()
    finish_s = [0.0] * len(batch)

    def done(session: Session) -> None:
        finish_s[session.index] = queue.now_s

    pool = Pool(queue=queue, routing=workload.routing, done=done, tally=tally)
    roles = [role for role in SERVING_ROLES for _ in range(counts.of(role))]
    for role in roles:
        pool.add(Engine(role=role, profile=engine, queue=queue, hooks=pool, tally=tally))
    for index, trajectory in enumerate(batch):
        pool.start(Session(index, trajectory))
    queue.run()
    return BatchResult(makespan_s=max(finish_s, default=0.0), finish_s=tuple(finish_s), tally=tally)


def _check(batch: Sequence[Trajectory], engine: EngineProfile, counts: Counts) -> None:
    if counts.colocated and (counts.prefill or counts.decode):
        raise UsageError(f"{counts.label()} mixes modes; a pool is either colocated or disaggregated")
    if not counts.colocated and not (counts.prefill and counts.decode):
        raise UsageError(f"{counts.label()} cannot serve: give colocated workers, or both prefill and decode workers")
    longest = max((context_tokens(trajectory) for trajectory in batch), default=0)
    roles = [Role.COLOCATED] if counts.colocated else [Role.PREFILL, Role.DECODE]
    memory = min(kv_capacity(engine, role) for role in roles)
    if longest > memory:
        raise UsageError(f"a trajectory reaches {longest} tokens; the KV memory of {engine.name} holds {memory}")
