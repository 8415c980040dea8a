"""Sensitivity: how wrong a profile number must be before another decision would be right, and what it costs then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pearl.core.cluster import Counts
from pearl.core.engine import EngineProfile
from pearl.core.problem import UNREACHABLE_MS
from pearl.core.workload import Workload
from pearl.deciding.alternatives import same_configuration
from pearl.deciding.engine import Verdict, decide
from pearl.solving.protocol import Limits, Solver

ERRORS = (0.05, 0.1, 0.2, 0.35, 0.5)
"""Relative errors tried, on both sides; beyond ±50 % a profile is not an estimate."""
RESOLUTION = 0.01
"""A flip is located to one percent of the number: finer than any profile is known."""

Profiles = tuple[Workload, EngineProfile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """The smallest relative error of one profile number that flips the decision.

    `error` is signed: the true number is (1 + error) times the one assumed. `regret` is what the present choice then
    loses against the right one, as a share of the right one's makespan. `error` None: no flip within ±50 %.
    """

    number: str
    error: float | None
    to: Counts | None = None
    regret: float | None = None


def sensitivity(verdict: Verdict, solver: Solver, limits: Limits) -> tuple[Flip, ...]:
    """One flip per profile number, the most fragile number first."""
    flips = [_flip(verdict, name, change, solver, limits) for name, change in _numbers()]
    return tuple(sorted(flips, key=lambda f: (abs(f.error) if f.error is not None else 9.0, f.number)))


Change = Callable[[Profiles, float], Profiles]
"""Scales one number of the profiles by a factor."""


def _flip(verdict: Verdict, name: str, change: Change, solver: Solver, limits: Limits) -> Flip:
    def other(error: float) -> Flip | None:
        changed = change((verdict.posed.workload, verdict.posed.situation.engine), 1 + error)
        flip = _decided_otherwise(verdict, changed, solver, limits)
        return None if flip is None else replace(flip, number=name, error=error)

    sides = [_smallest(other, sign) for sign in (1.0, -1.0)]
    found = [flip for flip in sides if flip is not None]
    return min(found, key=lambda f: abs(f.error or 0.0)) if found else Flip(number=name, error=None)


def _smallest(other: Callable[[float], Flip | None], sign: float) -> Flip | None:
    """The flip nearest to zero on one side: the first of the grid, then bisection towards the one before it."""
    low = 0.0
    for tried in ERRORS:
        flip = other(sign * tried)
        if flip is not None:
            return _bisected(other, sign, low, flip)
        low = tried
    return None


def _bisected(other: Callable[[float], Flip | None], sign: float, low: float, flip: Flip) -> Flip:
    high = abs(flip.error or 0.0)
    while high - low > RESOLUTION:
        middle = (low + high) / 2
        nearer = other(sign * middle)
        if nearer is None:
            low = middle
        else:
            high, flip = middle, nearer
    return flip


def _decided_otherwise(verdict: Verdict, profiles: Profiles, solver: Solver, limits: Limits) -> Flip | None:
    """The other decision that these profiles lead to, and what ours loses then; None if it is the same."""
    posed = verdict.posed
    workload, engine = profiles
    situation = replace(posed.situation, engine=engine)
    again = decide(
        situation, workload, posed.policy, predictor=posed.predictor, solver=solver, time_limit_s=limits.time_s
    )
    chosen, right = verdict.chosen.counts, again.chosen.counts
    if same_configuration(chosen, right):
        return None
    ours_ms, best_ms = again.posed.tables.makespan_ms(chosen), again.posed.tables.makespan_ms(right)
    regret = None if ours_ms >= UNREACHABLE_MS else ours_ms / best_ms - 1
    return Flip(number="", error=None, to=right, regret=regret)


def _numbers() -> Iterator[tuple[str, Change]]:
    """The numbers of the profiles, and how to scale each."""
    yield "engine.prefill.p1_s", lambda p, k: (p[0], _prefill(p[1], "p1_s", k))
    yield "engine.prefill.p2_s", lambda p, k: (p[0], _prefill(p[1], "p2_s", k))
    yield "engine.decode.c0_s", lambda p, k: (p[0], _decode(p[1], "c0_s", k))
    yield "engine.decode.c1_s", lambda p, k: (p[0], _decode(p[1], "c1_s", k))
    yield "engine.decode.c2_s", lambda p, k: (p[0], _decode(p[1], "c2_s", k))
    yield "engine.transfer.bandwidth_bytes_per_s", lambda p, k: (p[0], _bandwidth(p[1], k))
    yield "engine.kv_capacity", lambda p, k: (p[0], _capacity(p[1], k))
    yield "workload.turns", lambda p, k: (replace(p[0], turns=p[0].turns.scaled(k)), p[1])
    yield "workload.new_prompt_tokens", lambda p, k: (_prompts(p[0], k), p[1])
    yield "workload.output_tokens", lambda p, k: (replace(p[0], output_tokens=p[0].output_tokens.scaled(k)), p[1])
    yield "workload.environment_s", lambda p, k: (replace(p[0], environment_s=p[0].environment_s.scaled(k)), p[1])


def _prefill(engine: EngineProfile, field: str, factor: float) -> EngineProfile:
    cost = engine.prefill
    return replace(engine, prefill=replace(cost, **{field: getattr(cost, field) * factor}))


def _decode(engine: EngineProfile, field: str, factor: float) -> EngineProfile:
    cost = engine.decode
    return replace(engine, decode=replace(cost, **{field: getattr(cost, field) * factor}))


def _bandwidth(engine: EngineProfile, factor: float) -> EngineProfile:
    transfer = engine.transfer
    faster = replace(transfer, bandwidth_bytes_per_s=transfer.bandwidth_bytes_per_s * factor)
    return replace(engine, transfer=faster)


def _capacity(engine: EngineProfile, factor: float) -> EngineProfile:
    return replace(
        engine,
        kv_decode_tokens=round(engine.kv_decode_tokens * factor),
        kv_colocated_tokens=round(engine.kv_colocated_tokens * factor),
    )


def _prompts(workload: Workload, factor: float) -> Workload:
    return replace(
        workload,
        first_prompt_tokens=workload.first_prompt_tokens.scaled(factor),
        new_prompt_tokens=workload.new_prompt_tokens.scaled(factor),
    )
