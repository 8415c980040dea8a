"""KV memory of one engine: pinned by running sequences, the rest filled with idle prefixes, evicted LRU.

Counted in tokens; the rounding to blocks of 16 tokens that vLLM does is left out. As in vLLM, the prefix that was used
least recently loses its tail first, block by block, so that part of it may still be hit.
"""

from __future__ import annotations

from collections import OrderedDict

from pearl.core.cluster import Role
from pearl.core.engine import EngineProfile

WATERMARK = 0.01
"""Share of memory kept free on admission (vLLM's default): without it a preempted sequence comes back at once, and is
preempted again one step later."""


class KvCache:
    """Invariant: 0 ≤ pinned and pinned + idle ≤ capacity, all in tokens."""

    __slots__ = ("_idle", "_watermark_tokens", "capacity_tokens", "free_tokens", "idle_tokens")

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.free_tokens = capacity_tokens
        """Tokens that running sequences may still grow by, at the idle prefixes' cost: those that are not pinned."""
        self.idle_tokens = 0
        self._watermark_tokens = capacity_tokens * WATERMARK
        self._idle: OrderedDict[int, int] = OrderedDict()

    @property
    def pinned_tokens(self) -> int:
        """Tokens of running sequences."""
        return self.capacity_tokens - self.free_tokens

    def admits(self, tokens: int) -> bool:
        """Whether a sequence of `tokens` may start; an empty engine takes whatever fits at all."""
        left = self.free_tokens - tokens
        return left >= self._watermark_tokens or (left >= 0 and self.free_tokens == self.capacity_tokens)

    def held(self, key: int) -> int:
        """Tokens of the idle prefix of `key`."""
        return self._idle.get(key, 0)

    def claim(self, key: int, tokens: int, *, most: int) -> int:
        """Pin `tokens` for `key`; returns how many of them its idle prefix already held, at most `most`."""
        idle = self._idle.pop(key, 0)
        self.idle_tokens -= idle
        self.grow(tokens)
        return idle if idle < most else most

    def grow(self, tokens: int) -> None:
        """Pin `tokens` more, evicting idle prefixes from the least recently used one's tail."""
        free_tokens = self.free_tokens = self.free_tokens - tokens
        if self.idle_tokens > free_tokens:
            self._evict(self.idle_tokens - free_tokens)

    def _evict(self, excess: int) -> None:
        while excess > 0:
            key, idle = next(iter(self._idle.items()))
            taken = min(idle, excess)
            if taken == idle:
                del self._idle[key]
            else:
                self._idle[key] = idle - taken
            self.idle_tokens -= taken
            excess -= taken

    def park(self, key: int, tokens: int) -> None:
        """Unpin the `tokens` of `key` and keep them as the most recently used idle prefix."""
        self.free_tokens += tokens
        self.idle_tokens += tokens - self._idle.pop(key, 0)
        self._idle[key] = tokens

    def drop(self, tokens: int) -> None:
        """Unpin `tokens` and forget them."""
        self.free_tokens += tokens

    def forget_idle(self) -> None:
        """Drop every idle prefix, as after a weight update."""
        self._idle.clear()
        self.idle_tokens = 0


def kv_capacity(profile: EngineProfile, role: Role) -> int:
    """KV tokens of an engine in `role`: prefill needs activations, so only a decode engine has the larger memory."""
    return profile.kv_decode_tokens if role is Role.DECODE else profile.kv_colocated_tokens
