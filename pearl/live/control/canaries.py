"""Canaries: what a worker has to do right before it is admitted."""

from __future__ import annotations

import itertools
import uuid

from pearl.core.cluster import Status
from pearl.live.control.crew import Crew
from pearl.live.control.seat import Seat


class Canaries:
    """Tiny legs with ids that no other run of the controller uses."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    async def generate(self, seat: Seat) -> None:
        """The worker generates. Raises `CanaryError`, or what the worker raises."""
        if seat.handle is not None:
            limit_s = self._crew.limits.canary_s
            canary = seat.handle.canary(id=self._id(), timeout_s=limit_s)
            await self._crew.ask(seat.id, "a canary", canary, limit_s)

    async def transfer(self, seat: Seat, *, among: tuple[Seat, ...] = ()) -> None:
        """The worker pulls a KV cache from one that serves, or else from one of `among`; nothing where there is none.

        It also makes both sides register the connection anew, which a restart or a waking needs. Raises `CanaryError`,
        or what the worker raises.
        """
        peer = self._serving_peer(seat) or next((other for other in among if self._alike(seat, other)), None)
        if seat.handle is None or peer is None or peer.handle is None:
            return
        limit_s = self._crew.limits.canary_s
        canary = seat.handle.canary_from(peer.handle, id=self._id(), timeout_s=limit_s)
        await self._crew.ask(seat.id, f"a transfer from {peer.id}", canary, limit_s)

    def _serving_peer(self, seat: Seat) -> Seat | None:
        for peer, worker in self._crew.pairs():
            if worker.status is Status.ACTIVE and worker.serving and peer.current is None and self._alike(seat, peer):
                return peer
        return None

    def _alike(self, seat: Seat, peer: Seat) -> bool:
        """A KV cache is good only for the weights that made it."""
        version = self._crew.ledger.version
        return peer is not seat and peer.up and version(peer.id) == version(seat.id)

    def _id(self) -> str:
        return f"{self._run}-{next(self._numbers)}"
