"""A fixed share of the cores for a group of processes, so that workers on one machine do not slow one another down.

Linux control groups, of version 1 or 2; needs the right to make one, which is root's on most machines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pearl.live.demo.processes import descendants

PERIOD_US = 20_000
"""Over which a share holds; an engine step takes about as long."""
ROOT = Path("/sys/fs/cgroup")
EMPTY_S = 10.0
"""A group that is to be removed has lost its processes by then."""


class NoSharesError(Exception):
    """No control group can be made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreShare:
    """A control group."""

    path: Path

    def hold(self, pids: Iterable[int]) -> None:
        """Take these processes and all below them in; their later children are in as well."""
        for pid in pids:
            for member in (pid, *(process.pid for process in descendants(pid))):
                with suppress(ProcessLookupError):
                    (self.path / "cgroup.procs").write_text(str(member))


@contextmanager
def core_shares(names: Iterable[str], cores: float) -> Iterator[dict[str, CoreShare]]:
    """A group of `cores` cores (0.5: half of one) for each name. Raises `NoSharesError`."""
    made: dict[str, CoreShare] = {}
    try:
        for name in names:
            path = _place() / f"pearl-{name}"
            path.mkdir(exist_ok=True)
            made[name] = CoreShare(path=path)
            _limit(path, round(cores * PERIOD_US))
    except OSError as e:
        _remove(made)
        raise NoSharesError(f"{e.filename}: {e.strerror}") from e
    try:
        yield made
    finally:
        _remove(made)


def _place() -> Path:
    """The folder of groups of this machine."""
    if (ROOT / "cpu").is_dir():
        return ROOT / "cpu"
    if not (ROOT / "cgroup.controllers").is_file():
        raise NoSharesError(f"no control groups below {ROOT}")
    (ROOT / "cgroup.subtree_control").write_text("+cpu")
    return ROOT


def _limit(path: Path, quota_us: int) -> None:
    if path.parent == ROOT:
        (path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        return
    (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (path / "cpu.cfs_quota_us").write_text(str(quota_us))


def _remove(made: Mapping[str, CoreShare]) -> None:
    until_s = time.monotonic() + EMPTY_S
    while (left := [share.path for share in made.values() if share.path.exists()]) and time.monotonic() < until_s:
        for path in left:
            with suppress(OSError):
                path.rmdir()
        time.sleep(0.05)
