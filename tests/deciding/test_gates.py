from hypothesis import given
from hypothesis import strategies as st

from pearl.core.facts import BoundHysteresis, Cooldown, HysteresisSemantics
from pearl.core.problem import Change
from pearl.core.situation import ChangeAge
from pearl.deciding.gates import borrow_gate_ms, hurdle, in_cooldown, threshold_ms


def total_with_borrowing_ms(makespan_ms: int, base_ms: int, window_ms: int, cost_ms: int) -> float:
    """Time to finish the batch: the borrowed pace inside the window, the base pace after it, and the cost."""
    if makespan_ms <= window_ms:
        return makespan_ms + cost_ms
    return window_ms + cost_ms + (1 - window_ms / makespan_ms) * base_ms


@given(
    base_ms=st.integers(1_000, 500_000),
    window_ms=st.integers(0, 500_000),
    cost_ms=st.integers(0, 60_000),
    makespan_ms=st.integers(1, 600_000),
)
def test_the_gate_admits_exactly_the_makespans_that_gain(base_ms, window_ms, cost_ms, makespan_ms):
    gate_ms = borrow_gate_ms(base_ms=base_ms, window_ms=window_ms, cost_ms=cost_ms)
    total_ms = total_with_borrowing_ms(makespan_ms, base_ms, window_ms, cost_ms)
    slack_ms = 1 + base_ms / max(window_ms, 1)  # the gate is rounded down to a whole millisecond
    if makespan_ms <= gate_ms:
        assert total_ms <= base_ms + slack_ms
    elif makespan_ms > gate_ms + 1:
        assert total_ms >= base_ms - slack_ms


def test_a_closed_window_admits_nothing():
    assert borrow_gate_ms(base_ms=100_000, window_ms=0, cost_ms=10_000) == 0


def test_a_wide_window_asks_for_the_cost_and_no_more():
    assert borrow_gate_ms(base_ms=100_000, window_ms=10**9, cost_ms=10_000) == 90_000


RULES = BoundHysteresis(
    semantics=HysteresisSemantics.GATE,
    mode_s=8.0,
    ratio_s=2.0,
    resize_s=None,
    cooldown_mode=Cooldown(steps=2),
    cooldown_ratio=Cooldown(seconds=30.0),
)


def test_a_gate_carries_thresholds_in_milliseconds_and_what_is_cooling():
    changes = {Change.MODE: ChangeAge(steps=1, seconds=500.0), Change.RATIO: ChangeAge(steps=0, seconds=31.0)}
    made = hurdle(RULES, stay_ms=100_000, changes=changes, forced=False)
    assert made is not None
    assert (made.mode_ms, made.ratio_ms, made.resize_ms, made.stay_ms) == (8_000, 2_000, None, 100_000)
    assert made.gate
    assert not made.charge
    assert made.forbidden == {Change.MODE}


def test_a_forced_change_pays_the_thresholds_instead_of_being_vetoed():
    cooling = {Change.MODE: ChangeAge(steps=0, seconds=0.0)}
    made = hurdle(RULES, stay_ms=100_000, changes=cooling, forced=True)
    assert made is not None
    assert made.charge
    assert not made.gate
    assert not made.forbidden


def test_a_cooldown_is_over_when_both_of_its_limits_are():
    both = Cooldown(steps=2, seconds=60.0)
    assert in_cooldown(both, ChangeAge(steps=3, seconds=59.0))
    assert in_cooldown(both, ChangeAge(steps=1, seconds=61.0))
    assert not in_cooldown(both, ChangeAge(steps=2, seconds=60.0))
    assert not in_cooldown(both, None)


def test_thresholds_of_several_kinds_add_up():
    assert threshold_ms(RULES, frozenset({Change.MODE, Change.RESIZE})) == 8_000
    assert threshold_ms(RULES, frozenset({Change.MODE, Change.RATIO})) == 10_000
    assert threshold_ms(RULES, frozenset()) == 0
