"""For trainers: take the training GPUs back before a training step, and lend them again after it.

    trainer = Trainer.find(state_dir=Path("pearl-state"))
    with trainer.training(step):          # rollout has left the overlap GPUs when this is entered
        ...                               # the update
    trainer.publish_weights(version=step + 1, directory=snapshot)

Calls are repeated under one idempotency key while the controller cannot be reached, so that its restart is a delay and
no error. Standard library alone: a training process needs nothing of PEARL's other dependencies.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pearl.errors import Fault, UsageError
from pearl.live.client import ANSWER_S, LONGEST_S, AdminClient, Json, NotRunningError, RejectedError

RETRY_FIRST_S = 0.2
"""First pause before a call is repeated; it doubles up to `RETRY_LONGEST_S`."""
RETRY_LONGEST_S = 2.0
RESTART_S = 60.0
"""How long a controller may be away: a restart that finds dozens of workers takes seconds."""
FORCED_S = 60.0
"""How much later than its deadline a forced begin may be answered: workers then get the cluster's `force` and `stop`
limits, 10 and 30 s unless it says otherwise, to fall asleep or end."""
UNNAMED_DEADLINE_S = 3600.0
"""Bound on a call without a deadline: the controller's own is an hour at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The overlap GPUs are the trainer's."""

    released: tuple[str, ...]
    """Workers that gave their device memory back; their processes live on."""
    forced: tuple[str, ...] = ()
    """Those of them that had to be forced: requests moved at once, or the process ended."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Weights that rollout has from now on."""

    version: int
    updated: tuple[str, ...]
    """Workers that serve them."""
    left: tuple[str, ...] = ()
    """Workers that could not load them in time, and left the pool."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Makespan:
    """A batch that ended."""

    makespan_s: float
    predicted_s: float | None
    """None where nothing was known to predict from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A trainer's calls to the controller. All raise `ClientError`, and are safe to repeat."""

    client: AdminClient
    restart_s: float = field(default=RESTART_S)
    """How long calls are repeated while the controller cannot be reached."""

    @classmethod
    def find(cls, *, state_dir: Path | None = None, url: str | None = None, token: str | None = None) -> Self:
        """The trainer of a controller on this host, or of the one at `url`; as `AdminClient.find`."""
        return cls(client=AdminClient.find(state_dir=state_dir, url=url, token=token))

    def begin_training(self, step: int, *, deadline_s: float | None = None, force: bool = True) -> Released:
        """Wait until no rollout worker holds memory of the training GPUs.

        At the deadline (the cluster's `release` limit where None) workers that still hold some are forced out; without
        `force` the call fails instead (`RejectedError`, 504), and rollout goes on as if it had not been made. A step
        that was finished before is refused (409).
        """
        body = {"step": step, "force": force, **_given(deadline_s=deadline_s)}
        answer = self._call("/training/begin", body, deadline_s=deadline_s, slack_s=FORCED_S if force else ANSWER_S)
        return Released(
            released=_texts(answer, "released"), forced=_texts(answer, "forced"), seconds=_number(answer, "seconds")
        )

    def finish_training(self, step: int, *, window_s: float | None = None) -> None:
        """The training GPUs are free, for `window_s` seconds where that is known: rollout may borrow them."""
        self._call("/training/finish", {"step": step, **_given(window_s=window_s)})

    @contextmanager
    def training(
        self, step: int, *, deadline_s: float | None = None, force: bool = True, window_s: float | None = None
    ) -> Iterator[Released]:
        """`begin_training`, the block, `finish_training`.

        After an error in the block the GPUs stay the trainer's, since its memory may still be on them: call
        `finish_training` once it is not.
        """
        yield self.begin_training(step, deadline_s=deadline_s, force=force)
        self.finish_training(step, window_s=window_s)

    def publish_weights(self, *, version: int, directory: Path, deadline_s: float | None = None) -> Published:
        """Let the workers load a complete snapshot from `directory`, a folder of the cluster's weight store.

        Answers when every worker that serves has the weights or has left the pool. An older version than the newest is
        refused, the newest again changes nothing.
        """
        body = {"version": version, "directory": str(directory)}
        answer = self._call("/weights", body, deadline_s=deadline_s)
        return Published(
            version=version,
            updated=_texts(answer, "updated"),
            left=_texts(answer, "left"),
            seconds=_number(answer, "seconds"),
        )

    def begin_batch(self, step: int, *, trajectories: int, deadline_s: float | None = None) -> None:
        """Wait until rollout step `step` may begin: its weights are no older than the staleness bound allows."""
        body = {"step": step, "trajectories": trajectories, **_given(deadline_s=deadline_s)}
        self._call("/batches", body, deadline_s=deadline_s)

    def finish_batch(self, step: int) -> Makespan:
        """The last trajectory of the step is complete."""
        answer = self._call("/batches/finish", {"step": step})
        predicted = answer.get("predicted_s")
        return Makespan(
            makespan_s=_number(answer, "makespan_s"), predicted_s=None if predicted is None else float(predicted)
        )

    def _call(
        self, path: str, body: Mapping[str, Any], *, deadline_s: float | None = None, slack_s: float = ANSWER_S
    ) -> Json:
        """Repeat the call until it is answered; a broken connection may have carried it out, and the key tells."""
        key = uuid.uuid4().hex
        limit_s = (UNNAMED_DEADLINE_S if deadline_s is None else deadline_s) + slack_s
        until_s = time.monotonic() + self.restart_s
        pause_s = RETRY_FIRST_S
        while True:
            called_s = time.monotonic()
            try:
                return self.client.call("POST", path, body, key=key, deadline_s=limit_s)
            except (NotRunningError, RejectedError) as e:
                if isinstance(e, RejectedError) and not e.passing:
                    raise
                until_s += time.monotonic() - called_s  # the time in which it was there is no absence
                if time.monotonic() + pause_s > until_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LONGEST_S)


def begin_training(step: int, *, deadline_s: float | None = None, force: bool = True) -> Released:
    """As `Trainer.begin_training`, with the controller of the folder `pearl-state`."""
    return Trainer.find().begin_training(step, deadline_s=deadline_s, force=force)


def finish_training(step: int, *, window_s: float | None = None) -> None:
    """As `Trainer.finish_training`, with the controller of the folder `pearl-state`."""
    Trainer.find().finish_training(step, window_s=window_s)


def _given(**fields: float | None) -> dict[str, float]:
    for name, value in fields.items():
        if value is not None and not 0 < value <= LONGEST_S:
            raise UsageError(Fault(message=f"{name} is {value}", expected=f"seconds, above 0 and up to {LONGEST_S:g}"))
    return {name: value for name, value in fields.items() if value is not None}


def _texts(answer: Json, key: str) -> tuple[str, ...]:
    return tuple(str(item) for item in answer.get(key) or ())


def _number(answer: Json, key: str) -> float:
    return float(answer.get(key) or 0.0)
