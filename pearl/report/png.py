"""What it takes to draw a PNG, asked before there is anything to draw."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pearl.errors import Fault, UsageError


def check_png(path: Path, *, hint: str | None = None) -> None:
    """Raise UsageError where a file of this name is no PNG, or where none can be drawn here."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"no picture format {path.suffix!r}; expected a file name in .png")
    check_matplotlib(hint=hint)


def check_matplotlib(*, hint: str | None = None) -> None:
    """Raise UsageError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        message = "PNG pictures need matplotlib, which is not installed; run: pip install 'pearl[report]'"
        raise UsageError(Fault(message=message, hint=hint))
