"""How long the control plane waits for what it asks of workers. Every wait has a bound here, and a reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pearl.errors import Fault, UsageError
from pearl.live.engine.engine import TransitionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlLimits:
    """Seconds."""

    drain_s: float = 30.0
    """Open legs of a drained worker may finish for this long; then they move elsewhere with the tokens they have."""
    start_s: float = 300.0
    """A worker is up by then, canary passed, or its group is rolled back: a large model loads for minutes."""
    canary_s: float = 30.0
    transition_s: float = 120.0
    """A weight update, a sleep or a waking; past this the worker is unfit and leaves the pool."""
    kept_s: float = 5.0
    """KV caches kept for other workers may be pulled for this long before an update or a sleep gives them up."""
    call_s: float = 30.0
    """A call that only looks, or sets a field."""
    stop_s: float = 30.0
    """Engine and actor have ended by then, or ending them is tried again."""
    hand_back_s: float = 5.0
    """Of the time in which a worker must leave, what is kept for ending its engine after its legs; half of it where
    there is less than twice that."""
    force_s: float = 10.0
    """Past its deadline, a worker has this long to fall asleep; then its process ends."""
    release_s: float = 60.0
    """How long a trainer waits for its GPUs where it names no deadline; then the forced path."""
    health_every_s: float = 2.0
    """Between two looks at the workers and nodes: the longest that a silent death goes unseen."""
    restart_after_s: float = 5.0
    """First pause before a dead engine is started again; it doubles up to `restart_within_s`."""
    restart_within_s: float = 300.0

    def __post_init__(self) -> None:
        faults = [
            Fault(message=f"limits: {item.name} is {getattr(self, item.name)}", expected="more than 0 seconds")
            for item in fields(self)
            if not getattr(self, item.name) > 0
        ]
        if faults:
            raise UsageError(faults)

    @property
    def transition(self) -> TransitionLimits:
        """The limits of one transition of a worker that was drained by the router before."""
        return TransitionLimits(legs_s=0.0, kept_s=self.kept_s, total_s=self.transition_s)
