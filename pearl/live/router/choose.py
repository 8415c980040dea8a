"""Which worker serves the next leg of a request: a pure function of the pool, the loads and the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pearl.core.cluster import Role, Worker
from pearl.live.router.pool import Pool


class Stage(StrEnum):
    """What a request needs next."""

    PROMPT = "prompt"
    """Its prompt, and the tokens so far, must be computed."""
    DECODE = "decode"
    """A prefill worker has done that: only decoding is left, with or without the KV handle."""


class Path(StrEnum):
    """What a leg does."""

    WHOLE = "whole"
    """Prefill and decode on one worker."""
    PREFILL = "prefill"
    DECODE = "decode"


class Obstacle(StrEnum):
    """Why no worker can be chosen now."""

    NO_WORKER = "no_worker"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request asks of the pool; `homes` are the workers its session used, the latest first."""

    stage: Stage = Stage.PROMPT
    homes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker carries; `shunned_until_s` is set after it was lost, so that it is not asked again at once."""

    running: int = 0
    dispatched: int = 0
    """Legs in all: the tie-break, so that an idle pool is used in turn."""
    shunned_until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A worker, and what it does. `degraded` marks a worker that does more than its role."""

    worker: str
    path: Path
    degraded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoChoice:
    """Nobody now; `retry_at_s` is when a shunned worker may be asked again."""

    obstacle: Obstacle
    retry_at_s: float | None = None


IDLE = Load()


def choose(pool: Pool, ask: Ask, loads: Mapping[str, Load], *, slots: int, now_s: float) -> Choice | NoChoice:
    """The session's home where it can serve, else the least loaded worker of the fitting role.

    Colocated workers take a request whole; otherwise a prefill worker goes first, as long as a decode worker is there
    to follow. A pool that has one role alone (a role change is under way) still serves, whole, on what it has: engines
    can do either, and waiting helps nobody.
    """
    ready = [w for w in pool.dispatchable if loads.get(w.id, IDLE).shunned_until_s <= now_s]
    later = [until for w in pool.dispatchable if (until := loads.get(w.id, IDLE).shunned_until_s) > now_s]
    if not ready:
        return NoChoice(obstacle=Obstacle.NO_WORKER, retry_at_s=min(later, default=None))
    offers = _decoding(ready) if ask.stage is Stage.DECODE else _prompting(ready)
    free = [offer for offer in offers if loads.get(offer.worker, IDLE).running < slots]
    if not free:
        return NoChoice(obstacle=Obstacle.BUSY, retry_at_s=min(later, default=None))
    homes = {worker: rank for rank, worker in enumerate(ask.homes)}
    return min(free, key=lambda offer: _rank(offer, homes, loads.get(offer.worker, IDLE)))


def _rank(offer: Choice, homes: Mapping[str, int], load: Load) -> tuple[int, int, int, str]:
    return homes.get(offer.worker, len(homes)), load.running, load.dispatched, offer.worker


def _prompting(ready: Iterable[Worker]) -> list[Choice]:
    by_role = _by_role(ready)
    offers = _offers(by_role[Role.COLOCATED], Path.WHOLE)
    if by_role[Role.DECODE]:
        offers += _offers(by_role[Role.PREFILL], Path.PREFILL)
    return offers or _offers(by_role[Role.DECODE] or by_role[Role.PREFILL], Path.WHOLE, degraded=True)


def _decoding(ready: Iterable[Worker]) -> list[Choice]:
    by_role = _by_role(ready)
    return _offers(by_role[Role.DECODE], Path.DECODE) or _offers(
        by_role[Role.COLOCATED] or by_role[Role.PREFILL], Path.DECODE, degraded=True
    )


def _offers(workers: Iterable[Worker], path: Path, *, degraded: bool = False) -> list[Choice]:
    return [Choice(worker=w.id, path=path, degraded=degraded) for w in workers]


def _by_role(workers: Iterable[Worker]) -> dict[Role, list[Worker]]:
    found: dict[Role, list[Worker]] = {role: [] for role in Role}
    for worker in workers:
        found[worker.role].append(worker)
    return found
