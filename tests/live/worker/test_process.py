"""Processes that end with their parent, and pages that go back to the system."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pearl.live.engine.extension import drop_pages

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl and madvise are of Linux")

PARENT = """
import multiprocessing, os, time
from pearl.live.engine.process import die_with_parent

def child(pipe):
    die_with_parent()
    pipe.send(os.getpid())
    time.sleep(60)

here, there = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(there,))
process.start()
print(here.recv(), flush=True)
time.sleep(60)
"""


def gone(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_a_child_does_not_outlive_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not gone(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 5
    while not gone(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def resident(address: int, size: int) -> int:
    """Pages of the range in memory."""
    vector = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) == 0
    return sum(byte & 1 for byte in vector)


def test_whole_pages_within_the_range_go_and_their_neighbours_stay() -> None:
    pages = 16
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    memory.write(b"x" * len(memory))
    view = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(view)
    private = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    private.write(b"x" * len(private))
    start = ctypes.addressof(ctypes.c_char.from_buffer(private))
    assert resident(start, len(private)) == pages
    assert drop_pages(start + 1, len(private) - 2) == (pages - 2) * mmap.PAGESIZE
    assert resident(start, len(private)) == 2
    assert (private[0], private[mmap.PAGESIZE], private[-1]) == (ord("x"), 0, ord("x"))
    assert drop_pages(address + 1, mmap.PAGESIZE) == 0
    assert memory[:4] == b"xxxx"


def test_a_range_that_cannot_be_dropped_is_an_error() -> None:
    with pytest.raises(OSError, match="madvise failed"):
        drop_pages(os.sysconf("SC_PAGE_SIZE"), 1 << 20)
