"""What can be read from simulated batches: the left-hand sides of calibration targets and of the paper's section 3.

A gain of A over B is the throughput of A over that of B, less 1; with the same batch, makespan of B over that of A,
less 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from pearl.core.cluster import Counts
from pearl.reproduce.bench import Bench
from pearl.scenario.fields import Seconds, Spec, Whole
from pearl.scenario.units import Dimension
from pearl.sim.batch import BatchResult

MAX_WORKERS = 4096
"""Largest pool of a target."""


def parse_pool(value: object) -> Counts:
    """`16C` or `5P3D` as counts; ValueError for anything else."""
    if isinstance(value, Counts):
        return value
    found = re.fullmatch(r"(?:([1-9]\d{0,3})C|([1-9]\d{0,3})P([1-9]\d{0,3})D)", str(value))
    if not found:
        raise ValueError("expected a pool such as 16C or 5P3D")
    colocated, prefill, decode = (int(text or 0) for text in found.groups())
    return Counts(colocated=colocated, prefill=prefill, decode=decode)


def _disaggregated(pool: Counts) -> Counts:
    if not pool.prefill:
        raise ValueError("expected a disaggregated pool such as 5P3D")
    return pool


Pool = Annotated[Counts, BeforeValidator(parse_pool), WithJsonSchema({"type": "string", "examples": ["16C", "5P3D"]})]
Batch = Annotated[Whole, Field(ge=1, le=100_000)]
Workers = Annotated[Whole, Field(ge=2, le=MAX_WORKERS)]


class Measured(Spec):
    """What all measures have: `dimension` says what the figure is, a share of 1 unless a measure says otherwise."""

    dimension: ClassVar[Dimension] = Dimension.SHARE

    def pools(self) -> tuple[Counts, ...]:
        """Pools that it is read from; of several sizes in one mode, any one."""
        return tuple(value for _, value in self if isinstance(value, Counts))


class Makespan(Measured):
    """Seconds from a batch's begin to the completion of its last trajectory."""

    dimension = Dimension.TIME

    kind: Literal["makespan"]
    pool: Pool
    """Workers by role: `16C` are colocated, `5P3D` five prefill and three decode workers."""
    batch: Batch
    """Trajectories of the batch."""

    def read(self, bench: Bench) -> float:
        """Seconds."""
        return bench.makespan_s(self.pool, self.batch)


class MakespanChange(Measured):
    """Makespan on `after` over that on `before`, less 1."""

    kind: Literal["makespan_change"]
    before: Pool
    """The pool that is compared with, such as `8C`."""
    after: Pool
    """The pool that is compared, such as `12C`."""
    batch: Batch
    """Trajectories of the batch."""

    def read(self, bench: Bench) -> float:
        """A share; negative where `after` is faster."""
        return bench.makespan_s(self.after, self.batch) / bench.makespan_s(self.before, self.batch) - 1


class RolloutShare(Measured):
    """Share of a synchronous step, rollout then training, that rollout takes."""

    kind: Literal["rollout_share"]
    pool: Pool
    """Workers by role: `16C` are colocated, `5P3D` five prefill and three decode workers."""
    batch: Batch
    """Trajectories of the batch."""
    training: Seconds
    """Time of a training step, such as `160s`."""

    def read(self, bench: Bench) -> float:
        """A share."""
        rollout_s = bench.makespan_s(self.pool, self.batch)
        return rollout_s / (rollout_s + self.training)


class TrainerIdle(Measured):
    """Share of an asynchronous step, the longer of rollout and training, in which the trainer waits."""

    kind: Literal["trainer_idle"]
    pool: Pool
    """Workers by role: `16C` are colocated, `5P3D` five prefill and three decode workers."""
    batch: Batch
    """Trajectories of the batch."""
    training: Seconds
    """Time of a training step, such as `160s`."""

    def read(self, bench: Bench) -> float:
        """A share."""
        return max(0.0, 1 - self.training / bench.makespan_s(self.pool, self.batch))


class PrefillTokenShare(Measured):
    """Tokens that prefill computed, recomputed ones included, over those and the generated ones."""

    kind: Literal["prefill_token_share"]
    pool: Pool
    """Workers by role: `16C` are colocated, `5P3D` five prefill and three decode workers."""
    batch: Batch
    """Trajectories of the batch."""

    def read(self, bench: Bench) -> float:
        """A share."""
        tallies = [result.tally for result in bench.results(self.pool, self.batch)]
        return _share((tally.prefill_tokens, tally.output_tokens) for tally in tallies)


class PromptTokenShare(Measured):
    """Tokens of the turns' prompts over those and the generated ones; prompts are whole contexts, found or computed."""

    kind: Literal["prompt_token_share"]
    pool: Pool
    """Workers by role: `16C` are colocated, `5P3D` five prefill and three decode workers."""
    batch: Batch
    """Trajectories of the batch."""

    def read(self, bench: Bench) -> float:
        """A share."""
        tallies = [result.tally for result in bench.results(self.pool, self.batch)]
        return _share((tally.prompt_tokens, tally.output_tokens) for tally in tallies)


class PrefillTimeShare(Measured):
    """Prefill's part of the engines' busy time; in a mixed step, in proportion to what the parts would take alone."""

    kind: Literal["prefill_time_share"]
    pool: Pool
    """Workers by role: `16C` are colocated, `5P3D` five prefill and three decode workers."""
    batch: Batch
    """Trajectories of the batch."""

    def read(self, bench: Bench) -> float:
        """A share."""
        tallies = [result.tally for result in bench.results(self.pool, self.batch)]
        return _share((tally.prefill_s, tally.decode_s) for tally in tallies)


class HitRate(Measured):
    """Share of the turns' prompt tokens, whole contexts, whose KV was there."""

    kind: Literal["prefix_hit_rate"]
    pool: Pool
    """Workers by role: `16C` are colocated, `5P3D` five prefill and three decode workers."""
    batch: Batch
    """Trajectories of the batch."""

    def read(self, bench: Bench) -> float:
        """A share."""
        results: tuple[BatchResult, ...] = bench.results(self.pool, self.batch)
        return sum(result.prefix_hit_rate for result in results) / len(results)


class ModeGain(Measured):
    """Gain of one mode over the other on the same number of workers, disaggregated in its best ratio."""

    kind: Literal["disaggregation_gain", "colocation_gain"]
    workers: Workers
    """Workers in all."""
    batch: Batch
    """Trajectories of the batch."""

    def pools(self) -> tuple[Counts, ...]:
        """One of each mode."""
        return (Counts(colocated=self.workers), Counts(prefill=1, decode=self.workers - 1))

    def read(self, bench: Bench) -> float:
        """A share; negative where the other mode is faster."""
        colocated_s = bench.makespan_s(Counts(colocated=self.workers), self.batch)
        split_s = bench.makespan_s(bench.best_ratio(self.workers, self.batch), self.batch)
        return colocated_s / split_s - 1 if self.kind == "disaggregation_gain" else split_s / colocated_s - 1


class RatioRegret(Measured):
    """Makespan of a ratio over that of the best ratio of as many workers, less 1: 0 where it is the best."""

    kind: Literal["ratio_regret"]
    ratio: Annotated[Pool, AfterValidator(_disaggregated)]
    """A disaggregated pool, such as `5P3D`."""
    batch: Batch
    """Trajectories of the batch."""

    def read(self, bench: Bench) -> float:
        """A share, at least 0."""
        best = bench.best_ratio(self.ratio.serving, self.batch)
        return max(0.0, bench.makespan_s(self.ratio, self.batch) / bench.makespan_s(best, self.batch) - 1)


Measure = Annotated[
    Makespan
    | MakespanChange
    | RolloutShare
    | TrainerIdle
    | PrefillTokenShare
    | PromptTokenShare
    | PrefillTimeShare
    | HitRate
    | ModeGain
    | RatioRegret,
    Field(discriminator="kind"),
]


def _share(parts: Iterable[tuple[float, float]]) -> float:
    first, second = (sum(column) for column in zip(*parts, strict=True))
    return first / (first + second) if first + second else 0.0
