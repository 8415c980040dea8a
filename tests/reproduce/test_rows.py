"""How a simulated figure is judged against a published one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.reproduce.report import rows_text
from pearl.reproduce.rows import Row, Verdict, judge, summarise
from pearl.reproduce.simulate import Effort, Simulated
from pearl.reproduce.targets import Target


def target(unit: str, published: object, *, role: str = "held_out") -> Target:
    return Target.model_validate(
        {
            "id": "6.9-x",
            "section": "6.9",
            "model": "m",
            "setting": "s",
            "published": published,
            "role": role,
            "unit": unit,
            "simulate": {"kind": "cost", "cost": "start_s"},
        }
    )


def verdict(unit: str, published: object, *values: float, label: str | None = None) -> Verdict:
    return judge(target(unit, published), Simulated(values=values, label=label), {}).verdict


@pytest.mark.parametrize(
    ("unit", "published", "simulated", "expected"),
    [
        ("gain", 0.10, 0.10, Verdict.WITHIN),
        ("gain", 0.10, 0.26, Verdict.WITHIN),
        ("gain", 0.10, 0.27, Verdict.OUTSIDE),
        ("gain", 0.10, -0.01, Verdict.WRONG),
        ("gain", -0.206, -0.31, Verdict.WITHIN),
        ("gain", -0.206, 0.05, Verdict.WRONG),
        ("speedup", [2.17, 2.37], 1.2, Verdict.WITHIN),
        ("speedup", [2.17, 2.37], 0.8, Verdict.OUTSIDE),
        ("speedup", [2.17, 2.37], -0.1, Verdict.WRONG),
        ("share", 0.5, 0.44, Verdict.WITHIN),
        ("share", 0.5, 0.42, Verdict.OUTSIDE),
        ("seconds", [56, 67], 61.5, Verdict.WITHIN),
        ("batch", 64, 64.0, Verdict.WITHIN),
        ("batch", 64, 96.0, Verdict.OUTSIDE),
        ("regret", 0.004, 0.013, Verdict.WITHIN),
        ("regret", 0.004, 0.02, Verdict.OUTSIDE),
    ],
)
def test_verdict_of_a_number(unit: str, published: object, simulated: float, expected: Verdict) -> None:
    assert verdict(unit, published, simulated) is expected


def test_labels_are_met_only_by_equality() -> None:
    assert verdict("ratio", "5P3D", label="5P3D") is Verdict.WITHIN
    assert verdict("ratio", "5P3D", label="4P4D") is Verdict.OUTSIDE
    assert verdict("order", "a < b", label="a < b") is Verdict.WITHIN
    assert verdict("order", "a < b", label="a = b") is Verdict.TIED
    assert verdict("order", "a < b", label="b < a") is Verdict.WRONG


def test_every_setting_counts_and_the_worst_is_reported() -> None:
    row = judge(target("gain", [0.1, 0.2]), Simulated(values=(0.15, 0.5)), {"6.9-x": "because"})
    assert (row.verdict, row.simulated, row.note) == (Verdict.OUTSIDE, (0.15, 0.5), "because")
    assert row.relative_error == pytest.approx(1.5 / 1.2 - 1)
    assert judge(target("gain", [0.1, 0.2]), Simulated(values=(0.15, -0.02)), {}).verdict is Verdict.WRONG


@given(low=st.floats(0.01, 2), width=st.floats(0, 1), share=st.floats(0, 1))
def test_inside_the_range_there_is_no_error(low: float, width: float, share: float) -> None:
    row = judge(target("gain", [low, low + width]), Simulated(values=(min(low + share * width, low + width),)), {})
    assert row.relative_error == 0
    assert row.verdict is Verdict.WITHIN


def rows(*, met: int, missed: int, wrong: int = 0) -> tuple[Row, ...]:
    met_rows = [judge(target("gain", 0.1), Simulated(values=(0.1,)), {})] * met
    missed_rows = [judge(target("gain", 0.1), Simulated(values=(0.9,)), {})] * missed
    wrong_rows = [judge(target("order", "a < b"), Simulated(label="b < a"), {})] * wrong
    return (*met_rows, *missed_rows, *wrong_rows)


def test_the_check_asks_for_every_sign_and_four_fifths_of_the_held_out_speedups() -> None:
    assert summarise(rows(met=4, missed=1)).holds
    assert not summarise(rows(met=7, missed=2)).holds
    assert not summarise(rows(met=9, missed=0, wrong=1)).holds


def test_an_order_that_is_a_tie_is_not_said_to_be_right():
    tied = (*rows(met=9, missed=0), judge(target("order", "a < b"), Simulated(label="a = b"), {}))
    summary = summarise(tied)
    assert (summary.wrong, len(summary.tied), summary.holds) == ((), 1, False)
    assert "order not shown in" in rows_text(tied, Effort())
    assert "every sign and order right" in rows_text(rows(met=9, missed=0), Effort())
    calibrated = judge(target("gain", 0.1, role="calibrated"), Simulated(values=(0.9,)), {})
    assert summarise((calibrated,)).speedups == 0
