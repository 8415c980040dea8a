"""Agent traces in one neutral form: trajectories of turns, from which a workload profile is made or which are replayed.

A turn prefills `new_prompt_tokens`, decodes `output_tokens`, then waits `environment_s` on its environment. The output
of a turn belongs to the context of the next one and is not new to it, so a recorded prompt of n tokens after a prompt
of c tokens with an output of o gives n − c − o new tokens: what a cache of the recording system had evicted is no
property of the workload. Where the prompt grew by less than the output, part of the answer was dropped (its
reasoning); an engine prefills again what follows such a cut, and the whole growth n − c counts as new.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from pearl.core.workload import Workload
from pearl.errors import InputError
from pearl.sim.traces.fits import Shape, fit
from pearl.sim.trajectories import Trajectory, Turn

COMPACTION_SHARE = 0.9
"""A context that falls below this share of the last one was compacted: what follows is a trajectory of its own. Smaller
falls are edits, such as dropped reasoning."""
MAX_TOOL_WAIT_S = 600.0
"""The longest that common agent shells let a tool run. Longer recorded waits are a person asked for permission, or a
closed laptop."""

Exchange = tuple[int, int, float | None]
"""Prompt tokens, output tokens, and the seconds waited after; None where the trace does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One turn; `measured` is false where the trace does not say what the environment took, and a fill stands in."""

    new_prompt_tokens: int
    output_tokens: int
    environment_s: float
    measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrajectory:
    """Turns of one session; the first turn's new tokens are its first prompt."""

    id: str
    turns: tuple[RecordedTurn, ...]

    @property
    def context_tokens(self) -> int:
        """Context after the last turn."""
        return sum(turn.new_prompt_tokens + turn.output_tokens for turn in self.turns)


@dataclass(frozen=True, kw_only=True)
class AgentTrace:
    """Trajectories of one file, ready to replay; `notes` says what the reader dropped, split or filled in."""

    trajectories: tuple[RecordedTrajectory, ...]
    source: str
    notes: tuple[str, ...] = ()

    def within(self, max_context_tokens: int) -> AgentTrace:
        """The trace as a rollout with that limit sees it.

        Trajectories whose first prompt leaves no room are dropped; the others end with the turn that reaches the
        limit, its output cut to fit, or with the turn before where not even its prompt fits.
        """
        kept = [t for t in self.trajectories if t.turns[0].new_prompt_tokens < max_context_tokens]
        return replace(self, trajectories=tuple(_cut(t, max_context_tokens) for t in kept))


def assemble(
    *,
    source: str,
    sessions: Iterable[tuple[str, Sequence[Exchange]]],
    notes: Iterable[str] = (),
) -> AgentTrace:
    """A trace from sessions of exchanges whose prompt tokens are the new ones.

    Token counts below 1 become 1: no request is without any. None, and waits above MAX_TOOL_WAIT_S, become the median
    of the measured waits; after the last turn of a session nothing waits.
    """
    rows = [(name, turns) for name, turns in sessions if turns]
    inner = [wait for _, turns in rows for _, _, wait in turns[:-1]]
    waits = [wait for wait in inner if wait is not None and wait <= MAX_TOOL_WAIT_S]
    too_long = sum(wait is not None and wait > MAX_TOOL_WAIT_S for wait in inner)
    fill_s = median(waits) if waits else 0.0
    extra = [f"{too_long} waits above {MAX_TOOL_WAIT_S:g} s are taken as a person's"] if too_long else []
    if len(inner) > len(waits):
        extra.append(f"{len(inner) - len(waits)} of {len(inner)} waits are not measured: {fill_s:g} s stands in")
    trajectories = tuple(RecordedTrajectory(id=name, turns=_turns(turns, fill_s)) for name, turns in rows)
    return AgentTrace(trajectories=trajectories, source=source, notes=(*notes, *extra))


def _turns(rows: Sequence[Exchange], fill_s: float) -> tuple[RecordedTurn, ...]:
    result = []
    for i, (new, out, wait) in enumerate(rows):
        last = i == len(rows) - 1
        measured = not last and wait is not None and wait <= MAX_TOOL_WAIT_S
        environment_s = 0.0 if last else wait if measured and wait is not None else fill_s
        turn = RecordedTurn(
            new_prompt_tokens=max(new, 1), output_tokens=max(out, 1), environment_s=environment_s, measured=measured
        )
        result.append(turn)
    return tuple(result)


def grow(contexts: Sequence[Exchange], *, max_new_tokens: float = math.inf) -> list[list[Exchange]]:
    """Sessions of new tokens out of one session of exchanges with whole prompts.

    The rule of this module's docstring gives the new tokens. A compacted context begins a new session, and so does one
    with more than `max_new_tokens` new: it was replaced, not continued.
    """
    sessions: list[list[Exchange]] = []
    before, output = 0, 0
    for prompt, out, wait in contexts:
        growth = prompt - before
        new = growth - output if growth > output else growth
        if not sessions or prompt < before * COMPACTION_SHARE or new > max_new_tokens:
            sessions.append([(prompt, out, wait)])
        else:
            sessions[-1].append((new, out, wait))
        before, output = prompt, out
    return sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What lies behind each distribution of a workload; `environment_s` holds measured waits only."""

    turns: tuple[int, ...]
    first_prompt_tokens: tuple[int, ...]
    new_prompt_tokens: tuple[int, ...]
    """Of the second turn of a trajectory onward."""
    output_tokens: tuple[int, ...]
    environment_s: tuple[float, ...]


def observe(trace: AgentTrace) -> Observations:
    """Gather the observations of all trajectories."""
    turns = [turn for t in trace.trajectories for turn in t.turns]
    return Observations(
        turns=tuple(len(t.turns) for t in trace.trajectories),
        first_prompt_tokens=tuple(t.turns[0].new_prompt_tokens for t in trace.trajectories),
        new_prompt_tokens=tuple(turn.new_prompt_tokens for t in trace.trajectories for turn in t.turns[1:]),
        output_tokens=tuple(turn.output_tokens for turn in turns),
        environment_s=tuple(turn.environment_s for turn in turns if turn.measured),
    )


def workload(
    trace: AgentTrace, *, trajectories: int, shape: Shape = Shape.EMPIRICAL, max_context_tokens: int | None = None
) -> Workload:
    """The workload profile of a trace for a batch of `trajectories`.

    `max_context_tokens` None takes the longest context of the trace. With a number, trajectories whose first prompt
    does not fit are left out, and the others count up to the turn that reaches the limit, that one whole: it is a
    stopping time, so the means stay unbiased (Wald's identity), which they would not be with the turn cut or left
    out. Numbers of turns are those before the limit, since the workload's own limit ends a trajectory again. A
    quantity that the trace never shows (single-turn traces have no later prompts) is constant: 1 token, 0 s.
    Raises InputError when no trajectory fits.
    """
    limit = max_context_tokens or max((t.context_tokens for t in trace.trajectories), default=0)
    fitting = [t for t in trace.trajectories if t.turns[0].new_prompt_tokens < limit]
    if not fitting:
        raise InputError(f"{trace.source}: no trajectory has a first prompt below {limit} tokens")
    seen = observe(replace(trace, trajectories=tuple(_until(t, limit) for t in fitting)))
    return Workload(
        trajectories=trajectories,
        turns=fit([len(t.turns) for t in fitting], shape=shape),
        first_prompt_tokens=fit(seen.first_prompt_tokens, shape=shape),
        new_prompt_tokens=fit(seen.new_prompt_tokens or (1,), shape=shape),
        output_tokens=fit(seen.output_tokens, shape=shape),
        environment_s=fit(seen.environment_s or (0.0,), shape=shape),
        max_context_tokens=limit,
    )


def replay(trace: AgentTrace, *, max_context_tokens: int | None = None) -> tuple[Trajectory, ...]:
    """The recorded trajectories as the simulator runs them, in the trace's order, cut to the limit if there is one."""
    cut = trace if max_context_tokens is None else trace.within(max_context_tokens)
    return tuple(
        tuple(
            Turn(
                new_prompt_tokens=turn.new_prompt_tokens,
                output_tokens=turn.output_tokens,
                environment_s=turn.environment_s,
            )
            for turn in trajectory.turns
        )
        for trajectory in cut.trajectories
    )


def _until(trajectory: RecordedTrajectory, limit: int) -> RecordedTrajectory:
    """The trajectory up to the turn whose context reaches `limit`, that turn included."""
    ends = accumulate(turn.new_prompt_tokens + turn.output_tokens for turn in trajectory.turns)
    before = sum(1 for end in ends if end < limit)
    return replace(trajectory, turns=trajectory.turns[: before + 1])


def _cut(trajectory: RecordedTrajectory, limit: int) -> RecordedTrajectory:
    reached = _until(trajectory, limit)
    surplus = reached.context_tokens - limit
    if surplus <= 0:
        return reached
    *kept, last = reached.turns
    output = last.output_tokens - surplus
    if output > 0:
        kept.append(replace(last, output_tokens=output))
    ended = replace(kept[-1], environment_s=0.0, measured=False)
    return replace(trajectory, turns=(*kept[:-1], ended))
