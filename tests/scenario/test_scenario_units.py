from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.scenario.units import UNITS, Dimension, parse_any_quantity, parse_quantity

PAIRS = [(dimension, unit) for dimension, units in UNITS.items() for unit in units]


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("2s", Dimension.TIME, 2.0),
        (" 1.5 min ", Dimension.TIME, 90.0),
        ("437.952 ns", Dimension.TIME, 4.37952e-7),
        ("144 KiB", Dimension.BYTES, 147456.0),
        ("400 Gbit/s", Dimension.BANDWIDTH, 50e9),
        ("50 GB/s", Dimension.BANDWIDTH, 50e9),
        ("3.5 usd/h", Dimension.PRICE, 3.5),
        ("0.7 kW", Dimension.POWER, 700.0),
        ("5%", Dimension.SHARE, 0.05),
        (0.25, Dimension.SHARE, 0.25),
        ("1e3s", Dimension.TIME, 1000.0),
    ],
)
def test_quantities_are_held_in_base_units(text: object, dimension: Dimension, value: float):
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "value", [2, 2.5, "2", "", "s", "2 parsecs", "2 GB", "1.2.3s", "nan s", "infs", True, None, "1e999s"]
)
def test_what_is_no_time_is_refused(value: object):
    with pytest.raises(ValueError, match="expected a time such as 2s"):
        parse_quantity(value, Dimension.TIME)


def test_the_nearest_unit_is_named():
    with pytest.raises(ValueError, match=r"unknown unit 'usd/hr' \(did you mean 'usd/h'\?\)"):
        parse_quantity("2 usd/hr", Dimension.PRICE)


@given(st.sampled_from(PAIRS), st.floats(0, 1e9, allow_nan=False))
def test_every_unit_scales_its_number(pair: tuple[Dimension, str], number: float):
    dimension, unit = pair
    expected = number * UNITS[dimension][unit]
    assert math.isclose(parse_quantity(f"{number!r} {unit}", dimension), expected, rel_tol=1e-12)
    assert math.isclose(parse_any_quantity(f"{number!r}{unit}"), expected, rel_tol=1e-12)


@given(st.text(), st.sampled_from(Dimension))
def test_any_text_is_a_finite_number_or_refused(text: str, dimension: Dimension):
    try:
        number = parse_quantity(text, dimension)
    except ValueError:
        return
    assert math.isfinite(number)
