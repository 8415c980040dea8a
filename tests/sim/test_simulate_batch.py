from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings

from pearl.core.cluster import Counts, Role
from pearl.core.workload import Routing
from pearl.errors import UsageError
from pearl.sim.batch import simulate_batch
from pearl.sim.kvcache import KvCache
from pearl.sim.trajectories import sample
from tests.sim.sim_samples import batches, profile, routings, tight_profiles, turn, workload

TWO = Counts(colocated=2)


def run(batch=None, engine=None, *, counts=TWO, seed=0, **changes):
    return simulate_batch(workload(**changes), engine or profile(), counts=counts, seed=seed, trajectories=batch)


def decode_s(engine, contexts):
    return sum(engine.decode.seconds(1, context) for context in contexts)


def test_one_trajectory_on_one_worker_is_the_hand_sum():
    engine = profile()
    result = run([(turn(1000, 5, 2.0), turn(300, 3))], engine, counts=Counts(colocated=1))
    # The first token comes with the prefill; the last token's KV is computed by the next turn's prefill.
    first = engine.prefill.seconds(1000) + decode_s(engine, range(1001, 1005))
    second = engine.prefill.seconds(301, 1004) + decode_s(engine, range(1306, 1308))
    assert result.makespan_s == pytest.approx(first + 2.0 + second)
    assert (result.tally.prompt_tokens, result.tally.hit_tokens) == (1000 + 1305, 1004)
    assert result.tally.output_tokens == 8


def test_one_trajectory_in_chunks_pays_p0_for_each():
    engine = profile(chunk_tokens=400)
    result = run([(turn(1000, 1),)], engine, counts=Counts(colocated=1))
    chunks = [(400, 0), (400, 400), (200, 800)]
    assert result.makespan_s == pytest.approx(sum(engine.prefill.seconds(*chunk) for chunk in chunks))


def test_hand_over_moves_only_what_the_decode_worker_lacks():
    engine = profile()
    result = run([(turn(1000, 5, 2.0), turn(300, 3))], engine, counts=Counts(prefill=1, decode=1))
    first = engine.prefill.seconds(1000) + engine.transfer.seconds(1000) + decode_s(engine, range(1001, 1005))
    # The prefill worker holds the first prompt alone; the decode worker also the KV of the four tokens it computed.
    second = engine.prefill.seconds(305, 1000) + engine.transfer.seconds(301) + decode_s(engine, range(1306, 1308))
    assert result.makespan_s == pytest.approx(first + 2.0 + second)
    assert result.tally.transferred_tokens == 1301
    assert result.tally.busy_s[Role.COLOCATED] == 0.0


def test_a_mixed_step_costs_its_factor():
    batch = [(turn(1000, 400),), (turn(1000, 1, 0.0), turn(500, 1, 0.0), turn(500, 1))]
    plain = run(batch, counts=Counts(colocated=1))
    dear = run(batch, profile(mixed_step_factor=1.5), counts=Counts(colocated=1))
    engine = profile()
    # The first prompts share one step; then each of the second trajectory's prompts shares one with a decode.
    first, second = engine.prefill.seconds(501, 1000), engine.prefill.seconds(501, 1501)
    mixed = first + second + engine.decode.seconds(1, 1001) + engine.decode.seconds(1, 1002)
    assert dear.makespan_s - plain.makespan_s == pytest.approx(0.5 * mixed)


def test_sessions_go_back_to_their_prefix_and_round_robin_leaves_it():
    pinned = run(routing=Routing.AFFINITY, counts=Counts(colocated=4))
    spread = run(routing=Routing.ROUND_ROBIN, counts=Counts(colocated=4))
    assert pinned.prefix_hit_rate > 0.6 > spread.prefix_hit_rate
    assert pinned.makespan_s < spread.makespan_s


def test_short_memory_loses_prefixes_and_preempts():
    ample = run(trajectories=24)
    short = run(trajectories=24, engine=profile(kv_colocated_tokens=20_000))
    assert ample.tally.preemptions == 0
    assert short.prefix_hit_rate < ample.prefix_hit_rate
    assert short.makespan_s > ample.makespan_s


@pytest.mark.parametrize("counts", [Counts(colocated=3), Counts(prefill=1, decode=2)])
def test_same_seed_same_result(counts):
    assert run(counts=counts, seed=5) == run(counts=counts, seed=5)
    assert run(counts=counts, seed=5).makespan_s != run(counts=counts, seed=6).makespan_s


@pytest.mark.parametrize("counts", [Counts(colocated=2), Counts(prefill=2, decode=1), Counts(prefill=1, decode=3)])
@given(batch=batches, engine=tight_profiles, routing=routings)
@settings(max_examples=25, deadline=None)
def test_every_token_is_produced_once_and_memory_never_overflows(counts, batch, engine, routing):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KvCache, "grow", checked_grow)
        result = run(batch, engine, counts=counts, routing=routing)
    assert result.tally.output_tokens == sum(t.output_tokens for trajectory in batch for t in trajectory)
    assert all(finish > 0 for finish in result.finish_s)
    assert result.makespan_s == max(result.finish_s)
    alone = [sum(t.environment_s for t in trajectory[:-1]) for trajectory in batch]
    assert all(finish > waits for finish, waits in zip(result.finish_s, alone, strict=True))
    busy_s = sum(result.tally.busy_s.values())
    assert busy_s == pytest.approx(result.tally.prefill_s + result.tally.decode_s)
    assert busy_s <= counts.serving * result.makespan_s + 1e-9


plain_grow = KvCache.grow


def checked_grow(cache, tokens):
    plain_grow(cache, tokens)
    assert cache.pinned_tokens >= 0
    assert cache.idle_tokens >= 0
    assert cache.pinned_tokens + cache.idle_tokens <= cache.capacity_tokens


def test_the_batch_ends_with_the_longest_trajectory():
    drawn = sample(workload(), Random(0))
    longer = [*drawn, (turn(100, 10, 500.0), turn(100, 10))]
    result = run(longer)
    assert result.makespan_s == result.finish_s[-1] > 500


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (Counts(colocated=1, prefill=1, decode=1), "mixes modes"),
        (Counts(prefill=2), "cannot serve"),
        (Counts(inactive=3), "cannot serve"),
    ],
)
def test_pools_that_cannot_serve_are_refused(counts, message):
    with pytest.raises(UsageError, match=message):
        run(counts=counts)


def test_a_context_beyond_memory_is_refused():
    with pytest.raises(UsageError, match="reaches 5100 tokens; the KV memory of test holds 5000"):
        run([(turn(5000, 100),)], profile(kv_colocated_tokens=5000))
