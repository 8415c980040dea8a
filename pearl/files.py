"""Files that are written whole or not at all, so that an interrupted command leaves no half of one."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from pearl.errors import InputError

SHOWN_OF_NAME = 32
"""Letters of a file's name in that of its unfinished one; with process and thread below the usual 255 bytes."""


def write_whole(path: Path, data: str | bytes) -> None:
    """Write text as UTF-8, or bytes; a file that was there stays until the new one is complete.

    What is not a regular file (a pipe, a terminal) is written to directly. A byte of a file's name that is no UTF-8 is
    written as the escape that JSON has for it, and so read back as the same. Raises InputError where it cannot be done.
    """
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    try:
        _write(path.resolve(), raw)
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror or e}") from None


def check_writable(path: Path) -> None:
    """Raise now what `write_whole` would raise, so that long work is not done for a file that cannot be written.

    Leaves no trace; the content of a file that is there is not touched.
    """
    try:
        _try(path.resolve())
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror or e}") from None


def _try(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    partial = _partial(target)
    try:
        partial.touch()
    finally:
        partial.unlink(missing_ok=True)


def _partial(target: Path) -> Path:
    """A name of its own beside the target; of a long name the begin, so that this one is no longer than allowed."""
    return target.with_name(f".{target.name[:SHOWN_OF_NAME]}.{os.getpid()}-{threading.get_ident()}.partial")


def _write(target: Path, raw: bytes) -> None:
    if target.exists() and not target.is_file():
        target.write_bytes(raw)
        return
    partial = _partial(target)
    try:
        partial.write_bytes(raw)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
