from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pearl.errors import UsageError
from pearl.live import training
from pearl.live.client import ANSWER_S, AdminClient, NotRunningError, RejectedError
from pearl.live.endpoint import Endpoint, publish_endpoint
from pearl.live.training import Makespan, Published, Released, Trainer
from tests.live.stub_controller import TOKEN, Call, StubController, error, stub_controller


@pytest.fixture
def stub() -> Iterator[StubController]:
    with stub_controller() as made:
        yield made


def _trainer(stub: StubController, restart_s: float = 5.0) -> Trainer:
    return Trainer(client=AdminClient(url=stub.url, token=TOKEN), restart_s=restart_s)


def test_a_training_step(stub: StubController) -> None:
    stub.answers |= {
        "POST /training/begin": (200, {"released": ["o/0", "o/1"], "forced": ["o/1"], "seconds": 1.5}),
        "POST /training/finish": (202, {}),
    }
    with _trainer(stub).training(4, deadline_s=20, force=False, window_s=60) as released:
        assert released == Released(released=("o/0", "o/1"), forced=("o/1",), seconds=1.5)
        assert [call.path for call in stub.calls] == ["/training/begin"]
    begin, finish = stub.calls
    assert begin.body == {"step": 4, "force": False, "deadline_s": 20}
    assert finish.body == {"step": 4, "window_s": 60}
    assert begin.key
    assert begin.key != finish.key


@pytest.mark.parametrize(("force", "least_s"), [(True, 0.5 + 10 + 30), (False, 0.5 + ANSWER_S)])
def test_a_begin_is_waited_for_while_workers_are_forced_out(
    monkeypatch: pytest.MonkeyPatch, force: bool, least_s: float
) -> None:
    """Past the deadline the controller lets workers fall asleep, then ends them: it answers after that."""
    waits_s: list[float] = []

    def call(*_: object, deadline_s: float, **__: object) -> dict[str, object]:
        waits_s.append(deadline_s)
        return {"released": [], "forced": [], "seconds": 12.0}

    monkeypatch.setattr(AdminClient, "call", call)
    trainer = Trainer(client=AdminClient(url="http://127.0.0.1:1", token=TOKEN))
    trainer.begin_training(1, deadline_s=0.5, force=force)
    assert waits_s[0] >= least_s


def test_after_an_error_the_gpus_stay_the_trainers(stub: StubController) -> None:
    stub.answers["POST /training/begin"] = (200, {"released": []})
    with pytest.raises(ZeroDivisionError), _trainer(stub).training(1):
        raise ZeroDivisionError
    assert [call.path for call in stub.calls] == ["/training/begin"]


def test_batches_and_weights(stub: StubController) -> None:
    stub.answers |= {
        "POST /batches": (200, {}),
        "POST /batches/finish": (200, {"makespan_s": 12.0, "predicted_s": None}),
        "POST /weights": (200, {"version": 3, "updated": ["a"], "left": ["b"], "seconds": 0.25}),
    }
    trainer = _trainer(stub)
    trainer.begin_batch(3, trajectories=64, deadline_s=9.0)
    assert trainer.finish_batch(3) == Makespan(makespan_s=12.0, predicted_s=None)
    published = trainer.publish_weights(version=3, directory=Path("w/v00000003"))
    assert published == Published(version=3, updated=("a",), left=("b",), seconds=0.25)
    assert [call.body for call in stub.calls] == [
        {"step": 3, "trajectories": 64, "deadline_s": 9.0},
        {"step": 3},
        {"version": 3, "directory": "w/v00000003"},
    ]


def test_a_broken_call_is_repeated_under_the_same_key(stub: StubController) -> None:
    def second_time(call: Call) -> tuple[int, object] | None:
        return None if len(stub.calls) == 1 else (200, {"released": ["o/0"]})

    stub.answers["POST /training/begin"] = second_time
    assert _trainer(stub).begin_training(1).released == ("o/0",)
    first, second = stub.calls
    assert first == second


def test_a_controller_that_stops_is_asked_again(stub: StubController) -> None:
    def second_time(call: Call) -> tuple[int, object]:
        if len(stub.calls) == 1:
            return 503, error("stopping", "ask again once it runs, with the same key")
        return 200, {"released": ["o/0"]}

    stub.answers["POST /training/begin"] = second_time
    assert _trainer(stub).begin_training(1).released == ("o/0",)
    assert stub.calls[0] == stub.calls[1]


def test_a_restart_of_the_controller_is_a_delay() -> None:
    with stub_controller() as gone:
        url = gone.url
    trainer = Trainer(client=AdminClient(url=url, token=TOKEN), restart_s=0.3)
    began_s = time.monotonic()
    with pytest.raises(NotRunningError):
        trainer.finish_training(1)
    assert time.monotonic() - began_s < 1.0


def test_the_time_in_which_the_controller_worked_is_no_absence(stub: StubController) -> None:
    def slow_then_broken(call: Call) -> tuple[int, object] | None:
        if len(stub.calls) == 1:
            time.sleep(0.5)
            return None
        return 200, {"released": []}

    stub.answers["POST /training/begin"] = slow_then_broken
    assert _trainer(stub, restart_s=0.3).begin_training(1).released == ()


@pytest.mark.parametrize(("status", "code"), [(409, "stale_step"), (504, "deadline")])
def test_a_refusal_is_not_repeated(stub: StubController, status: int, code: str) -> None:
    stub.answers["POST /training/begin"] = (status, error(code, "no"))
    with pytest.raises(RejectedError) as caught:
        _trainer(stub).begin_training(1)
    assert (caught.value.status, caught.value.code, len(stub.calls)) == (status, code, 1)


@pytest.mark.parametrize("deadline_s", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_deadline_that_cannot_be_one(stub: StubController, deadline_s: float) -> None:
    with pytest.raises(UsageError, match="deadline_s is"):
        _trainer(stub).begin_training(1, deadline_s=deadline_s)
    assert stub.calls == []


def test_the_short_form_finds_the_controller(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answers |= {"POST /training/begin": (200, {"released": ["o/0"]}), "POST /training/finish": (202, {})}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PEARL_ADMIN_TOKEN", TOKEN)
    (tmp_path / "pearl-state").mkdir()
    publish_endpoint(tmp_path / "pearl-state", Endpoint(url=stub.url, pid=1, started_unix_s=0.0))
    assert training.begin_training(1).released == ("o/0",)
    training.finish_training(1)
    assert [call.path for call in stub.calls] == ["/training/begin", "/training/finish"]


def test_trainers_may_call_from_several_threads(stub: StubController) -> None:
    stub.answers["POST /training/begin"] = lambda call: (200, {"released": [str(call.body["step"])]})
    trainer, found = _trainer(stub), {}

    def call(step: int) -> None:
        found[step] = trainer.begin_training(step).released

    threads = [threading.Thread(target=call, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert found == {step: (str(step),) for step in range(8)}
