"""What a solver of unknown making may do wrong beside its point: raise, return something else, deny the obvious."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pearl.core.problem import DecisionProblem
from pearl.errors import PearlError, SolverContractError, SolverError
from pearl.solving.evaluate import evaluate, today

AnswerT = TypeVar("AnswerT")


def guarded(ask: Callable[[], AnswerT], kind: type[AnswerT], *, solver_id: str) -> AnswerT:
    """What `ask` returns; SolverError, with the solver's own text, for whatever else comes of it."""
    try:
        answer = ask()
    except PearlError:
        raise
    except (Exception, SystemExit) as error:
        raise SolverError(f"solver {solver_id!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(answer, kind):
        raise SolverContractError(f"solver {solver_id!r} returned {type(answer).__name__}; expected {kind.__name__}")
    return answer


def refuse_if_today_holds(problem: DecisionProblem, detail: str, *, solver_id: str) -> None:
    """Refuse an `infeasible` where today's assignment meets every row; raises SolverContractError."""
    kept = today(problem)
    if kept is not None and evaluate(problem, kept).feasible:
        raise SolverContractError(f"solver {solver_id!r} says {detail!r}, and today's assignment is feasible")
