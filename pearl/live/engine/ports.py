"""A port of one's own for the KV transfer's side channel, on a machine that several workers share.

A claim is a socket in the kernel's abstract namespace, which is per machine as ports are and ends with its process,
however that dies: two workers that start at once do not choose the same port before either listens, and a dead worker's
port can be chosen again.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pearl.live.protocol import EngineUnavailableError


@dataclass(slots=True, kw_only=True)
class PortClaim:
    """Consecutive ports that no other worker of this machine takes until `close`, or the end of this process."""

    ports: range
    _locks: ExitStack

    def close(self) -> None:
        """Give them up. Idempotent."""
        self._locks.close()


def claim_ports(host: str, choices: Sequence[int], size: int = 1) -> PortClaim:
    """The first `size` consecutive ports of `choices` that nobody claims or listens at on `host`.

    Raises `EngineUnavailableError` where there are none.
    """
    for first in choices[: len(choices) - size + 1 : size]:
        ports = range(first, first + size)
        with ExitStack() as locks:
            if all(_claim(port, locks) and _is_free(host, port) for port in ports):
                return PortClaim(ports=ports, _locks=locks.pop_all())
    raise EngineUnavailableError(
        f"no {size} free ports on {host} for the KV transfer: {choices[0]} to {choices[-1]} are taken; widen ports.kv"
    )


def _claim(port: int, locks: ExitStack) -> bool:
    if sys.platform != "linux":
        return True
    lock = locks.enter_context(socket.socket(socket.AF_UNIX))
    try:
        lock.bind(f"\0pearl-kv-{port}")
    except OSError:
        return False
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
