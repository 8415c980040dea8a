"""The decision problem in structured form: what a policy, a state and makespan tables pose to a solver.

All numbers are integers (milliseconds for time), so that every answer can be re-checked exactly. `pearl.solving` turns
a problem into rows for a MIP solver; enumeration reads it as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from pearl.core.cluster import Counts, Mode, Role, Zone
from pearl.core.source import Span

UNREACHABLE_MS = 10**9
"""A makespan that stands for 'cannot run' (11 days): what a table holds where the pool cannot serve the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Interchangeable workers: same zone, node class, role and fate.

    `targets` are the roles that its workers may take in the decision. A pinned group (transitioning, or about to
    leave) has one. `node` and `reclaim_probability` are set only where a rule tells workers apart by them.
    """

    id: str
    zone: Zone
    role: Role
    size: int
    targets: tuple[Role, ...]
    gpus_per_worker: int = 1
    node: str | None = None
    reclaim_probability: float = 0.0
    started: bool = True
    leaving: bool = False

    @property
    def pool(self) -> tuple[Zone, str | None, float, int, bool, bool]:
        """Key of the pool within which only the current role tells workers apart."""
        return (self.zone, self.node, self.reclaim_probability, self.gpus_per_worker, self.started, self.leaving)


class Axis(StrEnum):
    """The count over which a table is given."""

    COLOCATED = "colocated"
    PREFILL = "prefill"
    DECODE = "decode"


AXIS_ROLE: Mapping[Axis, Role] = {
    Axis.COLOCATED: Role.COLOCATED,
    Axis.PREFILL: Role.PREFILL,
    Axis.DECODE: Role.DECODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A value for each count 0 … N of one role; entry 0 is what it adds while the other mode runs."""

    axis: Axis
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """constant + Σ y[g,r]·coefficient + makespan·T + Σ table[count of its axis], in integers.

    `scale` turns the integer back into the unit a person reads: value = integer / scale.
    """

    constant: int = 0
    counts: tuple[tuple[str, Role, int], ...] = ()
    """(group id, target role, coefficient), sorted, each pair once, no zero."""
    makespan: int = 0
    """Coefficient of T in milliseconds."""
    tables: tuple[Table, ...] = ()
    scale: Fraction = Fraction(1)
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soft:
    """A rule that may be broken at a price: milliseconds of makespan per unit of violation, up to a maximum."""

    penalty_ms: int
    """Added to the first tier for each whole unit (of `Linear.scale`) by which the rule is broken, rounded up."""
    max_violation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row of the policy: `expr <= 0`, while the pool runs in `when` (always, if None)."""

    name: str
    expr: Linear
    when: Mode | None = None
    soft: Soft | None = None
    relaxable: bool = True
    message: str = ""
    text: str = ""
    """The rule as the user wrote it."""
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One objective: the maximum of its expressions is minimised, then held within `tolerance` of its optimum."""

    name: str
    terms: tuple[Linear, ...]
    tolerance: Fraction = Fraction(0)
    text: str = ""
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRung:
    """A disaggregated makespan guaranteed by at least `prefill` and `decode` workers."""

    prefill: int
    decode: int
    makespan_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanTables:
    """Predicted makespan for each count, in milliseconds; index n holds n workers, index 0 is UNREACHABLE_MS.

    Disaggregated: T = max(prefill_ms[N_P], decode_ms[N_D]) where `pairs` is empty. Otherwise T is read from the pairs,
    and the two columns are the path times, for rules to read. `exact_pairs`: a pair holds for its counts only; without
    it, T is the best rung that the counts dominate (a ladder, for large pools, where T does not grow with workers).
    """

    colocated_ms: tuple[int, ...]
    prefill_ms: tuple[int, ...]
    decode_ms: tuple[int, ...]
    pairs: tuple[PairRung, ...] = ()
    exact_pairs: bool = False

    @property
    def workers(self) -> int:
        """The largest count that the tables cover."""
        return len(self.colocated_ms) - 1

    def makespan_ms(self, counts: Counts) -> int:
        """Makespan of a configuration; UNREACHABLE_MS where it cannot serve or mixes modes."""
        if counts.colocated and not (counts.prefill or counts.decode):
            return self.colocated_ms[counts.colocated]
        if counts.colocated or not (counts.prefill and counts.decode):
            return UNREACHABLE_MS
        if not self.pairs:
            return max(self.prefill_ms[counts.prefill], self.decode_ms[counts.decode])
        return min((rung.makespan_ms for rung in self.pairs if self._covers(rung, counts)), default=UNREACHABLE_MS)

    def _covers(self, rung: PairRung, counts: Counts) -> bool:
        if self.exact_pairs:
            return rung.prefill == counts.prefill and rung.decode == counts.decode
        return rung.prefill <= counts.prefill and rung.decode <= counts.decode


class Change(StrEnum):
    """What kind of change a configuration makes to today's."""

    MODE = "mode"
    RATIO = "ratio"
    """Role changes of serving workers without a mode change."""
    RESIZE = "resize"
    """Workers that start or stop serving by choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurdle:
    """Hysteresis: a change of each kind must bring the makespan below `stay_ms` by its threshold, thresholds adding up.

    As a gate the hurdle is a row; as a charge the thresholds are added to the first tier. `forbidden` kinds are in
    their cooldown. With `resize_ms` None a pure resize is not gated, and a resize adds nothing to other thresholds.
    """

    stay_ms: int
    mode_ms: int = 0
    ratio_ms: int = 0
    resize_ms: int | None = None
    gate: bool = True
    charge: bool = False
    forbidden: frozenset[Change] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowTerms:
    """Terms of borrowing: at most `max_workers` overlap workers serve, and only if T <= `gate_ms` (None: no gate)."""

    max_workers: int
    gate_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionProblem:
    """Everything a solver needs to choose a role for every worker."""

    groups: tuple[Group, ...]
    tables: MakespanTables
    tiers: tuple[Tier, ...]
    rules: tuple[Rule, ...] = ()
    modes: tuple[Mode, ...] = (Mode.COLOCATED, Mode.DISAGGREGATED)
    current_mode: Mode | None = None
    hurdle: Hurdle | None = None
    borrow: BorrowTerms = BorrowTerms(max_workers=0)
    fixed: Counts | None = None
    """Serving counts by role that the answer must have (`--why 5P3D`); its inactive and borrowed are not read."""
    excluded: tuple[Counts, ...] = ()
    """Serving counts by role that the answer must not have (for alternatives); read like `fixed`."""
    group_by_id: Mapping[str, Group] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "group_by_id", {group.id: group for group in self.groups})


Assignment = Mapping[tuple[str, Role], int]
"""Workers of each group that take each role: {(group id, target role): number}, zeros left out."""


def assignment_counts(problem: DecisionProblem, assignment: Assignment) -> Counts:
    """Counts by role of an assignment."""
    tally = dict.fromkeys(Role, 0)
    borrowed = 0
    for (group_id, role), number in assignment.items():
        tally[role] += number
        if role is not Role.INACTIVE and problem.group_by_id[group_id].zone is Zone.OVERLAP:
            borrowed += number
    return Counts(
        colocated=tally[Role.COLOCATED],
        prefill=tally[Role.PREFILL],
        decode=tally[Role.DECODE],
        inactive=tally[Role.INACTIVE],
        borrowed=borrowed,
    )
