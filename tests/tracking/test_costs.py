from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import Counts
from pearl.core.engine import TransitionCosts
from pearl.core.telemetry import BatchRecord, TransitionKind, TransitionRecord
from pearl.tracking.costs import CalibrationTracker, CostTracker

PRIOR = TransitionCosts()


def moved(kind: TransitionKind, seconds: float, at_s: float, *, borrowing: bool) -> TransitionRecord:
    return TransitionRecord(kind=kind, seconds=seconds, at_s=at_s, borrowing=borrowing)


def ended(predicted_s: float, measured_s: float, at_s: float = 0.0) -> BatchRecord:
    return BatchRecord(predicted_s=predicted_s, measured_s=measured_s, at_s=at_s, counts=Counts(colocated=4))


@pytest.mark.parametrize("kind", list(TransitionKind))
def test_every_kind_has_its_cost(kind: TransitionKind) -> None:
    tracker = CostTracker().update([moved(kind, 1000.0, float(i), borrowing=False) for i in range(40)])
    costs = tracker.costs(borrowing=False)
    assert getattr(costs, f"{kind.value}_s") == pytest.approx(1000.0, rel=1e-3)
    others = [f for f in TransitionCosts.__slots__ if f != f"{kind.value}_s"]
    assert [getattr(costs, f) for f in others] == [getattr(PRIOR, f) for f in others]


def test_steps_with_and_without_borrowing_are_kept_apart() -> None:
    records = [
        moved(TransitionKind.ADMIT, 30.0 if b else 10.0, float(i), borrowing=b) for i in range(30) for b in (0, 1)
    ]
    tracker = CostTracker().update(records)
    assert tracker.costs(borrowing=True).admit_s == pytest.approx(30.0, rel=1e-3)
    assert tracker.costs(borrowing=False).admit_s == pytest.approx(10.0, rel=1e-3)
    assert tracker.costs(borrowing=True).borrow_s == PRIOR.borrow_s


def test_the_prior_counts_as_one_measurement() -> None:
    tracker = CostTracker().update([moved(TransitionKind.RETURN, PRIOR.return_s + 2, 0.0, borrowing=True)])
    assert tracker.costs(borrowing=True).return_s == pytest.approx(PRIOR.return_s + 1)


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_averages_stay_within_what_was_measured_whatever_the_order(seconds: list[float], random: Random) -> None:
    records = [moved(TransitionKind.BORROW, s, float(i), borrowing=True) for i, s in enumerate(seconds)]
    shuffled = list(records)
    random.shuffle(shuffled)
    found = CostTracker().update(records).costs(borrowing=True)
    assert CostTracker().update(shuffled).costs(borrowing=True) == found
    low, high = min(*seconds, PRIOR.borrow_s), max(*seconds, PRIOR.borrow_s)
    assert low * (1 - 1e-12) <= found.borrow_s <= high * (1 + 1e-12)


def test_no_batch_is_no_error() -> None:
    assert CalibrationTracker().update([]).error() is None
    assert CalibrationTracker().bias() is None


def test_the_error_is_relative_to_measurement_and_its_sign_is_kept_apart() -> None:
    tracker = CalibrationTracker().update([ended(90.0, 100.0, 0.0), ended(110.0, 100.0, 1.0)])
    assert tracker.error() == pytest.approx(0.1)
    assert tracker.bias() == pytest.approx(0.0)


def test_the_error_follows_a_predictor_that_gets_better() -> None:
    bad = CalibrationTracker().update([ended(884.0, 192.0, float(i)) for i in range(5)])
    assert bad.error() == pytest.approx(884 / 192 - 1)
    mended = bad.update([ended(195.0, 192.0, 10.0 + i) for i in range(20)])
    error = mended.error()
    assert error is not None
    assert error < 0.03
