"""What the conformance suite finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pearl.errors import SolverUnavailableError
from pearl.solving.protocol import Limits

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether one property holds; `detail` says what went wrong."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Findings for one solver, in a fixed order."""

    solver: str
    version: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every property holds."""
        return all(found.passed for found in self.findings)


class BrokenPropertyError(Exception):
    """A property does not hold."""


def require(holds: bool, detail: str) -> None:
    """Raise BrokenPropertyError with `detail` unless `holds`."""
    if not holds:
        raise BrokenPropertyError(detail)


def finding(name: str, run: Callable[[Subject, Limits], None], subject: Subject, limits: Limits) -> Finding:
    """Run one property; whatever the solver raises is a failure, except that its library is missing."""
    try:
        run(subject, limits)
    except SolverUnavailableError:
        raise
    except BrokenPropertyError as broken:
        return Finding(name=name, passed=False, detail=str(broken))
    except Exception as error:
        return Finding(name=name, passed=False, detail=f"raised {type(error).__name__}: {error}")
    return Finding(name=name, passed=True)
