"""A minute of everything at random, on the system that the other tests of this folder leave: benchmarks/live_stress.py.

Last in order: nodes that the tests before took away join again while it goes on.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from benchmarks.live_stress import Stress
from pearl.core.cluster import Zone
from tests.live.system.bench import START_S, Bench

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

SEED = 0
SECONDS = 60.0


def test_everything_at_random(bench: Bench) -> None:
    async def main() -> Stress:
        living = {worker["node"] for worker in (await bench.system.state())["workers"]}
        for node, zone in (("train-0", Zone.OVERLAP), ("spot-0", Zone.PREEMPTIBLE)):
            if node not in living:
                await asyncio.to_thread(bench.system.ray.add_node, node, zone)
        stress = Stress(system=bench.system, seconds=SECONDS, rng=Random(SEED), step=bench.step, version=bench.version)
        await stress.run()
        bench.step, bench.version = stress.step, stress.version
        return stress

    stress = bench.run(main(), START_S + SECONDS)
    found = stress.found
    assert (found.lost, found.duplicated, found.wrong, found.stale) == ([], [], [], [])
    assert found.completed > 0
    assert stress.done.total() > 0
    bench.run(bench.settled())
