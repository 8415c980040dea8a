"""Slots and queue: legs wait in order of arrival until `choose` finds them a worker."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from pearl.live.router.choose import IDLE, Ask, Choice, Load, Stage, choose
from pearl.live.router.pool import Pool

SHUN_FIRST_S = 0.5
"""A worker that was lost is asked again after this: a restart of its server's accept loop takes less."""
SHUN_LONGEST_S = 15.0
"""Doubling stops here; a replacement engine is ready in 17 to 19 s."""
SESSION_HOMES = 4
"""Workers remembered per session: prefill and decode of the current pairing, and of the one before."""
SESSIONS = 100_000
"""Sessions remembered; the least recently used one gives its place up."""


@dataclass(slots=True, eq=False)
class _Waiter:
    ask: Ask
    answer: asyncio.Future[Choice]


class Sessions:
    """Which workers each session used, the latest first."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def homes(self, session: str | None) -> tuple[str, ...]:
        """Workers that may hold the session's prefix."""
        return self._homes.get(session, ()) if session else ()

    def note(self, session: str | None, worker: str) -> None:
        """The session was dispatched to `worker`."""
        if not session:
            return
        others = (home for home in self._homes.get(session, ()) if home != worker)
        self._homes[session] = (worker, *others)[:SESSION_HOMES]
        self._homes.move_to_end(session)
        if len(self._homes) > SESSIONS:
            self._homes.popitem(last=False)


class Dispatcher:
    """Gives out slots. All changes happen between awaits, so pool, loads and queue are always consistent."""

    def __init__(self, *, slots: int, now_s: Callable[[], float]) -> None:
        self.pool = Pool()
        self.loads: dict[str, Load] = {}
        self._slots = slots
        self._now_s = now_s
        self._losses: dict[str, int] = {}
        self._queues: dict[Stage, deque[_Waiter]] = {Stage.DECODE: deque(), Stage.PROMPT: deque()}
        """Decoding first: those requests hold KV memory on a prefill worker."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Legs that wait for a worker."""
        return sum(not waiter.answer.done() for queue in self._queues.values() for waiter in queue)

    @property
    def capacity(self) -> int:
        """Slots of the workers that may be dispatched to."""
        return len(self.pool.dispatchable) * self._slots

    def set_pool(self, pool: Pool) -> None:
        """Use another pool from now on; loads of workers that stay are kept, and what changed is no longer shunned."""
        before, self.pool = self.pool, pool
        self.loads = {worker: load for worker, load in self.loads.items() if worker in pool.state.by_id}
        for worker, load in self.loads.items():
            same_engine = before.endpoints.get(worker) == pool.endpoints[worker]
            if not same_engine or before.state.by_id.get(worker) != pool.state.by_id[worker]:
                self._losses.pop(worker, None)
                self.loads[worker] = replace(load, shunned_until_s=0.0)
        self._pump()

    async def acquire(self, ask: Ask, *, resumed: bool) -> Choice:
        """A slot on the worker that serves `ask`; `resumed` requests go before new ones. Give it back by `release`."""
        waiter = _Waiter(ask, asyncio.get_running_loop().create_future())
        queue = self._queues[ask.stage]
        queue.appendleft(waiter) if resumed else queue.append(waiter)
        self._pump()
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            if waiter.answer.done() and not waiter.answer.cancelled():
                self.release(waiter.answer.result().worker)
            raise

    def release(self, worker: str) -> None:
        """Give a slot back."""
        if load := self.loads.get(worker):
            self.loads[worker] = replace(load, running=max(load.running - 1, 0))
        self._pump()

    def lost(self, worker: str) -> None:
        """The worker could not be reached: leave it alone for a while, each time longer."""
        now_s = self._now_s()
        load = self.loads.get(worker, IDLE)
        if load.shunned_until_s > now_s:
            return
        losses = self._losses[worker] = self._losses.get(worker, 0) + 1
        wait_s = min(SHUN_FIRST_S * 2 ** (losses - 1), SHUN_LONGEST_S)
        self.loads[worker] = replace(load, shunned_until_s=now_s + wait_s)

    def reached(self, worker: str) -> None:
        """The worker answered: forget its losses, and ask it again."""
        if self._losses.pop(worker, None) is not None and (load := self.loads.get(worker)):
            self.loads[worker] = replace(load, shunned_until_s=0.0)
            self._pump()

    def _pump(self) -> None:
        if self._timer is None and not any(self._queues.values()):
            return
        retry_at_s = [at for queue in self._queues.values() if (at := self._serve(queue)) is not None]
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if retry_at_s:
            delay_s = max(min(retry_at_s) - self._now_s(), 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)

    def _serve(self, queue: deque[_Waiter]) -> float | None:
        """Serve a queue from its head; when to try again, where only time helps."""
        while queue:
            waiter = queue[0]
            if waiter.answer.done():
                queue.popleft()
                continue
            choice = choose(self.pool, waiter.ask, self.loads, slots=self._slots, now_s=self._now_s())
            if not isinstance(choice, Choice):
                return choice.retry_at_s
            queue.popleft()
            load = self.loads.get(choice.worker, IDLE)
            self.loads[choice.worker] = replace(load, running=load.running + 1, dispatched=load.dispatched + 1)
            waiter.answer.set_result(choice)
        return None
