"""Processes below one, and their shared memory, as Linux shows them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.05
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process; its start tells it from a later one of the same id."""

    pid: int
    started: int
    """In the kernel's ticks since it booted."""

    @property
    def alive(self) -> bool:
        """Whether it runs still; a zombie does not."""
        found = _stat(self.pid)
        return found is not None and found.started == self.started and found.state != "Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    parent: int
    state: str
    started: int


def descendants(pid: int) -> tuple[Process, ...]:
    """All processes below `pid` that run now."""
    stats = {
        int(entry.name): stat
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (stat := _stat(int(entry.name)))
    }
    below: dict[int, _Stat] = {}
    parents = {pid}
    while parents:
        children = {child: stat for child, stat in stats.items() if stat.parent in parents and child not in below}
        below |= children
        parents = set(children)
    return tuple(Process(pid=child, started=stat.started) for child, stat in sorted(below.items()))


def shared_memory(processes: Iterable[Process]) -> frozenset[Path]:
    """Files in shared memory that these processes have mapped."""
    return frozenset(path for process in processes for path in _mapped(process.pid))


def left_after(processes: Iterable[Process], *, limit_s: float) -> tuple[Process, ...]:
    """Those that still run after `limit_s` seconds; returns as soon as none does."""
    until_s = time.monotonic() + limit_s
    while left := tuple(process for process in processes if process.alive):
        if time.monotonic() > until_s:
            break
        time.sleep(POLL_S)
    return left


def name_of(process: Process) -> str:
    """Its command, shortened."""
    try:
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    return line.replace(b"\0", b" ").decode(errors="replace").strip()[:120]


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(state=fields[0], parent=int(fields[1]), started=int(fields[19]))


def _mapped(pid: int) -> set[Path]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    columns = (line.split(maxsplit=5) for line in lines)
    return {
        Path(column[5]) for column in columns if len(column) == 6 and column[5].startswith(f"{SHARED_MEMORY}{os.sep}")
    }
