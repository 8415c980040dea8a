"""How many turns a trajectory takes, from finished and unfinished trajectories alike (Kaplan–Meier).

Of the trajectories that completed turn k, some ended with it: their share is the hazard h_k, and a trajectory has more
than k + 1 turns with probability Π_{j≤k} (1 − h_j). Trajectories that are still under way count for the turns that they
completed, so that the estimate does not lean towards short trajectories while few have finished, as a mean over
finished ones does (Kaplan and Meier, 1958, with the turn index as time).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class TurnCounts:
    """By turn index: (weighted) trajectories that completed the turn, and those that ended with it."""

    reached: Mapping[int, float] = field(default_factory=dict)
    ended: Mapping[int, float] = field(default_factory=dict)

    @property
    def finished(self) -> float:
        """Trajectories that ended."""
        return sum(self.ended.values())

    def hazard(self, turn: int) -> float:
        """Probability that a trajectory that completes `turn` ends with it; past the last turn seen it ends."""
        reached = self.reached.get(turn, 0.0)
        return self.ended.get(turn, 0.0) / reached if reached else 1.0


def count_turns(turns: Iterable[tuple[int, bool]]) -> TurnCounts:
    """Counts of completed turns, given as (index, whether the trajectory ended with it)."""
    reached: dict[int, float] = defaultdict(float)
    ended: dict[int, float] = defaultdict(float)
    for turn, last in turns:
        reached[turn] += 1
        if last:
            ended[turn] += 1
    return TurnCounts(reached=dict(reached), ended=dict(ended))


def combined(parts: Iterable[tuple[TurnCounts, float]]) -> TurnCounts:
    """The weighted sum of several counts."""
    reached: dict[int, float] = defaultdict(float)
    ended: dict[int, float] = defaultdict(float)
    for counts, weight in parts:
        for turn, number in counts.reached.items():
            reached[turn] += weight * number
        for turn, number in counts.ended.items():
            ended[turn] += weight * number
    return TurnCounts(reached=dict(reached), ended=dict(ended))


def turn_distribution(counts: TurnCounts) -> list[tuple[float, float]]:
    """(number of turns, probability), ascending.

    What is still alive after the last turn that was seen is put there: the restricted estimate, which falls short only
    while the longest trajectories have not ended yet. Nobody ends with a turn that nobody was seen to complete.
    """
    alive, result = 1.0, []
    seen = sorted(counts.reached)
    for turn in seen:
        ends = alive if turn == seen[-1] else alive * counts.hazard(turn)
        if ends > 0:
            result.append((float(turn + 1), ends))
        alive -= ends
    return result
