"""The event log: one typed record for everything that happens to the cluster and its batches, written as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Happening(StrEnum):
    """What a record is about; append only, since readers match on these."""

    EVENT = "event"
    """The cluster or the trainer told the scheduler something; `data` has its kind and workers."""
    STEP_BEGAN = "step_began"
    STEP_ENDED = "step_ended"
    STEP_DROPPED = "step_dropped"
    """A step that could not be taken any more, and why."""
    WORKER = "worker"
    """A worker's role or status changed, or it left (`data` has `gone`)."""
    GROUP_ROLLED_BACK = "group_rolled_back"
    BATCH_BEGAN = "batch_began"
    BATCH_ENDED = "batch_ended"
    TRAINING_BEGAN = "training_began"
    TRAINING_ENDED = "training_ended"
    DECISION = "decision"
    """What the scheduler decided on an event, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of the log; `at_s` counts from the start of the simulation."""

    at_s: float
    what: Happening
    data: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        """The record as one line, keys in a fixed order."""
        return json.dumps({"at_s": round(self.at_s, 6), "what": self.what.value, **self.data}, ensure_ascii=False)


def to_jsonl(records: Iterable[Record]) -> str:
    """The log's text, one record a line."""
    return "".join(f"{record.to_json()}\n" for record in records)
