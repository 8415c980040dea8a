"""Old weights go once no worker can want them any more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pearl.live.control.ledger import Record
from pearl.live.weights import WeightStore


@dataclass(slots=True, kw_only=True)
class WeightShelf:
    """Keeps the newest versions, those that may generate, and those that a worker holds: it wakes up with them."""

    store: WeightStore
    keep: int
    """Newest versions that stay in any case."""
    _needed: int = field(default=0, init=False)
    _due: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def look(self, record: Record) -> None:
        """The ledger has changed."""
        held = (record.versions.get(worker.id, 0) for worker in record.state.workers if worker.started)
        needed = min((*held, record.oldest))
        if needed > self._needed:
            self._needed = needed
            self._due.set()

    async def run(self) -> None:
        """Tidy up whenever that may have become possible, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.to_thread(self.store.drop_older, self._needed, keep=self.keep)
