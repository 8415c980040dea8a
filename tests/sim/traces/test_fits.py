from statistics import fmean, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.distribution import Distribution, Family
from pearl.sim.traces.fits import Shape, distance, empirical, fit, lognormal

samples = st.lists(st.floats(0, 1e5), min_size=1, max_size=700)


@settings(deadline=None)
@given(values=samples)
def test_empirical_keeps_the_mean_and_most_of_the_variance(values):
    kept = empirical(values, points=50)
    assert len(kept.values) <= max(50, 0) or len(values) <= 50
    assert list(kept.values) == pytest.approx(sorted(kept.values))
    assert kept.expected == pytest.approx(fmean(values), rel=1e-9, abs=1e-6)
    assert kept.variance <= pvariance(values) * (1 + 1e-9) + 1e-6
    assert min(values) - 1e-6 <= kept.values[0]
    assert kept.values[-1] <= max(values) + 1e-6


def test_empirical_loses_little_where_the_sample_is_smooth():
    values = [i**2 for i in range(10_000)]
    assert empirical(values).variance == pytest.approx(pvariance(values), rel=1e-3)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_lognormal_recovers_its_own_parameters(cv):
    truth = Distribution(family=Family.LOGNORMAL, mean=400.0, cv=cv)
    values = [truth.quantile((i + 0.5) / 2000) for i in range(2000)]
    fitted = lognormal(values)
    assert fitted.cv == pytest.approx(cv, rel=0.08)
    assert fitted.expected == pytest.approx(fmean(values), rel=1e-3)
    assert distance(fitted, values) < 0.02


@settings(deadline=None, max_examples=20)
@given(values=st.lists(st.integers(1, 50_000), min_size=2, max_size=60).filter(lambda v: min(v) < max(v)))
def test_lognormal_stays_in_range(values):
    fitted = lognormal(values)
    assert (fitted.low, fitted.high) == (min(values), max(values))
    assert min(values) <= fitted.expected <= max(values)
    assert 0 <= distance(fitted, values) <= 1


def test_distance_of_a_wrong_fit_is_large():
    values = [float(i) for i in range(1, 101)]
    assert distance(Distribution(family=Family.EMPIRICAL, values=tuple(values)), values) <= 0.011
    assert distance(Distribution.constant(1000.0), values) > 0.99


@pytest.mark.parametrize("shape", Shape)
def test_equal_values_are_constant(shape):
    assert fit([7, 7, 7], shape=shape) == Distribution.constant(7.0)
