"""The rollout client against the router over stub engines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from aiohttp import web

from pearl.errors import UsageError
from pearl.live.protocol import FinishReason
from pearl.live.rollout import EngineAnswerer, Environment, LostError, Outcome, Rollout, Turn
from pearl.live.rollout_http import HttpAnswerer
from tests.live.router.rig import colocated, disaggregated, pool, rig, run, worker
from tests.live.stub_engine import Misfortune, StubEngine, continuation

ENVIRONMENT = Environment(seed=3, turns=(2, 3), think_s=0.0)


async def reference(indices: range) -> Outcome:
    answerer = EngineAnswerer(engine=StubEngine())
    return await Rollout(answerer=answerer, environment=ENVIRONMENT, at_once=4).run(indices)


async def rollout(
    url: str, indices: range, *, at_once: int = 8, call_s: float = 5.0, deadline_s: float = 10.0
) -> Outcome:
    async with HttpAnswerer(url=url, model="stub", call_s=call_s, deadline_s=deadline_s) as answerer:
        return await Rollout(answerer=answerer, environment=ENVIRONMENT, at_once=at_once).run(indices)


def test_asks_follow_from_seed_session_and_all_tokens_before() -> None:
    ask = ENVIRONMENT.ask(5, 1, (1, 2, 3))
    assert ask == Environment(seed=3, turns=(2, 3), think_s=0.0).ask(5, 1, (1, 2, 3))
    assert ask.prompt[:3] == (1, 2, 3)
    assert 12 <= len(ask.prompt) - 3 <= 32
    others = [ENVIRONMENT.ask(5, 1, (1, 2, 4)), ENVIRONMENT.ask(6, 1, (1, 2, 3))]
    assert all(other.prompt[3:] != ask.prompt[3:] for other in others)


@pytest.mark.parametrize("fields", [{"turns": (0, 1)}, {"output_tokens": (3, 2)}, {"think_s": -1.0}, {"vocabulary": 1}])
def test_an_environment_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="environment"):
        Environment(**fields)  # type: ignore[arg-type]  # wrong on purpose


def test_turns_build_on_all_that_came_before() -> None:
    outcome = asyncio.run(reference(range(3)))
    for session in outcome.sessions:
        assert session.turns == len(session.done) in (2, 3)
        for before, after in itertools.pairwise(session.done):
            assert after.ask.prompt[: len(before.ask.prompt)] == before.ask.prompt
            assert after.ask.prompt[len(before.ask.prompt) :][: len(before.answer.token_ids)] == before.answer.token_ids
        last = session.done[-1]
        assert list(last.answer.token_ids) == continuation(last.ask.prompt, last.ask.max_tokens)


def test_colocated_and_disaggregated_pools_give_the_reference() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            first = await rollout(r.url, range(8))
            r.set_pool(disaggregated(["a"], ["b"], epoch=2))
            second = await rollout(r.url, range(8, 16))
            assert r.engines["b"].pulled > 0
        right = await reference(range(16))
        for outcome in (first, second):
            assert outcome.differing(right) == () == outcome.losses
            assert outcome.completed == outcome.accepted == len(outcome.turns)
            assert outcome.wrong == ()

    run(main())


def test_engines_that_fail_and_a_pool_that_changes_leave_no_trace_in_the_tokens() -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a", "b")) as r:
            for engine in r.engines.values():
                engine.pace_s = 0.001
                engine.script.extend([None, (5, Misfortune.LOST), (2, Misfortune.CUT), None, (9, Misfortune.ABORTED)])
            rolling = asyncio.create_task(rollout(r.url, range(12)))
            await asyncio.sleep(0.05)
            r.set_pool(disaggregated(["b"], ["a"], epoch=2))
            await asyncio.sleep(0.05)
            r.set_pool(pool(worker("a"), epoch=3))
            outcome = await rolling
        assert outcome.differing(await reference(range(12))) == ()
        assert outcome.losses == ()

    run(main())


def test_a_full_router_is_asked_again_after_the_pause_that_it_names() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), slots_per_worker=1, max_queued=1) as r:
            r.engines["a"].pace_s = 0.002
            outcome = await rollout(r.url, range(4), at_once=4)
        assert outcome.refused > 0
        assert outcome.differing(await reference(range(4))) == ()

    run(main())


def test_a_try_that_ends_late_is_repeated_under_its_id() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].pace_s = 0.02
            outcome = await rollout(r.url, range(2), call_s=0.2)
            assert r.router.metrics.value("pearl_router_requests_accepted_total") == outcome.completed
            assert r.router.metrics.value("pearl_router_requests_attached_total") > 0
        assert max(turn.answer.tries for turn in outcome.turns) > 1
        assert outcome.differing(await reference(range(2))) == ()
        assert outcome.wrong == ()

    run(main())


def test_a_request_without_an_answer_in_time_is_lost_and_ends_its_session_alone() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].script.extend([None, (3, Misfortune.HANGS)])
            outcome = await rollout(r.url, range(2), at_once=1, call_s=0.5, deadline_s=0.6)
        assert [lost.accepted for lost in outcome.losses] == [True]
        assert "no answer within" in str(outcome.losses[0])
        assert outcome.accepted == outcome.completed + 1
        assert [len(session.done) < session.turns for session in outcome.sessions] == [True, False]

    run(main())


def test_what_the_router_refuses_is_not_repeated() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), max_tokens=20) as r:
            outcome = await rollout(r.url, range(1))
        assert [lost.accepted for lost in outcome.losses] == [False]
        assert "400" in str(outcome.losses[0])
        assert outcome.accepted == 0

    run(main())


def test_an_accepted_request_that_fails_is_lost_with_the_reason() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].script.append((0, Misfortune.REFUSED))
            outcome = await rollout(r.url, range(1))
        assert "the stream ended with" in str(outcome.losses[0])
        assert outcome.losses[0].accepted

    run(main())


def test_two_tries_that_disagree_are_seen() -> None:
    """A stub of a router that gives other tokens when it is asked again."""
    given: Iterator[list[int]] = iter([[1, 2], [1, 3, 4]])

    async def completions(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        tokens = next(given)
        choice = {"token_ids": tokens, "weight_versions": [0] * len(tokens)}
        await response.write(f"data: {web.json_response({'choices': [choice]}).text}\n\n".encode())
        if len(tokens) == 3:
            await response.write(b"data: [DONE]\n\n")
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", completions)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with HttpAnswerer(url=f"http://127.0.0.1:{runner.addresses[0][1]}", model="stub") as answerer:
                answer = await answerer.answer(ENVIRONMENT.ask(0, 0, ()))
        finally:
            await runner.cleanup()
        assert answer.contradicted
        assert answer.token_ids == (1, 3, 4)
        assert answer.tries == 2

    run(main())


def test_sessions_are_taken_from_an_iterator_until_it_ends() -> None:
    going = True
    seen: list[Turn] = []

    def indices() -> Iterator[int]:
        for index in itertools.count():
            if not going:
                return
            yield index

    def note(turn: Turn) -> None:
        nonlocal going
        seen.append(turn)
        going = len(seen) < 10

    async def main() -> None:
        answerer = EngineAnswerer(engine=StubEngine())
        outcome = await Rollout(answerer=answerer, environment=ENVIRONMENT, at_once=3, on_turn=note).run(indices())
        assert len(outcome.turns) == len(seen)
        assert all(len(session.done) == session.turns for session in outcome.sessions)

    run(main())


def test_an_engine_that_ends_a_leg_early_gives_no_reference() -> None:
    async def main() -> None:
        engine = StubEngine()
        engine.script.append((3, Misfortune.ABORTED))
        with pytest.raises(LostError, match=FinishReason.ABORT):
            await EngineAnswerer(engine=engine).answer(ENVIRONMENT.ask(0, 0, ()))

    run(main())
