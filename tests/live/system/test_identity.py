"""The same 201 greedy requests in every mode, and across every change: the same tokens."""

from __future__ import annotations

import pytest

from tests.live.system.bench import COLOCATED, SPOT_DECODES, SPOT_PREFILLS, Bench

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

LEAST_MOVED = 2000
"""Prompt tokens: 201 requests have some 25,000, of which sessions find two thirds cached where they decode."""


def test_colocated(bench: Bench) -> None:
    async def main() -> None:
        await bench.publish()
        outcome = await bench.rollout()
        bench.check(outcome)
        assert outcome.completed == 201
        assert {len(v) for turn in outcome.turns for v in [set(turn.answer.weight_versions)]} == {1}
        await bench.settled()

    bench.run(main())


@pytest.mark.parametrize(
    ("policy", "roles", "pullers"),
    [
        pytest.param(SPOT_PREFILLS, ("decode", "prefill", "decode"), ("node-0/0", "train-0/0"), id="spot-prefills"),
        pytest.param(SPOT_DECODES, ("prefill", "decode", "prefill"), ("spot-0/0",), id="spot-decodes"),
    ],
)
def test_disaggregated(bench: Bench, policy: str, roles: tuple[str, ...], pullers: tuple[str, ...]) -> None:
    async def main() -> None:
        await bench.policy(policy)
        await bench.roles(dict(zip(("node-0/0", "spot-0/0", "train-0/0"), roles, strict=True)))
        await bench.publish()
        before = await bench.transferred()
        outcome = await bench.rollout()
        bench.check(outcome)
        assert outcome.completed == 201
        after = await bench.transferred()
        moved = {name: after[name] - before[name] for name in after}
        assert {name for name, tokens in moved.items() if tokens} == set(pullers)
        assert sum(moved.values()) >= LEAST_MOVED
        await bench.settled()

    bench.run(main())


def test_a_mode_change_in_mid_flight(bench: Bench) -> None:
    async def main() -> None:
        await bench.three_colocated()
        await bench.publish()
        async with bench.rolling() as rolling:
            await bench.policy(SPOT_PREFILLS)
            await bench.roles({"node-0/0": "decode", "spot-0/0": "prefill", "train-0/0": "decode"})
            await rolling.more(30)
            await bench.policy(COLOCATED)
            await bench.roles(dict.fromkeys(("node-0/0", "spot-0/0", "train-0/0"), "colocated"))
        assert rolling.outcome.completed == 201
        await bench.settled()

    bench.run(main())


def test_a_role_change_in_mid_flight(bench: Bench) -> None:
    async def main() -> None:
        await bench.policy(SPOT_PREFILLS)
        await bench.roles({"node-0/0": "decode", "spot-0/0": "prefill", "train-0/0": "decode"})
        await bench.publish()
        async with bench.rolling() as rolling:
            await bench.policy(SPOT_DECODES)
            await bench.roles({"node-0/0": "prefill", "spot-0/0": "decode", "train-0/0": "prefill"})
        assert rolling.outcome.completed == 201
        await bench.settled()

    bench.run(main())


def test_aborts_and_resumes(bench: Bench) -> None:
    """An update of weights, here to the same ones, aborts all legs of a worker; requests go on from their tokens."""

    async def main() -> None:
        await bench.three_colocated()
        await bench.publish()
        interrupted = (await bench.page()).total("pearl_router_interruptions_total")
        async with bench.rolling(first=12) as rolling:
            for _ in range(3):
                published = await bench.publish()
                assert len(published.updated) == 3
                await rolling.more(12)
        assert (await bench.page()).total("pearl_router_interruptions_total") > interrupted
        mixed = [turn for turn in rolling.outcome.turns if len(set(turn.answer.weight_versions)) > 1]
        assert mixed, "no request went on under newer weights"
        for turn in rolling.outcome.turns:
            assert list(turn.answer.weight_versions) == sorted(turn.answer.weight_versions)
        await bench.settled()

    bench.run(main())
