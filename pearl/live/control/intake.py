"""Intake of events: into the ledger, into the store, into the queue, in this order and in one turn of the loop.

The ledger comes first, so that the router stops dispatch to a worker that must leave before anything else happens; the
store comes before the answer, so that no accepted event is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from pearl.core.event import Event, EventKind
from pearl.core.ports import Clock
from pearl.errors import PearlError
from pearl.live.control.documents import event_document, record_to_text
from pearl.live.control.ledger import Ledger, Record
from pearl.live.control.log import log
from pearl.live.control.store import AddEvent, ControlStore, Fact, SetFact, StoreError

MEMBERSHIP = frozenset({EventKind.GPUS_ADDED, EventKind.RECLAIM_NOTICE, EventKind.GPUS_LOST})
"""Events that mean nothing where they change nothing: a second report of a worker that is gone, say."""


class ClosedError(PearlError):
    """The controller is stopping, lost its lease, or cannot write its store: it takes nothing more."""


Heard = Callable[[int, Event], None]
"""Told the number of every accepted event, and the event."""


class Intake:
    """Accepts events; on the event loop alone."""

    def __init__(self, *, ledger: Ledger, store: ControlStore, clock: Clock, check: Callable[[], None]) -> None:
        """`check` raises where nothing may be accepted any more."""
        self.queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        """Events that a tick is due for."""
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._check = check
        self._last = store.last("events")
        self._heard: list[Heard] = []
        self._news = asyncio.Event()
        self._writing: asyncio.Handle | None = None
        self._closed = False
        ledger.listen(self._changed)

    @property
    def last(self) -> int:
        """Number of the newest event."""
        return self._last

    def listen(self, heard: Heard) -> None:
        """Tell `heard` of every event from now on, within `raise_event`."""
        self._heard.append(heard)

    def raise_event(self, event: Event, key: str | None = None) -> int:
        """Accept an event; returns its number, which is committed by then. The same `key` is the same event.

        Raises `ClosedError`, `LeaseError` or `StoreError` where nothing is accepted any more.
        """
        self._check_open()
        if key is not None and (number := self._store.event_by_key(key)) is not None:
            return number
        event = replace(event, at_s=self._clock.now_s())
        changed = self._ledger.happen(event)
        number = self._last + 1
        self._store.write(
            AddEvent(
                number=number,
                at_unix_s=event.at_s,
                kind=event.kind.value,
                workers=event.workers,
                data={**event_document(event), **({} if changed else {"changed": False})},
                key=key,
            ),
            self._record(),
        )
        self._last = number
        log("event", seq=number, kind=event.kind.value, workers=list(event.workers), changed=changed)
        if changed or event.kind not in MEMBERSHIP:
            self.queue.put_nowait((number, event))
        for heard in self._heard:
            heard(number, event)
        news, self._news = self._news, asyncio.Event()
        news.set()
        return number

    async def wait_past(self, number: int, *, wait_s: float) -> bool:
        """Wait until there is an event past `number`, for `wait_s` at most; whether there is one."""
        if self._last <= number and wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                pass
        return self._last > number

    def close(self) -> None:
        """Accept nothing more, and store the ledger as it is."""
        self._closed = True
        self._write_record()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the controller is stopping, and takes nothing more")
        if self._store.failure:
            raise self._store.failure
        self._check()

    def _changed(self, _: Record) -> None:
        """Store the ledger once in this turn of the loop, however many changes a turn makes."""
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_soon(self._write_record)

    def _write_record(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        try:
            self._store.write(self._record())
        except StoreError as e:
            log("store_failed", level=logging.ERROR, error=str(e))

    def _record(self) -> SetFact:
        return SetFact(fact=Fact.RECORD, document=record_to_text(self._ledger.record))
