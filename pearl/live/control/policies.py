"""Policies that are set while the controller runs: read from text, kept in the state directory, found again.

A text that was sent reads no file of this host and loads no code: it names built-in policies, solvers that are
installed, and built-in predictors alone.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pearl.documents import Document, PathKey, parse_document
from pearl.errors import Fault, PolicyError
from pearl.files import write_whole
from pearl.live.control.documents import compact
from pearl.live.control.log import log
from pearl.live.control.store import ControlStore, Fact, SetFact
from pearl.makespan.registry import predictor_names
from pearl.policy.load import load_policy
from pearl.policy.model import Policy
from pearl.solving.registry import is_installed

_BUILT_IN = re.compile(r"(builtin/)?[A-Za-z0-9_-]+(@[A-Za-z0-9._-]+)?")
"""As `pearl.policy.load` tells built-in policies from files."""
_OWN_CODE = "code of your own is loaded for `pearl serve --policy` alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the store keeps of a policy that was set."""

    path: str
    """Its file, in the state directory."""
    instead_of: str
    """Digest of the policy that the controller was started with."""


class PolicyShelf:
    """A policy that was set holds until another is set, or the controller is started with another one."""

    def __init__(self, *, directory: Path, store: ControlStore, started: Policy) -> None:
        """`started` is the policy that the controller was started with."""
        self._directory = directory
        self._store = store
        self._started = started

    def read(self, text: str, *, name: str) -> tuple[Policy, Path]:
        """The policy of a text, and the file that holds it now. Raises `PolicyError`, its faults placed in `name`.

        Whatever it names has to be built in or installed: see above.
        """
        _check_references(text, name)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        path = self._directory / f"policy-{digest}.yaml"
        write_whole(path, text)
        try:
            return load_policy(path), path
        except PolicyError as e:
            path.unlink(missing_ok=True)
            raise PolicyError([_placed(fault, path, name) for fault in e.faults]) from None

    def keep(self, path: Path) -> None:
        """The policy in `path` is in force."""
        kept = Kept(path=path.name, instead_of=self._started.sha256)
        self._store.write(SetFact(fact=Fact.POLICY, document=compact(asdict(kept))))

    def in_force(self) -> Policy:
        """The policy that was set in place of the one that the controller was started with, or that one."""
        kept = self._store.fact_as(Fact.POLICY, Kept)
        if kept is None or kept.instead_of != self._started.sha256:
            return self._started
        try:
            return load_policy(self._directory / kept.path)
        except PolicyError as e:
            log("policy_lost", level=logging.WARNING, error=str(e), instead=self._started.name)
            return self._started


def _check_references(text: str, name: str) -> None:
    """Raises `PolicyError` for whatever would have a file of this host read, or code loaded."""
    document = parse_document(text, file=name, error=PolicyError)
    checks: tuple[tuple[PathKey, Callable[[str], bool], str, str], ...] = (
        (("extends",), _is_built_in, "a built-in policy", "put its rules into this file"),
        (("spec", "solver", "prefer"), is_installed, "a solver that is installed", _OWN_CODE),
        (("spec", "predictor"), _is_built_in_predictor, "a built-in predictor", _OWN_CODE),
    )
    faults = [
        Fault(
            message=f"{path[-1]}: {value!r} is not at hand here",
            span=document.span(place),
            expected=expected,
            hint=hint,
        )
        for path, holds, expected, hint in checks
        for place, value in _texts(document, path)
        if not holds(value)
    ]
    if faults:
        raise PolicyError(faults)


def _texts(document: Document, path: PathKey) -> Iterator[tuple[PathKey, str]]:
    """The texts at a path, alone or in a list, each with its place; what is no text is the schema's to refuse."""
    found = document.data
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    for index, value in enumerate(found if isinstance(found, list) else [found]):
        if isinstance(value, str):
            yield (*path, index), value


def _is_built_in(parent: str) -> bool:
    return _BUILT_IN.fullmatch(parent) is not None


def _is_built_in_predictor(name: str) -> bool:
    return name in predictor_names()


def _placed(fault: Fault, path: Path, name: str) -> Fault:
    if fault.span is None or fault.span.file != str(path):
        return fault
    return replace(fault, span=replace(fault.span, file=name))
