"""Topological order of names by what each reads."""

from __future__ import annotations

from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter


def in_order(reads: Mapping[str, Set[str]]) -> tuple[list[str], list[str]]:
    """Names such that each follows all that it reads, and a cycle (empty if there is none) among those left out."""
    left = {name: set(others) for name, others in reads.items()}
    found: list[str] = []
    while True:
        try:
            order = list(TopologicalSorter(left).static_order())
        except CycleError as e:
            cycle = list(reversed(e.args[1][1:]))
            found = found or cycle
            left = {name: others - set(cycle) for name, others in left.items() if name not in cycle}
        else:
            return order, found
