"""A pool of engines: each turn goes to an engine, is handed over if the pool is disaggregated, then waits outside."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from pearl.core.cluster import Role
from pearl.core.workload import Routing
from pearl.sim.engine import Engine
from pearl.sim.events import ARRIVAL, EventQueue
from pearl.sim.session import Session

_LOAD = attrgetter("load")


class Pool:
    """Routes turns.

    Under affinity a session's first turn picks the engine with the fewest sessions, and later turns go back there;
    under round robin every turn takes the next engine.
    """

    def __init__(self, *, queue: EventQueue, routing: Routing, done: Callable[[Session], None]) -> None:
        self._queue = queue
        self._routing = routing
        self._done = done
        self._entries: list[Engine] = []
        self._decoders: list[Engine] = []
        self._next_entry = 0
        self._next_decoder = 0

    def add(self, engine: Engine) -> None:
        """Let `engine` serve in its role."""
        (self._decoders if engine.role is Role.DECODE else self._entries).append(engine)

    def begin_turn(self, session: Session) -> None:
        """Send the session's next turn to an engine."""
        session.begin_turn()
        if self._routing is Routing.AFFINITY:
            if session.home is None:
                session.home = _least_loaded(self._entries)
            session.home.submit(session)
        else:
            self._next_entry += 1
            self._entries[self._next_entry % len(self._entries)].submit(session)

    def prefilled(self, engine: Engine, session: Session) -> None:
        """Hand the session over to a decode engine."""
        if self._routing is Routing.AFFINITY:
            if session.decode_home is None:
                session.decode_home = _least_loaded(self._decoders)
            session.decode_home.submit(session, source=engine)
        else:
            self._next_decoder += 1
            self._decoders[self._next_decoder % len(self._decoders)].submit(session, source=engine)

    def turn_done(self, session: Session) -> None:
        """To the environment, or out."""
        if session.last_turn:
            for home in (session.home, session.decode_home):
                if home is not None:
                    home.load -= 1
            self._done(session)
            return
        environment_s = session.trajectory[session.turn].environment_s
        if environment_s > 0:
            self._queue.at(self._queue.now_s + environment_s, ARRIVAL, self.begin_turn, session)
        else:
            self.begin_turn(session)


def _least_loaded(engines: list[Engine]) -> Engine:
    engine = min(engines, key=_LOAD)
    engine.load += 1
    return engine
