"""A pool of engines: each turn goes to an engine, is handed over if the pool is disaggregated, then waits outside.

Engines may join and leave at any time. What has no engine to go to waits in the pool; nothing is ever dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Protocol

from pearl.core.cluster import Role
from pearl.core.telemetry import Life
from pearl.core.workload import Routing
from pearl.sim.engine import Engine
from pearl.sim.events import ARRIVAL, EventQueue
from pearl.sim.session import QUEUE, Session
from pearl.sim.tally import Tally
from pearl.sim.telemetry import life_of

_LOAD = attrgetter("load")


class TurnObserver(Protocol):
    """Who wants to know of turns."""

    def turn_asked(self, session: Session) -> None:
        """A turn begins: its prompt is there, nothing has served it yet."""
        ...

    def turn_done(self, engine: Engine, session: Session) -> None:
        """A turn's last token is out."""
        ...


class Pool:
    """Routes turns.

    Under affinity a session's first turn picks the engine with the fewest sessions, and later turns go back there
    while it serves; under round robin every turn takes the next engine.
    """

    def __init__(
        self,
        *,
        queue: EventQueue,
        routing: Routing,
        done: Callable[[Session], None],
        tally: Tally | None = None,
        observer: TurnObserver | None = None,
    ) -> None:
        self.live: dict[Session, None] = {}
        """Sessions that have begun and not ended."""
        self.tally = tally or Tally()
        self._queue = queue
        self._takes_turns = routing is Routing.ROUND_ROBIN
        self._done = done
        self._observer = observer
        self._engines: dict[Role, list[Engine]] = {role: [] for role in Role}
        self._entries: list[Engine] = []
        self._decoders: list[Engine] = []
        self._next_entry = 0
        self._next_decoder = 0
        self._known: set[Engine] = set()
        self._outside: dict[Session, None] = {}
        self._unserved: deque[Session] = deque()
        self._unhanded: deque[tuple[Session, Engine]] = deque()

    # -- membership ------------------------------------------------------------------------------------------------

    def add(self, engine: Engine) -> None:
        """Let `engine` serve in its role, and send it what waits for such an engine."""
        engine.accepting = True
        self._known.add(engine)
        self._engines[engine.role].append(engine)
        self._sort_by_use()
        for _ in range(len(self._unserved)):
            self._enter(self._unserved.popleft())
        for _ in range(len(self._unhanded)):
            self._hand_over(*self._unhanded.popleft())

    def remove(self, engine: Engine) -> None:
        """Send no more turns to `engine`; it goes on with those that it has."""
        if engine.accepting:
            engine.accepting = False
            self._engines[engine.role].remove(engine)
            self._sort_by_use()

    def evacuate(self, engine: Engine) -> None:
        """Take everything from `engine` and send it elsewhere; sessions keep the tokens that are out."""
        self.remove(engine)
        self._known.discard(engine)
        given_up = engine.evacuate()
        for session in given_up.held:
            self._forget_hand_over(session, engine)
        for session in (*given_up.interrupted, *given_up.held):
            session.recomputing = True
            session.source = None
            self.tally.interruptions += 1
            session.enter(QUEUE, self._queue.now_s)
            self._enter(session)
        for session in given_up.queued:
            self._enter(session)
        for session in given_up.handed:
            if session.source is not None:
                session.enter(QUEUE, self._queue.now_s)
                self._hand_over(session, session.source)

    def rebalance(self) -> None:
        """After engines joined: sessions beyond an equal share lose their home, and choose anew at their next turn.

        Those with the shortest contexts move, since their prefix is the cheapest to compute again.
        """
        if not self._takes_turns:
            homed = [session for session in self.live if session.home is not None and session.home.accepting]
            for session in _beyond_share(homed, self._entries, attrgetter("home")):
                _leave_home(session)
            homed = [session for session in self.live if session.decode_home and session.decode_home.accepting]
            for session in _beyond_share(homed, self._decoders, attrgetter("decode_home")):
                _leave_decode_home(session)

    def lost(self) -> list[Session]:
        """An audit: live sessions that are neither in the environment, nor queued, nor with any engine here."""
        found = {*self._outside, *self._unserved, *(session for session, _ in self._unhanded)}
        for engine in self._known:
            found.update(engine.sessions())
        return [session for session in self.live if session not in found]

    def lives(self) -> Iterator[Life]:
        """Where every live session stands, oldest first."""
        for session in self.live:
            ahead = session.server.tokens_ahead(session) if session.server is not None else 0
            yield life_of(session, now_s=self._queue.now_s, tokens_ahead=ahead)

    def _sort_by_use(self) -> None:
        """Colocated engines decode what prefill engines hand over while no decode engine serves."""
        colocated = self._engines[Role.COLOCATED]
        self._entries = colocated + self._engines[Role.PREFILL]
        self._decoders = self._engines[Role.DECODE] or colocated

    def _forget_hand_over(self, session: Session, holder: Engine) -> None:
        if session.server is not None and session.server is not holder:
            session.server.withdraw(session)
        else:
            self._unhanded.remove((session, holder))

    # -- a session's way -------------------------------------------------------------------------------------------

    def start(self, session: Session) -> None:
        """Begin a trajectory."""
        self.live[session] = None
        self._begin_turn(session)

    def prefilled(self, engine: Engine, session: Session) -> None:
        """Hand the session over to a decode engine."""
        self._hand_over(session, engine)

    def turn_done(self, engine: Engine, session: Session) -> None:
        """To the environment, or out."""
        if self._observer is not None:
            self._observer.turn_done(engine, session)
        if session.last_turn:
            _leave_home(session)
            _leave_decode_home(session)
            del self.live[session]
            self._done(session)
            return
        environment_s = session.current_turn.environment_s
        if environment_s > 0:
            self._outside[session] = None
            self._queue.at(self._queue.now_s + environment_s, ARRIVAL, self._come_back, session)
        else:
            self._begin_turn(session)

    def _come_back(self, session: Session) -> None:
        del self._outside[session]
        self._begin_turn(session)

    def _begin_turn(self, session: Session) -> None:
        session.begin_turn(self._queue.now_s)
        if self._observer is not None:
            self._observer.turn_asked(session)
        self._enter(session)

    def _enter(self, session: Session) -> None:
        """To an engine that prefills."""
        if not self._entries:
            session.server = None
            self._unserved.append(session)
        elif self._takes_turns:
            self._next_entry += 1
            self._entries[self._next_entry % len(self._entries)].submit(session)
        else:
            if session.home is None or not session.home.accepting:
                _leave_home(session)
                session.home = min(self._entries, key=_LOAD)
                session.home.load += 1
            session.home.submit(session)

    def _hand_over(self, session: Session, holder: Engine) -> None:
        """To an engine that decodes, which pulls the KV from `holder`."""
        if not self._decoders:
            session.server = None
            self._unhanded.append((session, holder))
        elif self._takes_turns:
            self._next_decoder += 1
            self._decoders[self._next_decoder % len(self._decoders)].submit(session, source=holder)
        else:
            if session.decode_home is None or not session.decode_home.accepting:
                _leave_decode_home(session)
                session.decode_home = min(self._decoders, key=_LOAD)
                session.decode_home.load += 1
            session.decode_home.submit(session, source=holder)


def _leave_home(session: Session) -> None:
    if session.home is not None:
        session.home.load -= 1
        session.home = None


def _leave_decode_home(session: Session) -> None:
    if session.decode_home is not None:
        session.decode_home.load -= 1
        session.decode_home = None


def _beyond_share(
    sessions: list[Session], engines: list[Engine], home_of: Callable[[Session], Engine]
) -> list[Session]:
    """Of each engine's sessions, those beyond an equal share (rounded up), shortest contexts first."""
    share = -(-len(sessions) // len(engines)) if engines else 0
    excess = {engine: engine.load - share for engine in engines if engine.load > share}
    movers = []
    for session in sorted(sessions, key=lambda s: (s.context_tokens, s.index)) if excess else ():
        home = home_of(session)
        if excess.get(home, 0) > 0:
            excess[home] -= 1
            movers.append(session)
    return movers
