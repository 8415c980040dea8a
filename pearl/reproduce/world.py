"""The paper's cluster around a calibrated workload and engine, and one policy's run in it.

What the paper leaves open, and what is assumed: batches of 64 where it does not say; asynchronous training with a
staleness of one version; a training step of 163.8 s at B = 64 on 16 GPUs (section 3.1), in proportion to the tokens of
its batch, the same for both models; transition costs at the middle of the ranges of section 6.5.2, which are the
defaults of TransitionCosts; training GPUs are free to borrow whenever no training step runs. No worker has a role
before the first decision: there is nothing to stay with yet, so that no threshold on a change applies to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean

from pearl.api import choose_predictor, choose_solver
from pearl.core.cluster import ClusterState, Role, Status, Worker, Zone
from pearl.core.situation import Situation
from pearl.core.workload import Training, Workload
from pearl.errors import UsageError
from pearl.policy.load import load_policy
from pearl.policy.model import Policy
from pearl.reproduce.models import load_model
from pearl.reproduce.segments import Segment, trace_of
from pearl.reproduce.targets import CONTEXT_LIMIT, DEFAULT_BATCH, OVERLAP_GPUS
from pearl.sim.experiment import Experiment, run_experiment
from pearl.sim.pipeline import Batch, TrainingCost
from pearl.sim.rollout import SECONDS_PER_HOUR
from pearl.sim.study import DEMAND_SOURCES
from pearl.sim.trajectories import context_tokens, sample
from pearl.tracking.forecasters import get_forecaster
from pearl.tracking.life_cycle import HORIZON_S as FORECAST_HORIZON_S

POLICIES = Path(__file__).parent / "policies"
"""The built-in policies as they run here, and the paper's ablations.

None has the rules that a batch must fit into KV memory. In the paper four GPUs serve batches of 64 colocated, and five
of eight prefill for the other three: by those rules, with contexts at their end, neither fits. The simulated engines
evict and preempt instead, and the predictor prices that.
"""
TRAINING_STEP_S = 163.8
"""Training step at a batch of DEFAULT_BATCH (section 3.1)."""
TOKEN_SAMPLE_BATCHES = 8
"""Batches over which the tokens of a training step are averaged: 512 trajectories, 1 % of standard error."""
PREDICTOR = "network"
FORECASTER = "life_cycle"
"""Forecast of a policy that follows demand: Prorsa's own. It decides once in each horizon of the forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """One simulated run: what it depends on, and nothing else."""

    model: str
    policy: str
    rollout_gpus: int
    seed: int
    horizon_s: float
    overlap_gpus: int = OVERLAP_GPUS
    segment: Segment | None = None
    batch: int = DEFAULT_BATCH
    context_limit: int = CONTEXT_LIMIT
    training: Training = Training.ASYNCHRONOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """What the rows are made of."""

    throughput_traj_per_h: float
    makespan_s: float
    """Mean over the batches that ended."""


def simulate_run(key: RunKey) -> RunFigures:
    """Carry one run out."""
    model = load_model(key.model)
    workload = replace(
        model.workload, trajectories=key.batch, max_context_tokens=key.context_limit, training=key.training
    )
    policy = find_policy(key.policy)
    state = ClusterState(workers=tuple(_workers(key)))
    report = run_experiment(
        Experiment(
            world=Situation(state=state, workload=workload, engine=model.engine),
            policy=policy,
            predictor=choose_predictor(policy, PREDICTOR),
            solver=choose_solver(policy, None),
            training=TrainingCost(step_s=0.0, per_token_s=TRAINING_STEP_S / batch_tokens(model.workload)),
            horizon_s=key.horizon_s,
            seed=key.seed,
            forecaster=get_forecaster(FORECASTER),
            tick_every_s=FORECAST_HORIZON_S if policy.sources & DEMAND_SOURCES else None,
            trace=None if key.segment is None else trace_of(key.segment, key.seed).segment(0.0, key.horizon_s),
        )
    )
    rollout = report.rollout
    return RunFigures(
        throughput_traj_per_h=_throughput_traj_per_h(rollout.batches),
        makespan_s=fmean(rollout.makespans_s),
    )


def _throughput_traj_per_h(batches: Sequence[Batch]) -> float:
    """Trajectories of the batches that ended, over the time to the end of the last.

    A run holds about ten batches, so that one cut off by the run's end would weigh a tenth. Raises UsageError where
    none ended.
    """
    ended = [(batch.ended_s, batch.trajectories) for batch in batches if batch.ended_s is not None]
    if not ended:
        raise UsageError("no batch ended within the run; expected a longer horizon")
    last_s = max(at_s for at_s, _ in ended)
    return sum(trajectories for _, trajectories in ended) * SECONDS_PER_HOUR / last_s


def find_policy(name: str) -> Policy:
    """The reproduction's form of a policy: a built-in one without its rules on KV memory, or an ablation."""
    return load_policy(POLICIES / f"{name}.yaml")


@cache
def batch_tokens(workload: Workload) -> float:
    """Mean tokens of a batch's contexts at the paper's batch and context limit."""
    usual = replace(workload, trajectories=DEFAULT_BATCH * TOKEN_SAMPLE_BATCHES, max_context_tokens=CONTEXT_LIMIT)
    return sum(context_tokens(one) for one in sample(usual, Random(0))) / TOKEN_SAMPLE_BATCHES


def _workers(key: RunKey) -> Iterator[Worker]:
    for index in range(key.rollout_gpus):
        yield _without_role(f"rollout/{index}", Zone.RESERVED)
    for index in range(key.overlap_gpus):
        yield _without_role(f"train/{index}", Zone.OVERLAP)


def _without_role(name: str, zone: Zone) -> Worker:
    return Worker(id=name, node=name.partition("/")[0], zone=zone, role=Role.INACTIVE, status=Status.INACTIVE)
