"""Seams of the controller: to the executor of its plans, and to the observer of its telemetry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from pearl.core.cluster import ClusterState
from pearl.core.decision import Decision
from pearl.core.event import Event
from pearl.core.plan import Step
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge, Situation
from pearl.core.telemetry import BatchRecord, Telemetry
from pearl.live.weights import WeightRef


class Released(Protocol):
    """The overlap zone is the trainer's."""

    @property
    def released(self) -> tuple[str, ...]:
        """Workers that gave their memory back, or held none."""
        ...

    @property
    def forced(self) -> tuple[str, ...]:
        """Those of them that were made to."""
        ...

    @property
    def seconds(self) -> float:
        """How long that took."""
        ...


class Published(Protocol):
    """Weights are out."""

    @property
    def version(self) -> int:
        """Their version."""
        ...

    @property
    def updated(self) -> tuple[str, ...]:
        """Workers that hold them now."""
        ...

    @property
    def left(self) -> tuple[str, ...]:
        """Workers that failed to take them and left the pool."""
        ...

    @property
    def seconds(self) -> float:
        """How long that took."""
        ...


class Executor(Protocol):
    """What carries plans out, as `pearl.live.control.executor.LiveExecutor`; on the event loop alone."""

    def observe(self) -> ClusterState:
        """The state as it is now."""
        ...

    def begin_plan(self, plan_id: str) -> None:
        """The steps that follow are of this plan."""
        ...

    def apply(self, step: Step) -> None:
        """Accept one step."""
        ...

    @property
    def busy(self) -> bool:
        """Whether steps of a plan are still being carried out."""
        ...

    def cancel_pending(self) -> None:
        """Drop the steps of an older plan that have not begun."""
        ...

    async def release_overlap(self, *, deadline_s: float, force: bool) -> Released:
        """Wait until no overlap worker holds device memory; `TimeoutError` at the deadline without `force`."""
        ...

    async def publish(self, ref: WeightRef) -> Published:
        """Give every worker that is up these weights. Raises `InputError` for older ones."""
        ...

    async def lose(self, worker_ids: Collection[str]) -> None:
        """Clean up after workers that died."""
        ...

    async def settle(self) -> None:
        """Wait until nothing is being carried out."""
        ...

    async def aclose(self) -> None:
        """Stop carrying out; workers stay as they are."""
        ...


class Observer(Protocol):
    """Turns telemetry and events into the situation that decisions are taken on; on the event loop alone."""

    def hear(self, event: Event) -> None:
        """Take an event in."""
        ...

    def record(self, record: Telemetry) -> None:
        """Take a telemetry record in."""
        ...

    def batch_began(self, now_s: float, decision: Decision) -> None:
        """A batch begins on the pool that was decided on."""
        ...

    def decided(self, now_s: float, decision: Decision) -> None:
        """Another decision was taken, maybe in the middle of a batch."""
        ...

    def batch_ended(self, at_s: float) -> BatchRecord | None:
        """The batch ended: its makespan as predicted and as measured; None where nothing was predicted."""
        ...

    @property
    def calibration_error(self) -> float | None:
        """Moving average of the relative error of predicted makespans; None while nothing was measured."""
        ...

    def situation(self, state: ClusterState, now_s: float, changes: Mapping[Change, ChangeAge]) -> Situation:
        """The situation of a state at a time."""
        ...
