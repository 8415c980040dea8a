"""The executor and the real router together: no request is lost, whatever plans, weights and trainers do.

Engines are stubs whose tokens depend on everything before them; workers are fakes, and time is real.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from pearl.core.event import Event, EventKind
from pearl.live.router.pool import Pool
from pearl.live.router.service import Router
from tests.live.control.fakes import FakeWorker, FakeWorld, state_of
from tests.live.control.rigs import (
    C,
    D,
    P,
    Rig,
    admit,
    asleep,
    borrow,
    change,
    deactivate,
    drain,
    new,
    reclaim,
    start,
    stop,
    weights,
    worker,
)
from tests.live.router import rig as routers
from tests.live.stub_engine import continuation

TOKENS = 30
NAMES = ("a", "b", "c", "o", "n1", "n2")


@dataclass
class OverStubs:
    """The router, with the addresses of stubs in place of Ray's."""

    router: Router

    def set_pool(self, proposed: Pool) -> Pool:
        stubs = {name: replace(endpoint, url=f"stub:{name}") for name, endpoint in proposed.endpoints.items()}
        return self.router.set_pool(replace(proposed, endpoints=stubs))

    async def empty(self, name: str, *, deadline_s: float) -> int:
        return await self.router.empty(name, deadline_s=deadline_s)


async def change_everything(rig: Rig) -> None:
    """Mode change, expansion, borrowing, weights, training, reclaim and death, with requests in flight."""
    execute, ledger = rig.carry_out, rig.world.ledger
    await execute(drain("a"), change("a", C, P), drain("b"), drain("c"), change("b", C, D), change("c", C, D), id="p1")
    await execute(start("n1", P), start("n2", D), admit("n1", "n2"), borrow("o", D), id="p2")
    await rig.executor.publish(weights(1))
    released = await rig.executor.release_overlap(deadline_s=5.0, force=True)
    assert released.released == ("o",)
    rig.world.raise_event(Event(kind=EventKind.TRAINING_FINISHED))
    await execute(borrow("o", D), deactivate("b"), id="p3")
    await rig.executor.publish(weights(2))
    rig.world.raise_event(reclaim("n1", within_s=0.5))
    await execute(drain("n1", 0.5), stop("n1"), id="p4")
    await rig.executor.lose(["n2"])
    await execute(drain("a"), drain("c"), change("a", P, C), change("c", D, C), id="p5")
    assert ledger.record.oldest == 1
    assert {found.id for found in ledger.record.pool().dispatchable} == {"a", "c", "o"}


def test_no_request_is_lost_while_everything_changes() -> None:
    async def main() -> None:
        async with routers.rig(*NAMES, slots_per_worker=16) as r:
            for engine in r.engines.values():
                engine.pace_s, engine.weight_version = 0.01, None
            state = state_of([worker("a"), worker("b"), worker("c"), asleep("o"), new("n1"), new("n2")], epoch=1)
            world = FakeWorld(state=state, dispatch=OverStubs(r.router))
            world.dispatch.set_pool(world.ledger.record.pool())
            for made in world.fleet.workers.values():
                slow(made)
            world.fleet.prepare = slow
            executor = Rig(world, max_staleness=1)

            async def client(number: int) -> None:
                while not done.is_set():
                    prompt = [number, len(answers)]
                    tokens = await r.tokens(prompt, max_tokens=TOKENS, session_id=f"s{number}")
                    answers.append(tokens == continuation(prompt, TOKENS))

            done, answers = asyncio.Event(), list[bool]()
            clients = [asyncio.create_task(client(number)) for number in range(12)]
            await asyncio.sleep(0.1)
            await change_everything(executor)
            done.set()
            await asyncio.gather(*clients)
            assert len(answers) >= len(clients)
            assert all(answers)
            await executor.executor.aclose()

    routers.run(main())


def slow(made: FakeWorker) -> None:
    made.delays |= {"start": 0.1, "wake": 0.05, "update_weights": 0.05, "sleep": 0.05, "stop": 0.05}
