"""The simulated engine takes single steps as its profile says, and as tables of steps do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.step_times import TABLES, decode_row, held_out_rows, prefill_row, profiles_of, rows_of
from pearl.scenario.engines import load_profile
from pearl.scenario.step_times import DecodePoint, PrefillPoint, read_step_times

ENGINE = load_profile("qwen3-30b-a3b-h200")
FILES = sorted(TABLES.glob("*.json"))


@given(batch=st.integers(1, 300), context=st.integers(2, 40_000))
def test_a_decode_step_takes_what_the_profile_says(batch, context):
    point = DecodePoint(batch=batch, context_tokens=batch * context, seconds=1.0, memory_gib=0.0)
    assert decode_row(point, ENGINE).simulated_s == pytest.approx(ENGINE.decode.seconds(batch, batch * context))


@given(new=st.integers(2, 40_000), cached=st.integers(0, 40_000))
def test_a_prefill_after_cached_tokens_takes_what_the_profile_says(new, cached):
    row = prefill_row(PrefillPoint(new_tokens=new, cached_tokens=cached, seconds=1.0), ENGINE)
    assert row.simulated_s == pytest.approx(ENGINE.prefill.seconds(new, cached))
    assert row.kind == ("prefix" if cached else "prefill")


def test_rows_that_no_memory_holds_are_told_apart():
    context = ENGINE.kv_decode_tokens // 2
    sizes = [DecodePoint(batch=batch, context_tokens=batch * context, seconds=1.0, memory_gib=0.0) for batch in (2, 3)]
    assert [decode_row(point, ENGINE).fits for point in sizes] == [True, False]


@pytest.mark.skipif(not FILES, reason="the tables of step times are not here")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_of_the_tables(file):
    compared = 0
    for engine, table in profiles_of(read_step_times(file), file.name):
        rows = rows_of(table, engine)
        for kinds, mean, largest in (
            (("prefill", "prefix"), engine.fit.prefill_mean, engine.fit.prefill_max),
            (("decode",), engine.fit.decode_mean, engine.fit.decode_max),
        ):
            sizes = [abs(row.error) for row in rows if row.kind in kinds]
            assert sum(sizes) / len(sizes) == pytest.approx(mean, rel=1e-3), "the engine adds an error of its own"
            assert max(sizes) == pytest.approx(largest, rel=1e-3)
        compared += len(rows)
    assert compared >= 3 * 60


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="the tables of step times are not here")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_profiles_hold_for_rows_that_they_have_not_seen(file):
    for engine, table in profiles_of(read_step_times(file), file.name):
        rows = held_out_rows(table, gpu=engine.gpu, folds=5)
        assert len(rows) == table.points
        for kind in ("prefill", "prefix", "decode"):
            sizes = [abs(row.error) for row in rows if row.kind == kind]
            assert sum(sizes) / len(sizes) < 0.06
