"""What a solver is: one of two narrow protocols, and the words for what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pearl.core.problem import Assignment, DecisionProblem
from pearl.solving.ir import Model, Objective, Point


class SolveStatus(StrEnum):
    """What a solver says of its answer."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    """A point, not proved best: the limit passed."""
    INFEASIBLE = "infeasible"
    LIMIT = "limit"
    """The limit passed without any point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one call; one thread and this seed make it repeatable."""

    time_s: float = 10.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a solver can do; `exact` promises gap 0."""

    exact: bool = True
    proves_infeasible: bool = True
    reads: str = "model"
    """`model` (rows) or `problem` (the structured problem)."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One minimisation: a point for OPTIMAL and FEASIBLE, and a proved lower bound where the solver gives one."""

    status: SolveStatus
    point: Point | None = None
    bound: float | None = None
    detail: str = ""
    """The solver's own words for its status."""


@runtime_checkable
class ModelSolver(Protocol):
    """Minimises one objective over the rows of a model. The driver runs the tiers, and re-checks every point."""

    id: str
    capabilities: Capabilities

    def library_version(self) -> str:
        """Version of the library behind the solver; raises ImportError where it is missing."""
        ...

    def minimize(self, model: Model, objective: Objective, *, limits: Limits, hint: Point | None = None) -> Answer:
        """Solve; `hint` is a feasible point to start from, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The answer to a decision problem, re-checked exactly: the assignment and the value of each tier."""

    status: SolveStatus
    assignment: Assignment | None = None
    makespan_ms: int | None = None
    tier_values: tuple[int, ...] = ()
    bound: float | None = None
    detail: str = ""
    build_s: float = 0.0
    solve_s: float = 0.0


@runtime_checkable
class ProblemSolver(Protocol):
    """Solves the structured problem, all tiers at once."""

    id: str
    capabilities: Capabilities

    def library_version(self) -> str:
        """Version of the library behind the solver; raises ImportError where it is missing."""
        ...

    def solve(self, problem: DecisionProblem, *, limits: Limits) -> Solution:
        """Solve every tier; times are filled in by the driver."""
        ...


Solver = ModelSolver | ProblemSolver
