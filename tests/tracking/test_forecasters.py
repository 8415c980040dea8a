from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.event import Event, EventKind
from pearl.core.telemetry import ArrivalRecord, Life, Stage, TurnRecord
from pearl.errors import InputError
from pearl.policy.vocabulary import SOURCES
from pearl.tracking.forecasters import FORECASTERS, MovingAverage, Observed, forecast, get_forecaster
from pearl.tracking.history import History, Source
from pearl.tracking.life_cycle import HORIZON_S, LifeCycle
from tests.tracking.worlds import arrival, turn

TOKEN_S = 0.01
PREFILL_S = 0.1
WAIT_S = 2.0
TURNS = 6


@dataclass(frozen=True)
class Round:
    """One turn of the test's own simulation."""

    asked_s: float
    decode_s: float
    end_s: float
    prompt: int
    output: int


def rounds(rng: Random, start_s: float) -> list[Round]:
    """A trajectory that no engine ever keeps waiting."""
    at_s, found = start_s, []
    for k in range(rng.randint(2, 2 * TURNS - 2)):
        at_s += rng.expovariate(1 / WAIT_S) if k else 0.0
        prompt, output = (2000 if k == 0 else rng.randint(100, 1500)), rng.randint(50, 550)
        begin_s = at_s + PREFILL_S
        found.append(Round(at_s, begin_s, begin_s + output * TOKEN_S, prompt, output))
        at_s = found[-1].end_s
    return found


def past(name: str, life: list[Round], until_s: float) -> list[ArrivalRecord | TurnRecord]:
    records: list[ArrivalRecord | TurnRecord] = []
    for k, r in enumerate(life):
        if r.asked_s <= until_s:
            records.append(arrival(name, k, new_prompt_tokens=r.prompt, at_s=r.asked_s))
        if r.end_s <= until_s:
            records.append(
                turn(
                    name,
                    k,
                    new_prompt_tokens=r.prompt,
                    output_tokens=r.output,
                    prefill_s=PREFILL_S,
                    decode_s=r.output * TOKEN_S,
                    environment_s=r.asked_s - life[k - 1].end_s if k else None,
                    at_s=r.end_s,
                    last=k == len(life) - 1,
                )
            )
    return records


def stands(name: str, life: list[Round], now_s: float) -> Life | None:
    """Where the trajectory stands; None if it has not begun or has ended."""
    if not life[0].asked_s <= now_s < life[-1].end_s:
        return None
    k = max(i for i, r in enumerate(life) if r.asked_s <= now_s)
    r = life[k]
    if now_s < r.decode_s:
        return Life(trajectory=name, turn=k, stage=Stage.PREFILL, context_tokens=0, stage_s=now_s - r.asked_s)
    if now_s < r.end_s:
        done = int((now_s - r.decode_s) / TOKEN_S)
        return Life(
            trajectory=name,
            turn=k,
            stage=Stage.DECODE,
            context_tokens=0,
            output_tokens=done,
            stage_s=now_s - r.decode_s,
        )
    return Life(trajectory=name, turn=k, stage=Stage.ENVIRONMENT, context_tokens=0, stage_s=now_s - r.end_s)


def world(lives: dict[str, list[Round]], now_s: float) -> History:
    records = [record for name, life in lives.items() for record in past(name, life, now_s)]
    standing = (stands(name, life, now_s) for name, life in lives.items())
    return History(
        arrivals=tuple(r for r in records if isinstance(r, ArrivalRecord)),
        turns=tuple(r for r in records if isinstance(r, TurnRecord)),
        lives=tuple(life for life in standing if life),
        lives_at_s=now_s,
    )


def to_come(lives: dict[str, list[Round]], now_s: float, horizon_s: float) -> tuple[float, float]:
    """Prompt and output tokens per second that the horizon brings."""
    every = [r for life in lives.values() for r in life]
    prompts = sum(r.prompt for r in every if now_s < r.asked_s <= now_s + horizon_s)
    overlaps = (min(r.end_s, now_s + horizon_s) - max(r.decode_s, now_s) for r in every)
    return prompts / horizon_s, sum(max(0.0, s) for s in overlaps) / TOKEN_S / horizon_s


def value(name: str, source: Source, history: History, now_s: float) -> float:
    return fmean(get_forecaster(name).samples(source, history, now_s).values)


def test_every_source_is_one_of_the_policy_language() -> None:
    assert {source.value for source in Source} == SOURCES.keys()


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_history_without_anything_forecasts_nothing(name: str) -> None:
    found = forecast(get_forecaster(name), History(), 0.0)
    assert found == {}


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'life_cycles'.*did you mean 'life_cycle'"):
        get_forecaster("life_cycles")


def test_demand_is_what_was_offered_in_the_last_interval_or_on_average() -> None:
    arrivals = tuple(arrival(f"t{i}", 1, new_prompt_tokens=100 * i, at_s=10.0 * i + 5) for i in range(1, 7))
    history = History(arrivals=arrivals, turns=(turn("a", 1, output_tokens=30, at_s=0.0),), since_s=5.0)
    assert value("last_value", Source.PREFILL_DEMAND, history, 65.0) == 600 / 10
    assert value("moving_average", Source.PREFILL_DEMAND, history, 65.0) == pytest.approx(2100 / 6 / 10)
    assert value("last_value", Source.DECODE_DEMAND, history, 65.0) == 30 / 10
    assert get_forecaster("observed").samples(Source.PREFILL_DEMAND, history, 65.0).values == (10, 20, 30, 40, 50, 60)


@pytest.mark.parametrize("name", ["last_value", "moving_average", "observed"])
def test_silence_grows_old_and_is_not_no_load(name: str) -> None:
    history = History(arrivals=tuple(arrival("t", i, new_prompt_tokens=500, at_s=float(i)) for i in range(60)))
    fresh = get_forecaster(name).samples(Source.PREFILL_DEMAND, history, 60.0)
    stale = get_forecaster(name).samples(Source.PREFILL_DEMAND, history, 660.0)
    assert fresh.values == stale.values
    assert fmean(stale.values) == pytest.approx(500, rel=0.1)
    assert (fresh.age_s, stale.age_s) == (1.0, 601.0)


@pytest.mark.parametrize("name", FORECASTERS)
@pytest.mark.parametrize("source", [Source.PREFILL_DEMAND, Source.DECODE_DEMAND])
def test_halved_capacity_at_constant_offered_load_leaves_demand_as_it_is(name: str, source: Source) -> None:
    """Half of the turns are not completed, and the rest waited as long as they were served; reading that as demand
    would halve it."""
    rng = Random(2)
    lives = {f"t{i}": rounds(rng, rng.uniform(0, 60)) for i in range(800)}
    history = world(lives, 60.0)
    served = [r for r in history.turns if int(r.trajectory[1:]) % 2]
    halved = replace(history, turns=tuple(replace(r, queue_s=r.decode_s + 1) for r in served))
    assert value(name, source, halved, 60.0) == pytest.approx(value(name, source, history, 60.0), rel=0.08)


def test_a_clock_with_a_far_origin_costs_nothing() -> None:
    start_s = 1.8e9
    history = History(arrivals=tuple(arrival("t", i, new_prompt_tokens=500, at_s=start_s + i) for i in range(60)))
    assert value("last_value", Source.PREFILL_DEMAND, history, start_s + 60) == pytest.approx(500, rel=0.1)
    assert value("observed", Source.SPOT_RECLAIMS, history, start_s + 60) == 0


def trained(kind: EventKind, at_s: float) -> Event:
    return Event(kind=kind, at_s=at_s)


def test_overlap_windows_run_from_the_end_of_training_to_its_next_start() -> None:
    events = (
        trained(EventKind.TRAINING_STARTED, 5.0),
        trained(EventKind.TRAINING_FINISHED, 50.0),
        trained(EventKind.TRAINING_STARTED, 210.0),
        trained(EventKind.TRAINING_FINISHED, 260.0),
        trained(EventKind.TRAINING_STARTED, 400.0),
        trained(EventKind.TRAINING_FINISHED, 450.0),
    )
    samples = get_forecaster("life_cycle").samples(Source.OVERLAP_WINDOW, History(events=events[::-1]), 460.0)
    assert samples.values == (160.0, 140.0)
    assert samples.age_s == 60.0


def test_a_reclaimed_worker_is_lost_once_and_again_when_it_came_back() -> None:
    def lost(kind: EventKind, at_s: float, *workers: str) -> Event:
        return Event(kind=kind, workers=workers, at_s=at_s)

    back = Worker(id="a", node="n", zone=Zone.PREEMPTIBLE, role=Role.INACTIVE, status=Status.INACTIVE)
    events = (
        lost(EventKind.RECLAIM_NOTICE, 10.0, "a", "b"),
        lost(EventKind.GPUS_LOST, 40.0, "a", "b", "c"),
        Event(kind=EventKind.GPUS_ADDED, added=(back,), at_s=70.0),
        lost(EventKind.GPUS_LOST, 80.0, "a"),
    )
    history, observed = History(events=events), Observed(count_over_s=30.0)
    assert observed.samples(Source.SPOT_RECLAIMS, history, 120.0).values == (2, 1, 1, 0)
    assert MovingAverage(count_over_s=30.0).samples(Source.SPOT_RECLAIMS, history, 120.0).values == (1,)
    assert observed.samples(Source.SPOT_ARRIVALS, history, 120.0).values == (0, 0, 1, 0)
    assert observed.samples(Source.SPOT_RECLAIMS, history, 29.0).values == (), "no whole interval yet"


def test_life_cycle_of_one_trajectory_by_hand() -> None:
    """In the environment for 1 s of 2: asks for 800 tokens after 1 s, prefilled in 0.1 s, then 300 tokens in 3 s."""
    turns = tuple(turn(f"t{i}", k, last=k == 9) for i in range(10) for k in range(10))
    life = Life(trajectory="x", turn=2, stage=Stage.ENVIRONMENT, context_tokens=0, stage_s=1.0)
    history = History(turns=turns, lives=(life,), lives_at_s=100.0)

    def within(source: Source, horizon_s: float) -> float:
        return fmean(LifeCycle(horizon_s=horizon_s).samples(source, history, 100.0).values) * horizon_s

    assert within(Source.PREFILL_DEMAND, 0.9) == 0
    assert within(Source.PREFILL_DEMAND, 1.1) == pytest.approx(800)
    assert within(Source.DECODE_DEMAND, 1.1) == pytest.approx(0, abs=1e-6)
    assert within(Source.DECODE_DEMAND, 2.1) == pytest.approx(100)
    assert within(Source.DECODE_DEMAND, 6.0) == pytest.approx(300)
    assert within(Source.PREFILL_DEMAND, 6.2) == pytest.approx(1600)
    left = LifeCycle(horizon_s=200.0).samples(Source.TRAJECTORIES_LEFT, replace(history, waiting=3), 100.0)
    assert fmean(left.values) == pytest.approx(3.0)


@pytest.mark.parametrize("source", sorted(LifeCycle.sources))
def test_a_garbled_turn_index_is_one_index_more(source: Source) -> None:
    """Neither memory nor time grows with it, and the hazards of the others stay."""
    lives = tuple(
        Life(trajectory=f"x{k}", turn=k, stage=Stage.ENVIRONMENT, context_tokens=0, stage_s=1.0) for k in range(12)
    )
    turns = tuple(turn(f"t{i}", k, last=k == 9) for i in range(10) for k in range(10))

    def foreseen(index: int) -> float:
        more = tuple(turn(f"late{i}", index, last=True) for i in range(10))
        return value("life_cycle", source, History(turns=(*turns, *more), lives=lives, lives_at_s=0.0), 0.0)

    assert foreseen(10**15) == foreseen(2**20) == foreseen(64)


def test_a_prompt_that_waits_is_asked_for_now() -> None:
    turns = tuple(turn(f"t{i}", 0, last=True) for i in range(20))
    lives = tuple(
        Life(trajectory=f"x{i}", turn=0, stage=Stage.QUEUED, context_tokens=0, prompt_left_tokens=5000, stage_s=60.0)
        for i in range(4)
    )
    history = History(turns=turns, lives=lives, lives_at_s=0.0)
    assert value("life_cycle", Source.PREFILL_DEMAND, history, 0.0) * HORIZON_S == pytest.approx(20_000)
    assert value("life_cycle", Source.DECODE_DEMAND, history, 0.0) * HORIZON_S == pytest.approx(4 * 300)


@pytest.mark.parametrize("seed", range(2))
def test_life_cycle_foresees_what_averages_cannot(seed: int) -> None:
    """A batch that starts at once, after one that taught the forecaster: bursts, then a long tail."""
    rng = Random(seed)
    first = {f"a{i}": rounds(rng, 0.0) for i in range(300)}
    second = {f"b{i}": rounds(rng, 100.0) for i in range(100)}
    both = first | second
    errors: dict[tuple[str, Source], list[float]] = {}
    for now_s in (101.0, 105.0, 115.0, 125.0, 135.0):
        history = world(both, now_s)
        truth = dict(zip((Source.PREFILL_DEMAND, Source.DECODE_DEMAND), to_come(both, now_s, HORIZON_S), strict=True))
        for name in ("life_cycle", "last_value", "moving_average"):
            for source, true in truth.items():
                errors.setdefault((name, source), []).append(abs(value(name, source, history, now_s) - true))
        left = value("life_cycle", Source.TRAJECTORIES_LEFT, history, now_s)
        assert left == pytest.approx(sum(life[-1].end_s > now_s + HORIZON_S for life in both.values()), abs=15)
    mean = {key: fmean(each) for key, each in errors.items()}
    for source in (Source.PREFILL_DEMAND, Source.DECODE_DEMAND):
        others = min(mean["last_value", source], mean["moving_average", source])
        assert mean["life_cycle", source] < 0.5 * others


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.floats(1.0, 80.0), st.randoms(use_true_random=False))
def test_samples_are_finite_ordered_and_independent_of_the_order_of_records(
    seed: int, now_s: float, random: Random
) -> None:
    rng = Random(seed)
    history = world({f"t{i}": rounds(rng, rng.uniform(0, 20)) for i in range(20)}, now_s)
    shuffled = replace(
        history,
        arrivals=tuple(random.sample(history.arrivals, len(history.arrivals))),
        turns=tuple(random.sample(history.turns, len(history.turns))),
        lives=tuple(random.sample(history.lives, len(history.lives))),
    )
    for name in FORECASTERS:
        found = forecast(get_forecaster(name), history, now_s)
        for source, samples in forecast(get_forecaster(name), shuffled, now_s).items():
            assert samples.values == pytest.approx(found[source].values)
            assert min(samples.values) >= 0
            assert max(samples.values) < 1e7
    assert found.keys() >= ({"trajectories_left"} if history.lives_at_s is not None else set())


def test_the_spread_of_the_samples_covers_what_comes() -> None:
    """The truth falls between the lowest and the highest of 16 quantiles in 15 of 16 batches, if the past is known."""
    taught = world({f"a{i}": rounds(Random(i), 0.0) for i in range(400)}, 100.0)
    inside = 0
    for seed in range(24):
        rng = Random(1000 + seed)
        batch = {f"b{i}": rounds(rng, 100.0) for i in range(100)}
        history = replace(taught, lives=world(batch, 110.0).lives, lives_at_s=110.0)
        samples = LifeCycle().samples(Source.PREFILL_DEMAND, history, 110.0).values
        inside += samples[0] <= to_come(batch, 110.0, HORIZON_S)[0] <= samples[-1]
    assert inside >= 19
