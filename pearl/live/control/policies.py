"""Policies that are set while the controller runs: read from text, kept in the state directory, found again."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

from pearl.documents import parse_document
from pearl.errors import Fault, PolicyError
from pearl.files import write_whole
from pearl.live.control.documents import compact
from pearl.live.control.log import log
from pearl.live.control.store import ControlStore, Fact, SetFact
from pearl.policy.load import load_policy
from pearl.policy.model import Policy

_BUILT_IN = re.compile(r"(builtin/)?[A-Za-z0-9_-]+(@[A-Za-z0-9._-]+)?")
"""As `pearl.policy.load` tells built-in policies from files."""


class PolicyShelf:
    """A policy that was set holds until another is set, or the controller is started with another one."""

    def __init__(self, *, directory: Path, store: ControlStore, started: Policy) -> None:
        """`started` is the policy that the controller was started with."""
        self._directory = directory
        self._store = store
        self._started = started

    def read(self, text: str, *, name: str) -> tuple[Policy, Path]:
        """The policy of a text, and the file that holds it now. Raises `PolicyError`, its faults placed in `name`.

        A policy may extend built-in ones alone: other files are not at hand here.
        """
        _check_parents(text, name)
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
        document = {"path": path.name, "instead_of": self._started.sha256}
        self._store.write(SetFact(fact=Fact.POLICY, document=compact(document)))

    def in_force(self) -> Policy:
        """The policy that was set in place of the one that the controller was started with, or that one."""
        text = self._store.fact(Fact.POLICY)
        kept = json.loads(text) if text else None
        if kept is None or kept["instead_of"] != self._started.sha256:
            return self._started
        try:
            return load_policy(self._directory / kept["path"])
        except PolicyError as e:
            log("policy_lost", error=str(e), instead=self._started.name)
            return self._started


def _check_parents(text: str, name: str) -> None:
    """Raises `PolicyError` for a parent that is a file: a policy that was sent reads none of this host's."""
    document = parse_document(text, file=name, error=PolicyError)
    parents = document.data.get("extends") if isinstance(document.data, dict) else None
    faults = [
        Fault(
            message=f"extends: {parent!r} is not at hand here",
            span=document.span(("extends", index)),
            expected="a built-in policy",
            hint="put its rules into this file",
        )
        for index, parent in enumerate(parents if isinstance(parents, list) else ())
        if isinstance(parent, str) and not _BUILT_IN.fullmatch(parent)
    ]
    if faults:
        raise PolicyError(faults)


def _placed(fault: Fault, path: Path, name: str) -> Fault:
    if fault.span is None or fault.span.file != str(path):
        return fault
    return replace(fault, span=replace(fault.span, file=name))
