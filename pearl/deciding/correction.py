"""Makespan tables multiplied by what measurement says of each mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pearl.core.cluster import Mode
from pearl.core.problem import UNREACHABLE_MS, MakespanTables, PairRung


def corrected(tables: MakespanTables, factors: Mapping[Mode, float]) -> MakespanTables:
    """The tables with each mode's makespans times its factor; what cannot run stays UNREACHABLE_MS."""
    colocated = factors.get(Mode.COLOCATED, 1.0)
    disaggregated = factors.get(Mode.DISAGGREGATED, 1.0)
    if colocated == disaggregated == 1.0:
        return tables
    return replace(
        tables,
        colocated_ms=_times(tables.colocated_ms, colocated),
        prefill_ms=_times(tables.prefill_ms, disaggregated),
        decode_ms=_times(tables.decode_ms, disaggregated),
        pairs=tuple(
            PairRung(prefill=r.prefill, decode=r.decode, makespan_ms=_scaled(r.makespan_ms, disaggregated))
            for r in tables.pairs
        ),
    )


def _times(column: tuple[int, ...], factor: float) -> tuple[int, ...]:
    return tuple(_scaled(ms, factor) for ms in column)


def _scaled(ms: int, factor: float) -> int:
    return ms if ms >= UNREACHABLE_MS else min(round(ms * factor), UNREACHABLE_MS - 1)
