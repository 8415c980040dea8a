"""The choice of a worker: by role, home and load, and never one that must not be asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pearl.core.cluster import Role, Status
from pearl.live.router.choose import Ask, Choice, Load, NoChoice, Obstacle, Path, Stage, choose
from pearl.live.router.pool import Pool
from tests.live.router.rig import colocated, disaggregated, pool, worker

PROMPT, DECODE = Ask(), Ask(stage=Stage.DECODE)


def pick(in_pool: Pool, ask: Ask = PROMPT, loads: dict[str, Load] | None = None, slots: int = 4) -> Choice | NoChoice:
    return choose(in_pool, ask, loads or {}, slots=slots, now_s=100.0)


def test_colocated_takes_a_request_whole_and_the_least_loaded_first() -> None:
    assert pick(colocated("a", "b"), loads={"a": Load(running=2)}) == Choice(worker="b", path=Path.WHOLE)
    assert pick(colocated("a", "b"), loads={"a": Load(dispatched=1)}) == Choice(worker="b", path=Path.WHOLE)


def test_disaggregated_goes_through_prefill_to_decode() -> None:
    two = disaggregated(["p"], ["d"])
    assert pick(two) == Choice(worker="p", path=Path.PREFILL)
    assert pick(two, DECODE) == Choice(worker="d", path=Path.DECODE)


def test_a_session_returns_home_unless_home_is_full() -> None:
    at_b = Ask(homes=("b",))
    assert pick(colocated("a", "b"), at_b, {"b": Load(running=3)}) == Choice(worker="b", path=Path.WHOLE)
    assert pick(colocated("a", "b"), at_b, {"b": Load(running=4)}) == Choice(worker="a", path=Path.WHOLE)


def test_the_latest_home_of_the_fitting_role_counts() -> None:
    two = disaggregated(["p", "q"], ["d", "e"])
    assert pick(two, Ask(homes=("e", "q"))) == Choice(worker="q", path=Path.PREFILL)
    assert pick(two, Ask(stage=Stage.DECODE, homes=("q", "e", "d"))) == Choice(worker="e", path=Path.DECODE)


def test_a_pool_of_one_role_alone_serves_and_says_that_it_is_degraded() -> None:
    for role in (Role.PREFILL, Role.DECODE):
        assert pick(pool(worker("a", role))) == Choice(worker="a", path=Path.WHOLE, degraded=True)
    assert pick(colocated("a"), DECODE) == Choice(worker="a", path=Path.DECODE, degraded=True)


def test_a_full_pool_is_busy_and_an_empty_one_has_no_worker() -> None:
    assert pick(colocated("a"), loads={"a": Load(running=4)}) == NoChoice(obstacle=Obstacle.BUSY)
    assert pick(Pool()) == NoChoice(obstacle=Obstacle.NO_WORKER)


def test_prefill_waits_for_its_slot_instead_of_using_decode_workers() -> None:
    assert pick(disaggregated(["p"], ["d"]), loads={"p": Load(running=4)}) == NoChoice(obstacle=Obstacle.BUSY)


def test_a_lost_worker_is_asked_again_later() -> None:
    shunned = {"a": Load(shunned_until_s=101.0)}
    assert pick(colocated("a"), loads=shunned) == NoChoice(obstacle=Obstacle.NO_WORKER, retry_at_s=101.0)
    assert isinstance(choose(colocated("a"), PROMPT, shunned, slots=4, now_s=101.0), Choice)


roles = st.sampled_from(Role)
workers = st.lists(
    st.tuples(roles, st.sampled_from(Status), st.booleans(), st.integers(0, 2), st.integers(0, 3), st.booleans()),
    max_size=6,
)


@given(
    facts=workers,
    stage=st.sampled_from(Stage),
    homes=st.lists(st.sampled_from(["w0", "w1", "w2", "gone"]), unique=True),
    oldest=st.integers(0, 2),
)
def test_whoever_is_chosen_may_be_asked(
    facts: list[tuple[Role, Status, bool, int, int, bool]], stage: Stage, homes: list[str], oldest: int
) -> None:
    """Active, serving, staying, with fresh weights, a free slot and no recent loss; and someone is, where anyone is."""
    members = [worker(f"w{i}", f[0], f[1], must_leave=f[2]) for i, f in enumerate(facts)]
    current = pool(*members, versions={f"w{i}": f[3] for i, f in enumerate(facts)}, oldest=oldest)
    loads = {f"w{i}": Load(running=f[4], shunned_until_s=200.0 if f[5] else 0.0) for i, f in enumerate(facts)}
    choice = choose(current, Ask(stage=stage, homes=tuple(homes)), loads, slots=3, now_s=100.0)
    good = {
        f"w{i}": role
        for i, (role, status, leaving, version, _, lost) in enumerate(facts)
        if status is Status.ACTIVE and role is not Role.INACTIVE and not leaving and version >= oldest and not lost
    }
    if isinstance(choice, Choice):
        assert choice.worker in good
        assert loads[choice.worker].running < 3
        fitting = {Path.WHOLE: Role.COLOCATED, Path.PREFILL: Role.PREFILL, Path.DECODE: Role.DECODE}[choice.path]
        assert choice.degraded == (good[choice.worker] is not fitting)
        assert (choice.path is Path.DECODE) == (stage is Stage.DECODE)
    elif choice.obstacle is Obstacle.NO_WORKER:
        assert not good
    else:
        assert good
