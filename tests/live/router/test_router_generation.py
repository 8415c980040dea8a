"""The state machine of a request: exactly the tokens of an uninterrupted run, whatever happens between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.live.protocol import Chunk, FinishReason, Sampling
from pearl.live.router.generation import Generation
from tests.live.stub_engine import continuation

PROMPT = (3, 1, 4)


def generation(max_tokens: int = 5, eos: tuple[int, ...] = (), **sampling: object) -> Generation:
    return Generation(
        prompt=PROMPT,
        sampling=Sampling(max_tokens=max_tokens, **sampling),
        eos_token_ids=frozenset(eos),  # type: ignore[arg-type]  # test keywords
    )


leg_scripts = st.lists(
    st.tuples(
        st.lists(st.integers(0, 4), max_size=4),
        st.sampled_from(["marker", "cut", "abort", "overrun", "late"]),
    ),
    max_size=8,
)


@given(max_tokens=st.integers(1, 20), script=leg_scripts)
def test_any_interruptions_keep_every_token_once_and_the_budget(
    max_tokens: int, script: list[tuple[list[int], str]]
) -> None:
    """Legs end early, end with an abort, overrun, or go on after they were given up."""
    state = generation(max_tokens)
    late: list[tuple[int, Chunk]] = []
    for sizes, end in script:
        if state.finish:
            break
        leg = state.begin_leg()
        assert state.leg_sampling().max_tokens == max_tokens - len(state.token_ids) > 0
        wanted = continuation(state.leg_prompt(), 40)
        for size in sizes:
            done, wanted = wanted[:size], wanted[size:]
            for old, chunk in late:
                assert state.accept(old, chunk, weight_version=9) is None
            state.accept(leg, Chunk(token_ids=tuple(done)), weight_version=1)
        if end == "overrun":
            state.accept(leg, Chunk(token_ids=tuple(wanted)), weight_version=1)
        elif end == "abort":
            state.accept(leg, Chunk(finish=FinishReason.ABORT), weight_version=1)
        elif end == "marker" and state.remaining == 0:
            state.accept(leg, Chunk(finish=FinishReason.LENGTH), weight_version=1)
        elif end == "late":
            late.append((leg, Chunk(token_ids=(0, 0), finish=FinishReason.STOP)))
        complete = state.settle()
        assert complete == (len(state.token_ids) == max_tokens)
    assert state.token_ids == continuation(PROMPT, len(state.token_ids))
    assert len(state.token_ids) <= max_tokens
    assert len(state.weight_versions) == len(state.token_ids)
    assert set(state.weight_versions) <= {1}


def test_a_marker_ends_it_before_the_budget_does() -> None:
    state = generation()
    leg = state.begin_leg()
    state.accept(leg, Chunk(token_ids=(7,), finish=FinishReason.STOP), weight_version=1)
    assert state.settle()
    assert (state.token_ids, state.finish) == ([7], FinishReason.STOP)
    assert state.accept(leg, Chunk(token_ids=(8,)), weight_version=1) is None


@pytest.mark.parametrize("sampling", [{"stop_token_ids": (7,)}, {}])
def test_a_cut_just_after_an_end_token_is_complete(sampling: dict[str, object]) -> None:
    state = generation(eos=() if sampling else (7,), **sampling)
    state.accept(state.begin_leg(), Chunk(token_ids=(7,)), weight_version=1)
    assert state.settle()
    assert state.finish is FinishReason.STOP


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 2}])
def test_an_end_token_that_does_not_end_is_resumed(sampling: dict[str, object]) -> None:
    state = generation(eos=(7,), **sampling)
    state.accept(state.begin_leg(), Chunk(token_ids=(7,)), weight_version=1)
    assert not state.settle()


def test_a_resumed_leg_has_what_is_left_of_every_budget() -> None:
    state = generation(max_tokens=10, min_tokens=4, seed=100)
    state.accept(state.begin_leg(), Chunk(token_ids=(5, 6, 7), weight_version=3), weight_version=1)
    state.settle()
    sampling = state.leg_sampling()
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (7, 1, 103)
    assert state.leg_prompt() == [3, 1, 4, 5, 6, 7]
    assert state.weight_versions == [3, 3, 3]


def test_segments_restore_the_same_state() -> None:
    first, segments = generation(max_tokens=6), []
    for tokens in ((1, 2), (3,), (4, 5)):
        segments.append(first.accept(first.begin_leg(), Chunk(token_ids=tokens), weight_version=len(tokens)))
    second = generation(max_tokens=6)
    second.restore(s for s in segments if s)
    assert second.token_ids == first.token_ids == [1, 2, 3, 4, 5]
    assert second.weight_versions == first.weight_versions == [2, 2, 1, 2, 2]
    with pytest.raises(ValueError, match="starts at token 0"):
        second.restore(s for s in segments if s)
