"""The workload profile from telemetry: demand as it was offered, newest rollout steps first, outliers left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pearl.core.distribution import Distribution, Family
from pearl.core.telemetry import ArrivalRecord, Telemetry, TurnRecord
from pearl.core.workload import Routing, Training, Workload
from pearl.tracking.robust import Weighted, equal_mass, weighted_quantile, without_outliers
from pearl.tracking.survival import TurnCounts, combined, count_turns, turn_distribution

REFIT_MIN_SAMPLES = 20
"""Completed turns below which nothing is known: the standard error of a mean of cv 1 then still exceeds 20 %, more than
one worker more or less changes the makespan of a pool of five."""
MIN_FINISHED = 8
"""Trajectories that must have ended before their number of turns is known: with fewer, the longest is a guess."""
HALF_LIFE_STEPS = 1.0
"""Rollout steps after which a record counts half: after a change of workload, what was before it weighs 1/2^n after n
steps; two steps' worth of records remain effective."""
LEAST_WEIGHT = 1 / 256
"""Steps that weigh less are dropped."""
OPEN_STEPS = 2
"""Newest rollout steps whose records are kept one by one, so that each counts once, however often and in whatever order
it is delivered; older steps are condensed, and their late records ignored."""
STEP_POINTS = 1024
"""Values that a condensed step keeps of each quantity."""
PROFILE_POINTS = 256
"""Values of a profile's distributions: fine enough for the 99th percentile, small enough for a YAML file."""
MAX_SILENCE_S = 900.0
"""Telemetry older than this is no data: a turn of the longest reasoning models ends sooner."""

_Key = tuple[str, int]
"""Trajectory and turn."""


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings:
    """What telemetry cannot show, and how fast the tracker forgets."""

    trajectories: int | None = None
    """Batch size, where it is known; else the number that the rollout steps offered."""
    max_context_tokens: int | None = None
    """Limit on a trajectory's context; None: the longest that was seen."""
    routing: Routing = Routing.AFFINITY
    training: Training = Training.ASYNCHRONOUS
    max_staleness: int = 1
    half_life_steps: float = HALF_LIFE_STEPS
    max_silence_s: float = MAX_SILENCE_S


@dataclass(frozen=True, kw_only=True)
class Values:
    """Values of one quantity in one step, equally likely, standing for `count` observations."""

    values: tuple[float, ...] = ()
    count: int = 0

    def weighted(self, weight: float) -> Weighted:
        """Pairs of value and weight, each observation weighing `weight`."""
        each = weight * self.count / max(len(self.values), 1)
        return [(value, each) for value in self.values]


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """What one rollout step showed."""

    trajectories: int
    first_prompt_tokens: Values
    new_prompt_tokens: Values
    output_tokens: Values
    environment_s: Values
    turns: TurnCounts
    completed: int
    """Turns completed."""
    longest_tokens: int


@dataclass(frozen=True, kw_only=True)
class OpenStep:
    """Records of a step that may still grow."""

    arrivals: Mapping[_Key, ArrivalRecord] = field(default_factory=dict)
    turns: Mapping[_Key, TurnRecord] = field(default_factory=dict)

    def summary(self) -> StepSummary:
        """Offered prompts come from arrivals, and from turns whose arrival was not recorded."""
        prompts = {key: record.new_prompt_tokens for key, record in self.turns.items()}
        prompts |= {key: record.new_prompt_tokens for key, record in self.arrivals.items()}
        turns = self.turns.values()
        return StepSummary(
            trajectories=len({trajectory for trajectory, _ in prompts}),
            first_prompt_tokens=_values(tokens for (_, turn), tokens in prompts.items() if turn == 0),
            new_prompt_tokens=_values(tokens for (_, turn), tokens in prompts.items() if turn > 0),
            output_tokens=_values(record.output_tokens for record in turns),
            environment_s=_values(record.environment_s for record in turns if record.environment_s is not None),
            turns=count_turns((record.turn, record.last) for record in turns),
            completed=len(self.turns),
            longest_tokens=max((record.context_tokens for record in turns), default=0),
        )


@dataclass(frozen=True, kw_only=True)
class WorkloadTracker:
    """Tracks the workload of a job; `update` returns the next state, and copies what is open: call it once a tick."""

    settings: WorkloadSettings = WorkloadSettings()
    open: Mapping[int, OpenStep] = field(default_factory=dict)
    closed: Mapping[int, StepSummary] = field(default_factory=dict)
    newest_s: float | None = None
    """Time of the newest record."""
    now_s: float = 0.0

    def update(self, records: Iterable[Telemetry], now_s: float) -> WorkloadTracker:
        """The tracker that has also seen `records`; only arrivals and turns matter here."""
        seen = [record for record in records if isinstance(record, (ArrivalRecord, TurnRecord))]
        newest = max((record.at_s for record in seen), default=self.newest_s)
        if newest is not None and self.newest_s is not None:
            newest = max(newest, self.newest_s)
        steps = _grown(self.open, (record for record in seen if record.step not in self.closed), self._floor())
        last = max(steps, default=0)
        closing = {step: part for step, part in steps.items() if step <= last - OPEN_STEPS}
        closed = {**self.closed, **{step: part.summary() for step, part in closing.items()}}
        return replace(
            self,
            open={step: part for step, part in steps.items() if step not in closing},
            closed={step: part for step, part in closed.items() if self._weight(last - step) >= LEAST_WEIGHT},
            newest_s=newest,
            now_s=max(now_s, self.now_s),
        )

    def profile(self) -> Workload | None:
        """The profile; None where too little is known, or nothing has been heard for too long: no data."""
        if self.newest_s is None or self.now_s - self.newest_s > self.settings.max_silence_s:
            return None
        steps = {**self.closed, **{step: part.summary() for step, part in self.open.items()}}
        last = max(steps, default=0)
        parts = [(part, self._weight(last - step)) for step, part in sorted(steps.items())]
        completed = sum(part.completed for part, _ in parts)
        if completed < REFIT_MIN_SAMPLES or sum(part.turns.finished for part, _ in parts) < MIN_FINISHED:
            return None
        return self._fitted(parts)

    def _fitted(self, parts: list[tuple[StepSummary, float]]) -> Workload:
        sizes = [(float(part.trajectories), weight) for part, weight in parts if part.trajectories]
        return Workload(
            trajectories=self.settings.trajectories or int(weighted_quantile(sizes, 0.5)),
            turns=_distribution(turn_distribution(combined((part.turns, weight) for part, weight in parts)), 1.0),
            first_prompt_tokens=_distribution(_pooled(parts, "first_prompt_tokens"), 1.0),
            new_prompt_tokens=_distribution(_pooled(parts, "new_prompt_tokens"), 1.0),
            output_tokens=_distribution(_pooled(parts, "output_tokens"), 1.0),
            environment_s=_distribution(_pooled(parts, "environment_s"), 0.0),
            max_context_tokens=self.settings.max_context_tokens or max(part.longest_tokens for part, _ in parts),
            routing=self.settings.routing,
            training=self.settings.training,
            max_staleness=self.settings.max_staleness,
        )

    def _weight(self, steps_ago: int) -> float:
        return float(2.0 ** (-steps_ago / self.settings.half_life_steps))

    def _floor(self) -> int:
        """The first step whose records still count one by one."""
        return max(self.closed, default=-1) + 1


def _grown(
    steps: Mapping[int, OpenStep], records: Iterable[ArrivalRecord | TurnRecord], floor: int
) -> dict[int, OpenStep]:
    """The open steps with the records added; of two records of one turn the later stands."""
    arrivals = {step: dict(part.arrivals) for step, part in steps.items()}
    turns = {step: dict(part.turns) for step, part in steps.items()}
    for record in sorted(records, key=_order):
        if record.step < floor:
            continue
        key = (record.trajectory, record.turn)
        if isinstance(record, ArrivalRecord):
            arrivals.setdefault(record.step, {})[key] = record
        else:
            turns.setdefault(record.step, {})[key] = record
    return {
        step: OpenStep(arrivals=arrivals.get(step, {}), turns=turns.get(step, {}))
        for step in sorted(arrivals.keys() | turns.keys())
    }


def _order(record: ArrivalRecord | TurnRecord) -> tuple[float, str, int, int]:
    """An order of the records' own, so that the order of delivery does not matter."""
    return record.at_s, record.trajectory, record.turn, record.new_prompt_tokens


def _values(values: Iterable[float]) -> Values:
    kept = without_outliers(list(values))
    return Values(values=equal_mass([(float(v), 1.0) for v in kept], STEP_POINTS), count=len(kept))


def _pooled(parts: list[tuple[StepSummary, float]], quantity: str) -> Weighted:
    return [pair for part, weight in parts for pair in getattr(part, quantity).weighted(weight)]


def _distribution(pairs: Weighted, least: float) -> Distribution:
    """Equally likely values; constant where there is one, or none (then `least`)."""
    values = equal_mass(pairs, PROFILE_POINTS)
    if not values or values[0] == values[-1]:
        return Distribution.constant(values[0] if values else least)
    return Distribution(family=Family.EMPIRICAL, values=values)
