"""Events: why a decision is due."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """What happened."""

    GPUS_ADDED = "gpus_added"
    RECLAIM_NOTICE = "reclaim_notice"
    GPUS_LOST = "gpus_lost"
    TRAINING_STARTED = "training_started"
    TRAINING_FINISHED = "training_finished"
    PROFILE_UPDATED = "profile_updated"
    BATCH_STARTED = "batch_started"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event: the workers it touches, and how long they have (reclaim grace, or training window)."""

    kind: EventKind
    workers: tuple[str, ...] = ()
    within_s: float | None = None
    at_s: float = 0.0
