"""Versioned weights: directories that a trainer publishes and workers read. The controller holds references only.

Layout: `ROOT/v00000012/` with `config.json` and safetensors files, as the trainer writes for its own update. A
directory appears under its name only when it is complete, and then never changes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pearl.errors import Fault, UsageError

_NAME = re.compile(r"v(\d{8,})")
LONGEST_SHOWN = 256
"""Characters of a path in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRef:
    """One version of the weights, and where workers read it."""

    version: int
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStore:
    """The versions under one root. Nothing outside of the root is ever read, by link or by name."""

    root: Path

    def versions(self) -> tuple[int, ...]:
        """All complete versions, oldest first."""
        if not self.root.is_dir():
            return ()
        names = (_NAME.fullmatch(entry.name) for entry in self.root.iterdir() if entry.is_dir())
        return tuple(sorted(int(name[1]) for name in names if name))

    def latest(self) -> WeightRef | None:
        """The newest complete version; None before the first."""
        versions = self.versions()
        return self.get(versions[-1]) if versions else None

    def get(self, version: int) -> WeightRef:
        """That version; raises `UsageError` where it is absent, incomplete, or leads out of the root."""
        return self.check(WeightRef(version=version, directory=self._directory(version)))

    def check(self, ref: WeightRef) -> WeightRef:
        """A reference that someone sent, with its directory resolved; raises `UsageError` unless it holds here."""
        try:
            return self._checked(ref)
        except (OSError, RuntimeError, ValueError) as e:  # too long a name, a loop of links, a NUL
            raise _fault(ref, f"cannot be read: {getattr(e, 'strerror', None) or e}", "a directory there") from None

    def _checked(self, ref: WeightRef) -> WeightRef:
        root, directory = self.root.resolve(), ref.directory.resolve()
        if not directory.is_relative_to(root):
            raise _fault(ref, f"is outside of the weight store {self.root}", "a directory in it")
        if not (directory / "config.json").is_file() or not any(directory.glob("*.safetensors")):
            raise _fault(ref, "is no complete snapshot", "config.json and *.safetensors")
        for entry in directory.rglob("*"):
            if not entry.resolve().is_relative_to(root):
                raise _fault(ref, f"holds a link out of the weight store: {entry.name}", "files in it")
        if _is_tied(directory / "config.json"):
            raise _fault(ref, "ties its embeddings", "untied ones: a tied model differs silently after a reload")
        return WeightRef(version=ref.version, directory=directory)

    def published(self, ref: WeightRef) -> WeightRef:
        """As `check`, for a reference that must be the version's own directory: `drop_older` goes by the names."""
        found = self.check(ref)
        if found.directory != self.root.resolve() / self._directory(ref.version).name:
            raise _fault(ref, "is not that version's", f"{self._directory(ref.version)}")
        return found

    @contextmanager
    def publish(self, version: int) -> Iterator[Path]:
        """An empty directory to write the snapshot into; it becomes `version` when the block ends without an error.

        Raises `UsageError` where the version exists: what workers may have read does not change.
        """
        target = self._directory(version)
        if target.exists():
            raise UsageError(Fault(message=f"weights {version} exist in {self.root}", expected="a new version"))
        partial = self.root / f".{target.name}.{os.getpid()}.partial"
        partial.mkdir(parents=True)
        try:
            yield partial
            self.check(WeightRef(version=version, directory=partial))
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def drop_older(self, than: int, *, keep: int) -> tuple[int, ...]:
        """Delete the versions below `than`, but for the newest `keep` of all; returns those deleted."""
        old = tuple(version for version in self.versions()[:-keep] if version < than)
        for version in old:
            shutil.rmtree(self._directory(version), ignore_errors=True)
        return old

    def _directory(self, version: int) -> Path:
        if version < 0:
            raise UsageError(Fault(message=f"weight version {version}", expected="at least 0"))
        return self.root / f"v{version:08d}"


def _is_tied(config: Path) -> bool:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise UsageError(Fault(message=f"{config}: {e}", expected="the model's configuration")) from None
    return isinstance(content, dict) and bool(content.get("tie_word_embeddings", False))


def _fault(ref: WeightRef, what: str, expected: str) -> UsageError:
    shown = str(ref.directory)
    return UsageError(Fault(message=f"weights {ref.version}: {shown[:LONGEST_SHOWN]!r} {what}", expected=expected))
