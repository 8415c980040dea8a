"""Life-cycle forecast: the demand of the next seconds from where every trajectory stands (after Prorsa, 2610.16592).

Each trajectory goes round: prompt, decode, environment, next prompt. What is left of its present stage, and the stages
that follow within the horizon, are drawn from finished turns of like index, given what the trajectory has already done;
it ends after turn k with the hazard of `pearl.tracking.survival`. Times are service times at the recent pace, without
queueing: what waits for an engine has been asked for, however few engines there are. docs/tracking.md derives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TYPE_CHECKING, ClassVar

from pearl.core.facts import ForecastSamples
from pearl.core.telemetry import Life, Stage, TurnRecord
from pearl.tracking.history import History, Source
from pearl.tracking.survival import count_turns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

HORIZON_S = 30.0
"""How far ahead: about the time of a role change with its drain, and of one turn with its tool call."""
QUANTILES = 16
"""Samples of a forecast: enough for the 95th percentile that a careful policy asks for."""
MAX_PATHS = 16
"""Futures of each trajectory: its mean is then within a few per cent, and the batch's within one."""
MIN_PATHS = 4
"""Of thousands of trajectories a few futures are enough for the total."""
PATHS_IN_ALL = 32_768
"""Futures of all trajectories together, where `MIN_PATHS` allows: a forecast then takes less than a second."""
MIN_POOL = 8
"""Turns of like index below which the turns of any index stand in."""
MAX_TURNS = 64
"""Turns within one horizon: more are none of an agent that waits on its environment."""


@dataclass(frozen=True, kw_only=True)
class LifeCycle:
    """The model and its settings."""

    sources: ClassVar[frozenset[Source]] = frozenset(
        {Source.PREFILL_DEMAND, Source.DECODE_DEMAND, Source.TRAJECTORIES_LEFT}
    )
    horizon_s: float = HORIZON_S

    def samples(self, source: Source, history: History, now_s: float) -> ForecastSamples:
        """Quantiles of the source over the horizon; `history` has turns, and lives with their time.

        Trajectories are independent given the past, so that the total is close to normal, with the sum of their means
        and of their variances (central limit theorem); its mid-quantiles are the samples, 0 at least.
        """
        paths = max(MIN_PATHS, min(MAX_PATHS, PATHS_IN_ALL // max(len(history.lives), 1)))
        futures = _futures(history, horizon_s=self.horizon_s, paths=paths)
        scale = 1.0 if source is Source.TRAJECTORIES_LEFT else self.horizon_s
        each = {
            Source.PREFILL_DEMAND: futures.prompt_tokens,
            Source.DECODE_DEMAND: futures.output_tokens,
            Source.TRAJECTORIES_LEFT: futures.alive,
        }[source]
        mean, deviation = float(each.mean(axis=1).sum()), math.sqrt(float(each.var(axis=1).sum()))
        if source is Source.TRAJECTORIES_LEFT:
            mean += history.waiting
        scores = (NormalDist().inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES))
        values = tuple(max(0.0, mean + deviation * score) / scale for score in scores)
        assert history.lives_at_s is not None
        return ForecastSamples(values=values, age_s=max(0.0, now_s - history.lives_at_s))


@dataclass(frozen=True, kw_only=True)
class _Futures:
    """What each trajectory does within the horizon on each path: arrays of shape (trajectories, paths)."""

    prompt_tokens: Floats
    output_tokens: Floats
    alive: Floats
    """1 where it has not ended at the horizon."""


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Every trajectory on every path, at the turn whose prompt comes next or is under way: (trajectories, paths)."""

    turn: Ints
    at: Floats
    """When the turn is asked for; infinite once the trajectory has ended, or leaves the horizon."""
    asked: Floats
    """Prompt tokens that are then asked for."""
    done: Floats
    """Output tokens that are already out."""
    fresh: NDArray[np.bool_]
    """Whether a prefill comes first."""


def _futures(history: History, *, horizon_s: float, paths: int) -> _Futures:
    import numpy as np

    past = _Past.of(history)
    draw = _Uniforms(len(history.lives), paths)
    walk = _standing(sorted(history.lives, key=_name), past, draw, paths)
    alive = np.ones_like(walk.at)
    prompts, outputs = np.zeros_like(alive), np.zeros_like(alive)
    for _ in range(MAX_TURNS):
        under_way = walk.at <= horizon_s
        if not under_way.any():
            break
        prompts += np.where(under_way, walk.asked, 0.0)
        start = walk.at + np.where(walk.fresh, past.prefill_s, 0.0)
        left = past.output(walk.turn, draw(), above=walk.done) - walk.done
        end = start + left * past.token_s
        outputs += np.where(under_way, np.clip((horizon_s - start) / past.token_s, 0.0, left), 0.0)
        ends = draw() < past.hazard(walk.turn)
        alive[under_way & ends & (end <= horizon_s)] = 0.0
        turn = walk.turn + 1
        walk = _Walk(
            turn=turn,
            at=np.where(under_way & ~ends, end + past.environment(turn, draw()), np.inf),
            asked=past.prompt(turn, draw()),
            done=np.zeros_like(walk.done),
            fresh=np.ones_like(walk.fresh),
        )
    return _Futures(prompt_tokens=prompts, output_tokens=outputs, alive=alive)


def _standing(lives: Sequence[Life], past: _Past, draw: _Uniforms, paths: int) -> _Walk:
    """Where they stand. One in the environment goes on for certain: nothing waits for the answer of a last turn."""
    import numpy as np

    def column(of: Callable[[Life], float]) -> Floats:
        """A figure of each life, the same on every path."""
        return np.array([[float(of(life))] * paths for life in lives], dtype=float).reshape(len(lives), paths)

    outside = column(lambda life: life.stage is Stage.ENVIRONMENT) > 0
    before_decode = column(lambda life: life.stage in (Stage.QUEUED, Stage.PREFILL)) > 0
    elapsed = column(lambda life: life.stage_s)
    turn = column(lambda life: life.turn).astype(np.int64) + outside
    wait = past.environment(turn, draw(), above=elapsed) - elapsed
    left = column(lambda life: life.prompt_left_tokens)
    return _Walk(
        turn=turn,
        at=np.where(outside, wait, 0.0),
        asked=np.where(outside, past.prompt(turn, draw()), np.where(before_decode, left, 0.0)),
        done=np.where(outside, 0.0, column(lambda life: life.output_tokens)),
        fresh=before_decode | outside,
    )


class _Pools:
    """Values by turn index, in classes 0, 1, 2–3, 4–7, …: turns of like index are alike, and early ones differ most."""

    def __init__(self, pairs: Iterable[tuple[int, float]], default: float) -> None:
        import numpy as np

        found: dict[int, list[float]] = {}
        everything: list[float] = []
        for turn, value in pairs:
            found.setdefault(turn.bit_length(), []).append(value)
            everything.append(value)
        self._all = np.sort(np.array(everything or [default], dtype=float))
        self._classes = {key: np.sort(np.array(v)) for key, v in found.items() if len(v) >= MIN_POOL}

    def __call__(self, turn: Ints, u: Floats, above: Floats | None = None) -> Floats:
        """Quantiles at `u` of what lies above `above`; `above` itself where nothing seen does."""
        import numpy as np

        classes = np.frexp(turn.astype(float))[1]
        result = np.zeros_like(u)
        for key in np.unique(classes):
            mask = classes == key
            values = self._classes.get(int(key), self._all)
            floor = np.zeros(int(mask.sum())) if above is None else above[mask]
            first = np.searchsorted(values, floor, side="right") if above is not None else np.zeros_like(floor)
            index = np.minimum((first + u[mask] * (values.size - first)).astype(np.int64), values.size - 1)
            result[mask] = np.where(first < values.size, values[index], floor)
        return result


@dataclass(frozen=True, kw_only=True)
class _Past:
    """What finished turns say of those to come."""

    prompt: _Pools
    output: _Pools
    environment: _Pools
    hazard: _Hazards
    prefill_s: float
    """Median service time of a prompt, hand-over included."""
    token_s: float
    """Median time of an output token."""

    @classmethod
    def of(cls, history: History) -> _Past:
        turns = history.turns
        offered = {(r.step, r.trajectory, r.turn): r.new_prompt_tokens for r in turns}
        offered |= {(r.step, r.trajectory, r.turn): r.new_prompt_tokens for r in history.arrivals}
        return cls(
            prompt=_Pools(((turn, float(tokens)) for (_, _, turn), tokens in offered.items()), 0.0),
            output=_Pools(((r.turn, float(r.output_tokens)) for r in turns), 1.0),
            environment=_Pools(((r.turn, r.environment_s) for r in turns if r.environment_s is not None), 0.0),
            hazard=_Hazards(turns),
            prefill_s=median(r.prefill_s + r.transfer_s for r in turns),
            token_s=max(median(r.decode_s / r.output_tokens for r in turns), 1e-6),
        )


class _Hazards:
    """Hazards by turn index; where fewer than `MIN_POOL` trajectories came so far, that of all turns together."""

    def __init__(self, turns: Sequence[TurnRecord]) -> None:
        import numpy as np

        counts = count_turns((r.turn, r.last) for r in turns)
        known = sorted(turn for turn, number in counts.reached.items() if number >= MIN_POOL)
        pooled = counts.finished / sum(counts.reached.values())
        self._turns = np.array(known, dtype=np.int64)
        self._hazards = np.array([*(counts.hazard(turn) for turn in known), pooled])

    def __call__(self, turn: Ints) -> Floats:
        """Probability of ending with each turn."""
        import numpy as np

        place = np.searchsorted(self._turns, turn)
        known = np.isin(turn, self._turns)
        found: Floats = self._hazards[np.where(known, place, -1)]
        return found


class _Uniforms:
    """Evenly spread numbers in (0, 1) instead of random ones, so that a history has one forecast.

    A Kronecker sequence (Niederreiter, 1992, chapter 3): call j gives the fractional parts of n·√p_j, p_j the j-th
    prime, for n counting all paths of all trajectories. Of one trajectory, the paths are spread evenly; those of two
    are shifted against each other.
    """

    def __init__(self, trajectories: int, paths: int) -> None:
        import numpy as np

        self._index = np.arange(1, trajectories * paths + 1, dtype=float).reshape(trajectories, paths)
        self._primes = _primes()

    def __call__(self) -> Floats:
        """The next coordinate."""
        values: Floats = (self._index * math.sqrt(next(self._primes))) % 1.0
        return values


def _primes() -> Iterator[int]:
    found: list[int] = []
    candidate = 2
    while True:
        if all(candidate % p for p in found if p * p <= candidate):
            found.append(candidate)
            yield candidate
        candidate += 1


def _name(life: Life) -> tuple[str, int, float]:
    """An order of the lives' own; batches that overlap may use the same names."""
    return life.trajectory, life.turn, life.stage_s
