"""The one exception tree of PEARL.

Every message says where, what, and the next move; the command line turns the class into an exit code.

    PearlError
    ├── InputError               bad input (exit 2); carries every fault found, each with its place
    │   ├── PolicyError          a policy file or a `--set`
    │   ├── ScenarioError        a scenario file
    │   └── UsageError           arguments that do not fit together
    ├── SolverError              a solver is missing, failed, or broke its contract (exit 2)
    │   ├── UnknownSolverError
    │   ├── SolverUnavailableError
    │   └── SolverContractError  a returned point that the exact re-check refuses
    └── NoAnswerError            no answer within the limit (exit 4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pearl.core.source import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of an input: where it is, what was found and expected, and what to do."""

    message: str
    span: Span | None = None
    expected: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = f"{self.span}: " if self.span else ""
        expected = f"; expected {self.expected}" if self.expected else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message}{expected}{hint}"


class PearlError(Exception):
    """Root of everything that PEARL raises on purpose."""

    exit_code = 1


class InputError(PearlError):
    """Input that cannot be used; `faults` holds every fault found, in file order."""

    exit_code = 2

    def __init__(self, faults: Fault | Iterable[Fault] | str) -> None:
        if isinstance(faults, str):
            faults = Fault(message=faults)
        self.faults = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(str(p) for p in self.faults))


class PolicyError(InputError):
    """A policy file, or a `--set`, that does not hold."""


class ScenarioError(InputError):
    """A scenario file that does not hold."""


class UsageError(InputError):
    """Arguments that do not fit together."""


class SolverError(PearlError):
    """A solver is missing, failed, or broke its contract."""

    exit_code = 2


class UnknownSolverError(SolverError):
    """No solver goes by the name given."""


class SolverUnavailableError(SolverError):
    """The solver is known, and its library cannot be imported here."""


class SolverContractError(SolverError):
    """A solver returned something that the exact re-check refuses."""


class NoAnswerError(PearlError):
    """The time limit passed before any answer was found."""

    exit_code = 4


def every_fault(attempts: Iterable[Callable[[], object]]) -> None:
    """Make every attempt, whatever the others come to; raises one InputError with the faults of all, each once."""
    found: dict[str, Fault] = {}
    for attempt in attempts:
        try:
            attempt()
        except InputError as e:
            found |= {str(fault): fault for fault in e.faults}
    if found:
        raise InputError(found.values())
