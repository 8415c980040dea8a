"""The trainer's side of the overlap zone: it begins a training step once the zone is free, and gives it back.

Calls carry the training step, so that repeated and re-ordered ones do no harm: a step that is finished cannot begin.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from pearl.core.event import Event, EventKind
from pearl.live.control.documents import compact
from pearl.live.control.pipeline import StaleError
from pearl.live.control.ports import Executor
from pearl.live.control.store import ControlStore, Fact, SetFact


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The overlap zone is the trainer's."""

    released: tuple[str, ...]
    forced: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Where training stands."""

    running: int | None = None
    """Step that began, or is about to."""
    handover: Handover | None = None
    """What its begin was answered; None until the zone is free."""
    finished: int = -1
    """Newest step that is over."""

    def begun(self, step: int) -> Training:
        """Once `step` is asked for. A newer step than the one that runs takes its place: its finish was lost.

        Raises `StaleError` for a step that is over.
        """
        newest = max(self.finished, -1 if self.running is None else self.running)
        if step <= self.finished or step < newest:
            raise StaleError(f"training step {step} is over: the newest is {newest}")
        return self if self.running == step else Training(running=step, finished=self.finished)

    def ended(self, step: int) -> Training:
        """Once `step` is over, whether or not it was seen to begin. Raises `StaleError` where a newer one is known.

        The same again changes nothing.
        """
        if step < self.finished or (self.running is not None and step < self.running):
            raise StaleError(f"training step {step} is over: a newer one is known")
        return Training(finished=step)


class TrainerDesk:
    """Answers the trainer; on the event loop alone."""

    def __init__(
        self,
        *,
        store: ControlStore,
        executor: Executor,
        raise_event: Callable[[Event], int],
        marked: Callable[[], bool],
        on_finish: Callable[[], None],
    ) -> None:
        """`marked` is whether the ledger has the overlap zone as the trainer's.

        `on_finish` is called once a training step is over, or did not come about.
        """
        self._store = store
        self._executor = executor
        self._raise_event = raise_event
        self._marked = marked
        self._on_finish = on_finish
        self._releasing: asyncio.Task[Handover] | None = None
        self._waiting: Counter[asyncio.Task[Handover]] = Counter()
        """Callers that wait for each release: that of a step that a newer one took the place of may still go on."""
        self.training = store.fact_as(Fact.TRAINING, Training) or Training()

    @property
    def running(self) -> bool:
        """Whether the trainer has the zone, or is about to get it."""
        return self.training.running is not None

    async def begin(self, *, step: int, deadline_s: float, force: bool) -> Handover:
        """Free the overlap zone for `step`; the same again waits for, or gives, the same answer.

        Raises `StaleError`, and `TimeoutError` where the zone is not free at the deadline and `force` is not given:
        everything is then as before. So it is where the wait is cancelled.
        """
        training = self.training.begun(step)
        if training.handover is not None:
            return training.handover
        if training is not self.training or self._releasing is None:
            self._become(training)
            self._raise_event(Event(kind=EventKind.TRAINING_STARTED, within_s=deadline_s))
            release = self._release(step, deadline_s=deadline_s, force=force)
            self._releasing = asyncio.get_running_loop().create_task(release, name=f"training {step}")
        return await self._await(step, self._releasing)

    async def _await(self, step: int, release: asyncio.Task[Handover]) -> Handover:
        """Wait with others for one release; it is called off when the last of them goes away."""
        self._waiting[release] += 1
        try:
            return await asyncio.shield(release)
        except asyncio.CancelledError:
            if release.cancelled():
                raise StaleError(f"training step {step} was finished before it began") from None
            if self._waiting[release] == 1:
                release.cancel()
            raise
        finally:
            self._waiting[release] -= 1
            if not self._waiting[release]:
                del self._waiting[release]

    async def _release(self, step: int, *, deadline_s: float, force: bool) -> Handover:
        try:
            done = await self._executor.release_overlap(deadline_s=deadline_s, force=force)
        except BaseException:
            if self.training.running == step:
                self._rolled_back()
            raise
        handover = Handover(released=tuple(done.released), forced=tuple(done.forced), seconds=done.seconds)
        if self.training.running == step:
            self._become(replace(self.training, handover=handover))
        return handover

    def _rolled_back(self) -> None:
        """The zone is rollout's again; the executor may have said so already."""
        self._releasing = None
        if self._marked():
            self._raise_event(Event(kind=EventKind.TRAINING_FINISHED))
        self._become(replace(self.training, running=None))
        self._on_finish()

    def finish(self, *, step: int, window_s: float | None) -> bool:
        """The overlap GPUs are idle again, for `window_s` seconds where that is known. Raises `StaleError`.

        Returns whether that is new.
        """
        training = self.training.ended(step)
        if training == self.training:
            return False
        if self._releasing is not None and not self._releasing.done():
            self._releasing.cancel()
        self._releasing = None
        # The event comes first: killed in between, the trainer's next call puts the rest right.
        self._raise_event(Event(kind=EventKind.TRAINING_FINISHED, within_s=window_s))
        self._become(training)
        self._on_finish()
        return True

    def _become(self, training: Training) -> None:
        self._store.write(SetFact(fact=Fact.TRAINING, document=compact(asdict(training))))
        self.training = training
