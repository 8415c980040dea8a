"""The outgoing KV link of a prefill engine."""

from __future__ import annotations

from pearl.core.engine import KvTransfer


class KvLink:
    """Sends one cache at a time, in the order asked for; latencies overlap."""

    __slots__ = ("_free_s", "_transfer")

    def __init__(self, transfer: KvTransfer) -> None:
        self._transfer = transfer
        self._free_s = 0.0

    def send(self, tokens: int, now_s: float) -> float:
        """When `tokens` asked for now have arrived."""
        latency_s = self._transfer.latency_s
        self._free_s = max(now_s, self._free_s) + self._transfer.seconds(tokens) - latency_s
        return self._free_s + latency_s
