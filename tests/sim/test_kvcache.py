from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pearl.sim.kvcache import KvCache


def test_the_oldest_prefix_loses_its_tail_first():
    cache = KvCache(100)
    for key in (1, 2):
        cache.claim(key, 40, most=0)
        cache.park(key, 40)
    cache.claim(3, 35, most=0)
    assert (cache.held(1), cache.held(2)) == (25, 40)
    cache.grow(30)
    assert (cache.held(1), cache.held(2)) == (0, 35)


def test_a_prefix_is_hit_once_and_at_most_as_far_as_the_prompt_repeats_it():
    cache = KvCache(100)
    cache.claim(1, 40, most=0)
    cache.park(1, 40)
    assert cache.claim(1, 60, most=39) == 39
    assert (cache.pinned_tokens, cache.idle_tokens) == (60, 0)


def test_admission_keeps_the_watermark_unless_the_engine_is_empty():
    cache = KvCache(1000)
    assert cache.admits(1000)
    assert not cache.admits(1001)
    cache.grow(500)
    assert cache.admits(490)
    assert not cache.admits(491)


class CacheMachine(RuleBasedStateMachine):
    """Any order of claims, growth, parks and drops keeps memory within bounds."""

    def __init__(self):
        super().__init__()
        self.cache = KvCache(1000)
        self.pinned: dict[int, int] = {}

    @rule(key=st.integers(0, 9), tokens=st.integers(1, 400))
    def claim(self, key, tokens):
        if key not in self.pinned and self.cache.admits(tokens):
            held = self.cache.held(key)
            assert self.cache.claim(key, tokens, most=tokens) == min(held, tokens)
            self.pinned[key] = tokens

    @precondition(lambda self: self.pinned)
    @rule(data=st.data(), tokens=st.integers(1, 200))
    def grow(self, data, tokens):
        key = data.draw(st.sampled_from(sorted(self.pinned)))
        if tokens <= self.cache.free_tokens:
            self.cache.grow(tokens)
            self.pinned[key] += tokens

    @precondition(lambda self: self.pinned)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data, keep):
        key = data.draw(st.sampled_from(sorted(self.pinned)))
        tokens = self.pinned.pop(key)
        if keep:
            self.cache.park(key, tokens)
            assert self.cache.held(key) == tokens
        else:
            self.cache.drop(tokens)

    @rule()
    def forget(self):
        self.cache.forget_idle()

    @invariant()
    def memory_adds_up(self):
        assert self.cache.pinned_tokens == sum(self.pinned.values())
        assert self.cache.idle_tokens == sum(self.cache.held(key) for key in range(10))
        assert self.cache.pinned_tokens + self.cache.idle_tokens <= 1000


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
