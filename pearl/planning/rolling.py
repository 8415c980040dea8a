"""Rolling role changes: batch by batch, so that the workers that are not in the batch go on serving trajectories."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from pearl.core.cluster import SERVING_ROLES, Role
from pearl.planning.moves import Move

BATCH_SHARE = 2
"""At most one in this many serving workers drains at a time. A worker is away for the same time in a small batch as in
a large one, so small batches lose no less capacity; half the pool keeps the change to a few rounds at any size."""


class Service(IntEnum):
    """How much of a trajectory's turn the pool can serve."""

    NONE = 0
    PARTIAL = 1
    """Prefill without decode, or decode without prefill."""
    WHOLE = 2


_SPLIT_ROLES = (Role.PREFILL, Role.DECODE)

Kind = tuple[Role, Role]
"""Role before and role after."""


def service(serving: Mapping[Role, int], *, without: Role | None = None) -> Service:
    """The service of a pool with so many serving workers by role, and with one fewer in the role `without`."""
    prefill = serving[Role.PREFILL] > (without is Role.PREFILL)
    decode = serving[Role.DECODE] > (without is Role.DECODE)
    if (prefill and decode) or serving[Role.COLOCATED] > (without is Role.COLOCATED):
        return Service.WHOLE
    return Service.PARTIAL if prefill or decode else Service.NONE


Batches = list[list[Move]]


def roll(serving: Sequence[Role], changes: Sequence[Move], *, joining: Sequence[Role]) -> tuple[Batches, Batches]:
    """Batches of role changes before and after the workers of `joining` are admitted.

    What lowers nobody's service happens at once, and the rest when the newcomers help; unless all of it had better
    wait, because an early change would take away the role that a later one needs.
    """
    early = _Rolling(serving, changes)
    before = early.take_safe()
    early.join(joining)
    after = early.take_all()
    if joining:
        late = _Rolling([*serving, *joining], changes)
        everything = late.take_all()
        if late.lowest > early.lowest:
            return [], everything
    return before, after


class _Rolling:
    """Role changes that wait for their turn, and the workers that serve meanwhile."""

    def __init__(self, serving: Iterable[Role], changes: Iterable[Move]) -> None:
        self.lowest = Service.WHOLE
        """The least service so far."""
        self._serving = dict.fromkeys(SERVING_ROLES, 0)
        self.join(serving)
        self._waiting: dict[Kind, deque[Move]] = {}
        for move in changes:
            self._waiting.setdefault((move.before, move.after), deque()).append(move)

    def join(self, roles: Iterable[Role]) -> None:
        """Workers that serve from now on."""
        for role in roles:
            self._serving[role] += 1

    def take_safe(self) -> Batches:
        """The batches during which the pool's service stays what it is; changes that would lower it go on waiting."""
        batches = []
        while batch := self._safe_batch():
            batches.append(batch)
        return batches

    def take_all(self) -> Batches:
        """All batches; where every change that is left would lower the service, the least harmful goes alone."""
        batches = []
        while batch := self._safe_batch() or self._forced_batch():
            batches.append(batch)
        return batches

    def _safe_batch(self) -> list[Move]:
        room = max(1, sum(self._serving.values()) // BATCH_SHARE)
        return self._batch(room=room, floor=service(self._serving))

    def _forced_batch(self) -> list[Move]:
        return self._batch(room=1, floor=Service.NONE)

    def _batch(self, *, room: int, floor: Service) -> list[Move]:
        """Up to `room` changes during which the service does not fall below `floor`."""
        arriving = dict.fromkeys(SERVING_ROLES, 0)
        batch: list[Move] = []
        while len(batch) < room and (kind := self._least_harmful(arriving, floor)):
            before, after = kind
            batch.append(self._pop(kind))
            self._serving[before] -= 1
            arriving[after] += 1
        if batch:
            self.lowest = min(self.lowest, service(self._serving))
        for role, number in arriving.items():
            self._serving[role] += number
        return batch

    def _least_harmful(self, arriving: Mapping[Role, int], floor: Service) -> Kind | None:
        """The change during which most is served; None below `floor`.

        Of equal ones, that which leaves prefill and decode workers both, since colocated ones may all be about to
        change; then the one to the scarcest role.
        """

        def rank(kind: Kind) -> tuple[int, bool, int]:
            before, after = kind
            split = all(
                self._serving[role] + arriving[role] + (role is after) - (role is before) > 0 for role in _SPLIT_ROLES
            )
            return -service(self._serving, without=before), not split, self._serving[after] + arriving[after]

        best = min(self._waiting, key=rank, default=None)
        return best if best and service(self._serving, without=best[0]) >= floor else None

    def _pop(self, kind: Kind) -> Move:
        queue = self._waiting[kind]
        move = queue.popleft()
        if not queue:
            del self._waiting[kind]
        return move
