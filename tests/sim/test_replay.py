from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pearl.cli.main import run
from pearl.core.cluster import Role, Status, Worker, Zone
from pearl.core.decision import Outcome
from pearl.core.event import Event, EventKind
from pearl.core.situation import Situation
from pearl.core.telemetry import Telemetry
from pearl.makespan.registry import get_predictor
from pearl.policy.model import Policy
from pearl.sim.experiment import Experiment, run_experiment
from pearl.sim.pipeline import TrainingCost
from pearl.sim.replay import Recording, Taken, replay
from pearl.solving.registry import resolve
from pearl.tracking.jsonl import telemetry_lines
from tests.deciding.worlds import WORKLOAD, policy, situation, workers
from tests.tracking.worlds import arrival

WORLD = situation(workers(Zone.RESERVED, 4, Role.COLOCATED))


def _recorded(world: Situation, rules: Policy, batches: int = 3) -> tuple[Telemetry, ...]:
    """Telemetry of a simulated job, since a real one takes minutes."""
    from pearl.sim.observer import Observer

    heard: list[Telemetry] = []
    record = Observer.record

    def overheard(observer: Observer, telemetry: Telemetry) -> None:
        heard.append(telemetry)
        record(observer, telemetry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Observer, "reads_turns", True)
        patch.setattr(Observer, "record", overheard)
        run_experiment(
            Experiment(
                world=world,
                policy=rules,
                predictor=get_predictor("network"),
                solver=resolve("enumerate"),
                training=TrainingCost(step_s=5.0),
                horizon_s=10_000.0,
                batches=batches,
            )
        )
    return tuple(heard)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def telemetry(rules: Policy) -> tuple[Telemetry, ...]:
    return _recorded(WORLD, rules)


def _replayed(recording: Recording, world: Situation, rules: Policy) -> tuple[Taken, ...]:
    return replay(recording, world, rules, predictor=get_predictor("network"), solver=resolve("enumerate"))


def test_each_step_is_decided_on_at_its_begin_and_its_end(telemetry: tuple[Telemetry, ...], rules: Policy) -> None:
    taken = _replayed(Recording(telemetry=telemetry), replace(WORLD, workload=None), rules)
    assert [(one.event, one.step) for one in taken] == [
        (kind, step) for step in range(3) for kind in (EventKind.BATCH_STARTED, EventKind.PROFILE_UPDATED)
    ]
    assert [one.at_s for one in taken] == sorted(one.at_s for one in taken)
    assert taken[0].decision.reasons[0].code == "no_data"
    for one in taken[1:]:
        assert one.decision.chosen is not None
    ends = [one for one in taken if one.event is EventKind.PROFILE_UPDATED]
    for one in ends:
        assert one.measured_s is not None
        assert one.decision.stay is not None
        assert one.decision.stay.makespan_s == pytest.approx(one.measured_s, rel=0.3)


def test_it_is_the_same_every_time_and_in_any_order(telemetry: tuple[Telemetry, ...], rules: Policy) -> None:
    first = _replayed(Recording(telemetry=telemetry), WORLD, rules)
    again = _replayed(Recording(telemetry=telemetry[::-1]), WORLD, rules)
    assert [(t.at_s, t.decision.counts, t.plan) for t in first] == [(t.at_s, t.decision.counts, t.plan) for t in again]


def test_the_pool_follows_events_and_the_policys_own_plans(telemetry: tuple[Telemetry, ...], rules: Policy) -> None:
    joined = tuple(
        Worker(id=f"s/{i}", node="s", zone=Zone.PREEMPTIBLE, role=Role.INACTIVE, status=Status.INACTIVE, started=False)
        for i in range(4)
    )
    at_s = max(record.at_s for record in telemetry) + 1
    names = tuple(worker.id for worker in joined)
    events = (
        Event(kind=EventKind.GPUS_ADDED, workers=names, added=joined, at_s=at_s),
        Event(kind=EventKind.PROFILE_UPDATED, at_s=at_s + 1),
        Event(kind=EventKind.RECLAIM_NOTICE, workers=names, within_s=30.0, at_s=at_s + 2),
        Event(kind=EventKind.GPUS_LOST, workers=names, at_s=at_s + 32),
    )
    taken = _replayed(Recording(telemetry=telemetry, events=events), WORLD, rules)[-3:]
    assert [one.event for one in taken] == [EventKind.GPUS_ADDED, EventKind.RECLAIM_NOTICE, EventKind.GPUS_LOST]
    added, noticed, lost = taken
    assert added.decision.outcome is Outcome.SWITCH
    assert added.decision.counts.serving == 8
    assert noticed.decision.counts.serving == 4
    assert {type(step).__name__ for step in noticed.plan.steps} >= {"Drain", "Stop"}
    assert lost.plan.empty


def test_the_end_of_training_takes_no_reclaim_notice_back(rules: Policy) -> None:
    lent = workers(Zone.OVERLAP, 2, Role.INACTIVE)
    world = situation(WORLD.state.workers, lent)
    events = (
        Event(kind=EventKind.RECLAIM_NOTICE, workers=(lent[0].id,), within_s=30.0, at_s=1.0),
        Event(kind=EventKind.TRAINING_STARTED, within_s=10.0, at_s=2.0),
        Event(kind=EventKind.TRAINING_FINISHED, at_s=3.0),
    )
    last = _replayed(Recording(telemetry=(), events=events), world, rules)[-1]
    leaving = {group: number for group, _, number in last.decision.targets if group.endswith("/leaving")}
    assert leaving == {"overlap/inactive/leaving": 1}


def test_nothing_recorded_is_nothing_decided(rules: Policy) -> None:
    assert _replayed(Recording(telemetry=()), WORLD, rules) == ()


def test_the_command(telemetry: tuple[Telemetry, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("".join(telemetry_lines(record for record in telemetry if getattr(record, "step", 0) == 0)))
    assert run(["replay", str(file), "--scenario", "qwen3-8b-swe", "--solver", "enumerate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pearl on run.jsonl: 2 decisions, ")
    assert len(lines) == 2 + 2
    assert run(["replay", str(file), "--scenario", "qwen3-8b-swe", "--solver", "enumerate", "--format", "yaml"]) == 0
    report = yaml.safe_load(capsys.readouterr().out)
    assert (report["kind"], report["policy"], len(report["decisions"])) == ("ReplayReport", "pearl", 2)
    assert report["decisions"][1]["measured_s"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["t.jsonl"], "give --scenario or --cluster, one of the two"),
        (["t.jsonl", "--scenario", "a", "--cluster", "b"], "one of the two"),
        (["t.jsonl", "--scenario", "qwen3-8b-swe"], "cannot read t.jsonl"),
        (["empty", "--scenario", "qwen3-8b-swe"], "no store empty/controller.db"),
        (["t.jsonl", "--cluster", "h100-qwen3-8b"], "its nodes are not known"),
        (["asked.jsonl", "--scenario", "qwen3-8b-swe"], "asked.jsonl holds no turn and no event of the cluster"),
        (["none.jsonl", "--scenario", "qwen3-8b-swe"], "none.jsonl holds no turn and no event of the cluster"),
    ],
)
def test_what_cannot_be_replayed(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "asked.jsonl").write_text("".join(telemetry_lines([arrival("a", 0)])))
    assert run(["replay", *args]) == 2
    assert message in capsys.readouterr().err


def test_the_workload_of_the_world_stands_in_until_one_is_measured(
    telemetry: tuple[Telemetry, ...], rules: Policy
) -> None:
    first = _replayed(Recording(telemetry=telemetry), WORLD, rules)[0]
    assert WORLD.workload is WORKLOAD
    assert first.decision.chosen is not None
