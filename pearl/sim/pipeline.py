"""The Pipeline Scheduler's part: batches of trajectories, training steps, weight versions and their staleness.

Batch k is rolled out one batch at a time, trained on once its last trajectory is in, and makes weight version k + 1.
It may begin when version k - s is out, s being the allowed staleness: 0 makes rollout and training alternate
(synchronous), 1 overlaps the rollout of a batch with the training on the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pearl.core.event import Event, EventKind
from pearl.core.workload import Training, Workload
from pearl.sim.cluster import SimCluster
from pearl.sim.events import ARRIVAL, EventQueue
from pearl.sim.log import Happening, Record
from pearl.sim.pool import Pool
from pearl.sim.session import Session
from pearl.sim.trajectories import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """Time of one training step, and how long overlap workers have to give its GPUs back."""

    step_s: float
    per_token_s: float = 0.0
    """Added for every token of the batch's contexts."""
    return_within_s: float = 10.0
    """Overlap workers that have not returned by then are made to: more than the 3.2 to 4.4 s that a return takes."""

    def seconds(self, tokens: int) -> float:
        """Time of the step on a batch of `tokens` tokens."""
        return self.step_s + self.per_token_s * tokens


@dataclass(slots=True, kw_only=True)
class Batch:
    """One batch's life; times in seconds from the start of the simulation, None while they lie ahead."""

    index: int
    trajectories: int
    began_s: float
    weights_version: int
    """Version of the weights with which it began."""
    left: int
    tokens: int = 0
    ended_s: float | None = None
    training_began_s: float | None = None
    training_ended_s: float | None = None

    @property
    def makespan_s(self) -> float | None:
        """From its begin to the completion of its last trajectory."""
        return None if self.ended_s is None else self.ended_s - self.began_s

    @property
    def staleness(self) -> int:
        """Versions by which its oldest weights lag when it is trained on."""
        return self.index - self.weights_version


class Pipeline:
    """Starts batches as staleness allows, and trains on them in order.

    The end of the last of `max_batches` stops the queue: what follows, its training for one, is no part of the run.
    """

    def __init__(
        self,
        *,
        workload: Workload,
        cost: TrainingCost,
        draw: Callable[[int], Sequence[Trajectory]],
        pool: Pool,
        cluster: SimCluster,
        queue: EventQueue,
        max_batches: int | None,
    ) -> None:
        self.batches: list[Batch] = []
        self.version = 0
        """Weight version that the engines serve."""
        self.finished = 0
        """Trajectories that ended."""
        self._staleness = 0 if workload.training is Training.SYNCHRONOUS else workload.max_staleness
        self._cost = cost
        self._draw = draw
        self._pool = pool
        self._cluster = cluster
        self._queue = queue
        self._max_batches = max_batches
        self._batch_of: dict[int, Batch] = {}
        self._rolling = False
        self._training = False
        self._rolled: deque[Batch] = deque()
        self._next_session = 0

    def begin(self) -> None:
        """Start the next batch, if none is rolling and staleness allows."""
        index = len(self.batches)
        if self._rolling or index - self._staleness > self.version or index == self._max_batches:
            return
        trajectories = self._draw(index)
        batch = Batch(
            index=index,
            trajectories=len(trajectories),
            began_s=self._queue.now_s,
            weights_version=self.version,
            left=len(trajectories),
        )
        self.batches.append(batch)
        self._rolling = True
        self._record(Happening.BATCH_BEGAN, batch=index, version=self.version)
        self._cluster.happen(Event(kind=EventKind.BATCH_STARTED))
        for trajectory in trajectories:
            session = Session(self._next_session, trajectory, batch=index)
            self._next_session += 1
            self._batch_of[session.index] = batch
            self._pool.start(session)

    def ended(self, session: Session) -> None:
        """A trajectory has ended."""
        self.finished += 1
        batch = self._batch_of.pop(session.index)
        batch.left -= 1
        batch.tokens += session.context_tokens
        if batch.left == 0:
            batch.ended_s = self._queue.now_s
            # An event of its own: the engine that ends the batch is in the middle of its step.
            self._queue.at(self._queue.now_s, ARRIVAL, self._rolled_out, batch)

    def _rolled_out(self, batch: Batch) -> None:
        self._rolling = False
        self._rolled.append(batch)
        self._record(Happening.BATCH_ENDED, batch=batch.index, makespan_s=batch.makespan_s)
        if len(self.batches) == self._max_batches:
            self._queue.stop()
            self._queue.at(self._queue.now_s, ARRIVAL, self._go_on)
        else:
            self._go_on()

    def _go_on(self, _: object = None) -> None:
        self._ask_for_training()
        self.begin()

    def _ask_for_training(self) -> None:
        """Call the overlap GPUs back, and train when they are free."""
        if self._training or not self._rolled:
            return
        self._training = True
        self._cluster.happen(Event(kind=EventKind.TRAINING_STARTED, within_s=self._cost.return_within_s))
        self._cluster.when_overlap_is_free(self._train)

    def _train(self) -> None:
        batch = self._rolled.popleft()
        batch.training_began_s = self._queue.now_s
        self._record(Happening.TRAINING_BEGAN, batch=batch.index)
        self._queue.at(self._queue.now_s + self._cost.seconds(batch.tokens), ARRIVAL, self._trained, batch)

    def _trained(self, batch: Batch) -> None:
        batch.training_ended_s = self._queue.now_s
        self.version += 1
        self._record(Happening.TRAINING_ENDED, batch=batch.index, version=self.version)
        self._cluster.update_weights()
        if self._rolled:
            # The trainer goes on at once and lends nothing: a window of no length is none.
            self._train()
        else:
            self._training = False
            self._cluster.happen(Event(kind=EventKind.TRAINING_FINISHED))
        self.begin()

    def _record(self, what: Happening, **data: object) -> None:
        self._cluster.log.append(Record(at_s=self._queue.now_s, what=what, data=data))
