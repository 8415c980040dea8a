"""One controller at a time: a lock of the host on the state directory, and a lease in the Ray cluster.

The lease is kept by one detached actor, on its own clock. A controller counts its lease from the moment at which it
*asked* for it, so that it stops acting before the actor gives the lease to another, however slow the answer was.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pearl.errors import PearlError
from pearl.live.control.log import log

LEASE_S = 15.0
"""A dead controller is followed after this long: time for two renewals that hang, and one that does not."""
START_S = 60.0
"""The actor's process has started by then, on a busy host too."""
ACQUIRE_TRIES = 3
"""The answer to the first may take as long as the actor's process to start, and the lease be over by then."""
RENEW_EVERY = 3
"""Renewals in the life of a lease; each may take as long as the pause before it."""
RETRY_EVERY = 15
"""Renewals in the life of a lease, once one failed."""

T = TypeVar("T")


class LeaseError(PearlError):
    """Another controller holds the lease, or this one lost it."""


class HeldError(LeaseError):
    """Another controller, `owner`, holds the lease for `left_s` more seconds, unless it renews it."""

    def __init__(self, *, owner: str, left_s: float) -> None:
        super().__init__(
            f"another controller, {owner}, holds the lease of this cluster for {left_s:.0f} s more, and renews it while"
            " it runs: stop it (`pearl stop`), or wait until its lease ends"
        )
        self.owner = owner
        self.left_s = left_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The state of the lease after a call: `owner` holds it in `term` for `left_s` more seconds."""

    owner: str
    term: int
    left_s: float


@dataclass(slots=True)
class LeaseTable:
    """Who holds the lease. Lives in the actor; the clock is the actor's own."""

    now_s: Callable[[], float] = time.monotonic
    _owner: str = ""
    _term: int = 0
    _until_s: float = 0.0

    def acquire(self, owner: str, lease_s: float, after_term: int) -> Grant:
        """Give the lease to `owner` where it is free or theirs; the grant says who holds it then.

        Each new owner has a higher term, and one above `after_term`.
        """
        now_s = self.now_s()
        if self._owner not in ("", owner) and now_s < self._until_s:
            return self._grant(now_s)
        if self._owner != owner or now_s >= self._until_s:
            self._term = max(self._term, after_term) + 1
        self._owner, self._until_s = owner, now_s + lease_s
        return self._grant(now_s)

    def renew(self, owner: str, term: int, lease_s: float) -> Grant | None:
        """Extend the lease; None where `owner` does not hold it in `term` any more.

        A table that never gave the lease away follows one that was lost, and takes the word of who asks first.
        """
        now_s = self.now_s()
        if not self._term:
            self._owner, self._term = owner, term
        elif (self._owner, self._term) != (owner, term) or now_s >= self._until_s:
            return None
        self._until_s = now_s + lease_s
        return self._grant(now_s)

    def release(self, owner: str, term: int) -> None:
        """Free the lease, if it is theirs."""
        if (self._owner, self._term) == (owner, term):
            self._owner, self._until_s = "", 0.0

    @property
    def held(self) -> bool:
        """Whether somebody holds it."""
        return bool(self._owner) and self.now_s() < self._until_s

    def _grant(self, now_s: float) -> Grant:
        return Grant(owner=self._owner, term=self._term, left_s=self._until_s - now_s)


class LeaseActor(LeaseTable):
    """The table inside its Ray actor."""

    def end(self, owner: str, term: int) -> None:
        """Free the lease, and end the actor in the same call: nobody can take the lease in between."""
        from ray.actor import exit_actor

        self.release(owner, term)
        if not self.held:
            exit_actor()


class LeaseAuthority(Protocol):
    """The way to the table; every call may fail with `LeaseError` where it cannot be reached."""

    async def acquire(self, owner: str, lease_s: float, after_term: int) -> Grant:
        """As `LeaseTable.acquire`."""
        ...

    async def renew(self, owner: str, term: int, lease_s: float) -> Grant | None:
        """As `LeaseTable.renew`."""
        ...

    async def release(self, owner: str, term: int) -> None:
        """As `LeaseTable.release`."""
        ...


@dataclass(slots=True, kw_only=True)
class Lease:
    """A controller's lease: acquired once, renewed in the background, lost for good when a renewal comes too late."""

    authority: LeaseAuthority
    owner: str
    lease_s: float = LEASE_S
    now_s: Callable[[], float] = time.monotonic
    lost: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set once it is lost: the controller ends."""
    term: int = field(default=0, init=False)
    _until_s: float = field(default=0.0, init=False)
    _renewing: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def valid(self) -> bool:
        """Whether this controller may act now."""
        return not self.lost.is_set() and self.now_s() < self._until_s

    def check(self) -> None:
        """Raises `LeaseError` unless this controller may act now."""
        if not self.valid:
            raise LeaseError("this controller lost its lease, and acts no more: another one may have taken over")

    async def acquire(self, *, after_term: int = 0) -> int:
        """Take the lease; returns its term. Raises `HeldError` that says who holds it, and for how long."""
        limit_s = max(START_S, self.lease_s / RENEW_EVERY)
        for _ in range(ACQUIRE_TRIES):
            grant = await self._within(self.authority.acquire(self.owner, self.lease_s, after_term), limit_s)
            if grant.owner != self.owner:
                raise HeldError(owner=grant.owner, left_s=grant.left_s)
            self.term = grant.term
            if await self._extend():
                self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="lease")
                return self.term
        raise LeaseError(f"the lease ended {ACQUIRE_TRIES} times before it could be renewed: is the host overloaded?")

    async def release(self) -> None:
        """Give the lease back, so that the next controller need not wait. Idempotent."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        self._renewing = None
        self._until_s = 0.0
        with contextlib.suppress(LeaseError):
            await self._within(self.authority.release(self.owner, self.term), self.lease_s / RENEW_EVERY)

    async def _renew(self) -> None:
        pause_s = self.lease_s / RENEW_EVERY
        while True:
            await asyncio.sleep(min(pause_s, max(self._until_s - self.now_s(), 0.0)))
            if self.now_s() >= self._until_s:
                break
            try:
                if not await self._extend():
                    break
                pause_s = self.lease_s / RENEW_EVERY
            except LeaseError as e:
                log("lease_not_renewed", level=logging.WARNING, because=str(e), left_s=self._until_s - self.now_s())
                pause_s = self.lease_s / RETRY_EVERY
        log("lease_lost", level=logging.ERROR, term=self.term, over=self.now_s() >= self._until_s)
        self.lost.set()

    async def _extend(self) -> bool:
        """Renew; whether the lease is still ours. It counts from before the question."""
        asked_s = self.now_s()
        renewal = self.authority.renew(self.owner, self.term, self.lease_s)
        if await self._within(renewal, self.lease_s / RENEW_EVERY) is None:
            return False
        self._until_s = asked_s + self.lease_s
        return True

    async def _within(self, call: Awaitable[T], limit_s: float) -> T:
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError:
            raise LeaseError(f"the lease's actor gave no answer in {limit_s:g} s") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RayLeases:
    """The table in a named, detached actor: one for each name of a cluster."""

    cluster: str
    namespace: str

    async def acquire(self, owner: str, lease_s: float, after_term: int) -> Grant:
        """As `LeaseTable.acquire`."""
        try:
            grant: Grant = await self._call("acquire", owner, lease_s, after_term)
        except LeaseError:  # the actor may have ended with the lease of the controller before: a new one is made
            grant = await self._call("acquire", owner, lease_s, after_term)
        return grant

    async def renew(self, owner: str, term: int, lease_s: float) -> Grant | None:
        """As `LeaseTable.renew`."""
        grant: Grant | None = await self._call("renew", owner, term, lease_s)
        return grant

    async def release(self, owner: str, term: int) -> None:
        """As `LeaseTable.release`; the actor ends with it, so that nothing stays behind."""
        with contextlib.suppress(LeaseError):
            await self._call("end", owner, term)

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            actor = await asyncio.to_thread(self._actor)
            return await getattr(actor, method).remote(*arguments)
        except Exception as e:
            raise LeaseError(f"the lease's actor cannot be reached: {type(e).__name__}: {e}") from None

    def _actor(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = ray.get_runtime_context().get_node_id()
        options = {
            "name": f"{self.cluster}.lease",
            "namespace": self.namespace,
            "lifetime": "detached",
            "num_cpus": 0,
            "get_if_exists": True,
            # On another node, one that is taken away say, it would end with what it has nothing to do with. Not soft:
            # a soft wish is ignored now and then, by a node that has only just started.
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=here, soft=False),
        }
        return ray.remote(LeaseActor).options(**options).remote()


class HostLock:
    """The lock of one host on a state directory; the system frees it when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Take it. Raises `LeaseError` that says who has it."""
        path = directory / "controller.lock"
        try:
            self._file = path.open("a+", encoding="utf-8")
        except OSError as e:
            raise LeaseError(f"cannot open {path}: {e.strerror or e}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(path)
            self._file.close()
            raise LeaseError(
                f"another controller uses {directory}{holder}: stop it (`pearl stop`), or give another --state"
            ) from None
        # Who has it is said for people alone; on a full disk the lock holds as well.
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())

    def release(self) -> None:
        """Free it. Idempotent."""
        self._file.close()


def _holder(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return f" (process {told['pid']} on {told['host']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
