"""The plan: ordered, typed steps from the current state to a decision, the same format for every executor."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.core.cluster import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Stop dispatch to a worker and let what it runs finish, or keep its partials."""

    worker: str
    estimated_s: float
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRole:
    """A serving worker takes another serving role; it restarts nothing."""

    worker: str
    before: Role
    after: Role
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """An idle, running worker begins to serve."""

    worker: str
    role: Role
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deactivate:
    """A drained worker ceases to serve and keeps its GPUs."""

    worker: str
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrow:
    """An overlap worker wakes on training GPUs, takes the newest weights, and serves."""

    worker: str
    role: Role
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A drained overlap worker frees its device memory for the trainer."""

    worker: str
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An engine starts in the background on GPUs that joined."""

    worker: str
    role: Role
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitGroup:
    """Started workers join the pool together, all or none."""

    workers: tuple[str, ...]
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A drained worker's engine ends and its GPUs go back."""

    worker: str
    estimated_s: float


Step = Drain | ChangeRole | Activate | Deactivate | Borrow | Return | Start | AdmitGroup | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in order; `from_epoch` is the state that the plan was made for, and an executor refuses any other."""

    from_epoch: int
    steps: tuple[Step, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps
